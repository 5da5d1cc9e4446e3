"""Fuse a model: ``fuse(module, example_inputs) -> FusedModule``; its decisions: ``fusion(module) -> Fusion``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch.fx import GraphModule
from torch.utils import _pytree

from evt.diagnostics import Diagnostic, shown
from evt.errors import ArgumentError
from evt.fx.dispatch import Dispatch, TensorKind
from evt.fx.module import FusedModule, dispatch_of, stand_in
from evt.fx.options import LOSSLESS
from evt.fx.regions import Fusion
from evt.plan.routes.order import check_route
from evt.request.given import check_kind
from evt.settings import Keywords, Settings

if TYPE_CHECKING:
    from typing_extensions import Unpack

_INPUTS = "a tuple of them, as in `(x,)`, or a mapping"


def fuse(
    module: torch.nn.Module,
    example_inputs: Sequence[Any] | Mapping[str, Any],
    *,
    dynamic_shapes: Any = None,
    rule: str | None = None,
    **settings: Unpack[Keywords],
) -> FusedModule:
    """Return a module that replaces a model, or a graph of ATen's operators, and runs it with its products fused.

    ``example_inputs`` are the arguments of a call, or its keyword arguments as a mapping. The keywords are the fields
    of :class:`evt.settings.Settings`. ``fusion(module)`` describes the fused regions, and the reasons of all others.
    Raise ArgumentError for arguments of other kinds (E0607), and if torch.export cannot capture the module (E1020).
    Raise TargetError for an unknown route (E0501).

    The result has the parameters, buffers, submodules and methods of the model. Inputs of other shapes, strides, types
    and devices are planned at their first call. The model itself runs in training mode, while gradients are recorded,
    and if nothing can be captured or fused. Values of parameters alone, such as the factors of a batch norm, are
    recomputed after a parameter changes. Writes through ``tensor.data`` are not detected.

    ``dynamic_shapes`` is passed to torch.export.export: one graph then serves all these shapes.

    A region computes in f32 and rounds where it stores and where the graph casts, as Inductor does; with
    ``numerics="eager"`` it rounds as PyTorch's CUDA kernels do, operator by operator.

    ``rule="lossless"`` changes no bit. Regions round as with ``numerics="eager"``; at the first call with a kind of
    inputs, the bits of each region are compared with eager PyTorch's on the call's tensors. Only equal regions are
    fused; PyTorch runs all other operators. ``evt.report`` has the shares of bits that differ.
    """
    check_kind("module", module, torch.nn.Module, "a torch.nn.Module")
    if any(isinstance(each, torch.jit.ScriptModule) for each in module.modules()):
        hint = "call evt.fuse with the model that torch.jit compiled"
        raise ArgumentError(
            Diagnostic("E1020", f"the {type(module).__name__} is TorchScript, and has no graph", help=hint)
        )
    check_kind("example_inputs", example_inputs, tuple | list | Mapping, _INPUTS)
    lossless = is_lossless(rule)
    if lossless:
        settings.setdefault("numerics", "eager")
    given = Settings.of(**settings)
    check_route(given.route)
    if given.numerics != "eager" and lossless:
        raise ArgumentError(Diagnostic("E0607", 'rule="lossless" needs numerics="eager"', help="omit `numerics`"))
    known = dispatch_of(module)
    call = _call(example_inputs)
    dispatch = Dispatch(
        module if known is None else known.model,
        _pytree.tree_map(TensorKind.of, call),
        dict(settings),
        dynamic_shapes,
        lossless,
    )
    dispatch.plan_of(*call)
    return stand_in(dispatch)


def is_lossless(rule: str | None) -> bool:
    """Return whether a rule is "lossless". Raise ArgumentError (E0607) for any other but None."""
    if rule not in (None, LOSSLESS):
        raise ArgumentError(Diagnostic("E0607", f"there is no rule {shown(rule)}", help='rule="lossless", or none'))
    return rule is not None


def fusion(module: torch.nn.Module, inputs: Sequence[Any] | Mapping[str, Any] | None = None) -> Fusion:
    """Return the fused regions for the example of :func:`fuse`, or for other inputs.

    Raise ArgumentError for a module of other origin (E0607), for sparse and nested inputs (E0606), and for inputs that
    cannot be captured (E1020).
    """
    dispatch = dispatch_of(module)
    if dispatch is None:
        raise ArgumentError(Diagnostic("E0607", f"`module` is {shown(module)}; expected what evt.fuse returned"))
    check_kind("inputs", inputs, tuple | list | Mapping | None, _INPUTS)
    return (dispatch.example_plan() if inputs is None else dispatch.plan_of(*_call(inputs))).fusion


def graph(module: torch.nn.Module, inputs: Sequence[Any] | Mapping[str, Any] | None = None) -> GraphModule:
    """Return the fused graph for the example, or for other inputs, for inspection.

    The inputs of the graph are parameters and buffers, the tensors of a call, and folded values of parameters. Other
    programs use ``torch.export.export(module, inputs)``. Raise as :func:`fusion` does.
    """
    fusion(module, inputs)
    dispatch = dispatch_of(module)
    assert dispatch is not None
    return (dispatch.example_plan() if inputs is None else dispatch.plan_of(*_call(inputs))).graph


def _call(inputs: Sequence[Any] | Mapping[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the positional and the keyword arguments of a call; raise ArgumentError for sparse tensors (E0606)."""
    for each in _pytree.tree_leaves(inputs):
        if isinstance(each, torch.Tensor) and (each.is_nested or each.layout is not torch.strided):
            kind, dense = ("nested", "to_padded_tensor(0)") if each.is_nested else (each.layout, "to_dense()")
            message = f"an example input is a {kind} tensor; only dense tensors are supported"
            raise ArgumentError(Diagnostic("E0606", message, help=f"pass its {dense}"))
    return ((), dict(inputs)) if isinstance(inputs, Mapping) else (tuple(inputs), {})


__all__ = ["Fusion", "fuse", "fusion", "graph"]
