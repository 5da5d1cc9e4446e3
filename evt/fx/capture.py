"""A module as a graph of ATen's operators: ``capture(module, inputs) -> GraphModule``."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import torch
from torch._decomp import decomposition_table
from torch.export import ExportedProgram
from torch.fx import GraphModule

from evt.diagnostics import Diagnostic
from evt.errors import ArgumentError
from evt.fx.expand import expand
from evt.fx.fold import fold
from evt.fx.meaning import known_operators


def capture(
    module: torch.nn.Module,
    inputs: Sequence[Any],
    keywords: Mapping[str, Any] | None = None,
    dynamic_shapes: Any = None,
) -> GraphModule:
    """Return a module's graph for such inputs, with parameters as attributes and without operators in place.

    Raise ArgumentError (E1020) where torch.export does not.

    Elementwise operators that evt has no function for are decomposed as PyTorch does it, all others stay whole.
    """
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # torch.export's own
        exported = export(module, inputs, keywords, dynamic_shapes).run_decompositions(_decompositions())
        guarded = "check_guards" in inspect.signature(type(exported).module).parameters
        made = exported.module(check_guards=False) if guarded else exported.module()
    assert isinstance(made, GraphModule)
    _detach(made)
    expand(made.graph)
    fold(made)
    made.recompile()
    return made


def export(
    module: torch.nn.Module,
    inputs: Sequence[Any],
    keywords: Mapping[str, Any] | None = None,
    dynamic_shapes: Any = None,
) -> ExportedProgram:
    """Return what torch.export does. Raise ArgumentError (E1020) where it raises anything."""
    try:
        return torch.export.export(
            module, tuple(inputs), dict(keywords or {}), dynamic_shapes=dynamic_shapes, strict=False
        )
    except Exception as error:  # the module's own, for these inputs, or of what torch.export cannot trace
        said = next(iter(str(error).strip().splitlines()), type(error).__name__)
        message = f"torch.export cannot capture the {type(module).__name__}: {said}"
        hint = 'call the module with these inputs; if that works, use torch.compile(module, backend="evt")'
        raise ArgumentError(Diagnostic("E1020", message, help=hint)) from error


def _detach(module: torch.nn.Module) -> None:
    """Put parameters of the same memory into a module's place of those that autograd follows."""
    for name, parameter in list(module.named_parameters(remove_duplicate=False)):
        owner, _, last = name.rpartition(".")
        setattr(module.get_submodule(owner), last, torch.nn.Parameter(parameter.detach(), requires_grad=False))


#: Products that PyTorch makes of others.
_COMPOSED = ("einsum", "tensordot", "inner", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d")


@cache
def _decompositions() -> dict[Any, Callable[..., Any]]:
    """Return PyTorch's decompositions of the elementwise operators that are no functions of evt's, and of products."""
    known = known_operators()
    every: Any = torch.export.default_decompositions()
    found = {each: rule for each, rule in every.items() if each._schema.name.partition("::")[2] in _COMPOSED}
    for operator, rule in decomposition_table.items():
        if not isinstance(operator, torch._ops.OpOverload) or operator._overloadname.endswith("out"):
            continue
        name = operator._schema.name.partition("::")[2]
        named = {name, f"{name}.{operator._overloadname}"}
        if torch.Tag.pointwise in operator.tags and not named & known:
            found[operator] = rule
    return found
