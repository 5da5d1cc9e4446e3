"""The way of a graph: capture, partition, build, rewrite."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.fx import GraphModule

from evt.errors import EvtError
from evt.fx.build import Fused, build
from evt.fx.capture import capture
from evt.fx.partition import partition
from evt.fx.rewrite import rewrite


def fuse(module: torch.nn.Module, example_inputs: Sequence[Any]) -> GraphModule:
    graph_module = capture(module, example_inputs)
    fuse_graph(graph_module)
    return graph_module


def fuse_graph(module: GraphModule) -> list[Fused]:
    found = partition(module.graph)
    fused: list[Fused] = []
    for region in found.regions:
        try:
            fused.append(build(region))
        except EvtError:
            continue
    rewrite(module.graph, fused)
    module.recompile()
    return fused
