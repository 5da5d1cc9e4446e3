"""A module as a graph of ATen's operators: ``capture(module, inputs) -> GraphModule``."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import torch
from torch.fx import GraphModule

from evt.fx.expand import expand


def capture(module: torch.nn.Module, inputs: Sequence[Any]) -> GraphModule:
    """Return a module's graph for such inputs, with parameters as attributes and without operators in place."""
    with torch.no_grad():
        exported = torch.export.export(module, tuple(inputs), strict=False).run_decompositions({})
    guarded = "check_guards" in inspect.signature(type(exported).module).parameters
    made = exported.module(check_guards=False) if guarded else exported.module()
    assert isinstance(made, GraphModule)
    expand(made.graph)
    made.recompile()
    return made
