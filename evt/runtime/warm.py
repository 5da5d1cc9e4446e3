"""The kernels of a call before its tensors exist: ``build_kernels(request, arch, a, b, shapes, omit) -> number``.

The tensors of the call are never written, so the system gives them no memory. They bind as a call's tensors do.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch

from evt.diagnostics import Diagnostic, hint, quoted, shown
from evt.errors import ArgumentError
from evt.ir import Dag, Input, Output, TypedDag
from evt.ir.dag import index_inputs
from evt.ir.dtype import B1, PACKED_OPERANDS, DType
from evt.ir.node import base, blocks_of
from evt.plan import find_target
from evt.reference import int4, is_image
from evt.reference.convolution import from_view
from evt.reference.rounding import torch_type
from evt.request import Request, Shapes, typed_graph
from evt.request.shapes import problem_of
from evt.runtime.arguments import bind
from evt.runtime.kernels import build_for, is_atomic
from evt.runtime.memory_format import channels_last


def build_kernels(
    request: Request, arch: str, a: str | None, b: str | None, shapes: Shapes, omit: Iterable[str] = ()
) -> int:
    """Build the kernels of a call with packed tensors of these shapes; return their number.

    Raise TargetError, BuildError, and ArgumentError: E0604 and E0607 for shapes that do not fit, E0601, E0602 and E0607
    for inputs that cannot be omitted.
    """
    omitted = _omitted(request.dag, omit)
    target = find_target(arch)
    (left, right), inputs, buffers = _empty_call(request, typed_graph(request, a, b), shapes, omitted)
    bound = bind(request, left, right, inputs, buffers)
    return build_for(request, bound, target, is_atomic(request))


def _omitted(dag: Dag, names: object) -> tuple[str, ...]:
    """Return the inputs that calls omit. Raise ArgumentError for other values than names of inputs with defaults."""
    if isinstance(names, str) or not isinstance(names, Iterable):
        raise ArgumentError(Diagnostic("E0607", f"`omit` is {shown(names)}; expected the names of inputs"))
    wanted = tuple(names)
    for name in wanted:
        if name not in dag.input:
            message = f"the program has no input {quoted(name)} to omit"
            raise ArgumentError(Diagnostic("E0602", message, help=hint(name, dag.input, "inputs")))
        if dag.input[name].default is None:
            raise ArgumentError(Diagnostic("E0601", f"`{name}` has no default, so a call cannot omit it"))
    return wanted


def _empty_call(
    request: Request, dag: TypedDag, shapes: Shapes, omitted: tuple[str, ...]
) -> tuple[list[torch.Tensor], dict[str, Any], dict[str, torch.Tensor]]:
    """Return A and B, the inputs, and the buffers of scattered outputs, without values."""
    sizes = dict(problem_of(request, shapes)[1])
    if request.convolution is None and len(shapes[0]) < 3:
        del sizes["l"]
    elif request.convolution is not None:  # a vector along k varies over the channels that an operand reads
        sizes["k"] = math.prod(request.convolution.problem(*shapes).leads["k"])
    operands = [
        int4.any_layout(torch.zeros(tuple(shape), dtype=torch.uint8))
        if each.dtype in PACKED_OPERANDS
        else _empty(shape, each.dtype)
        for shape, each in zip(shapes, dag.operands, strict=True)
    ]
    if request.convolution is not None:
        operands = [channels_last(each) for each in operands]
    inputs = {
        each.name: _empty_input(request, dag, each, shapes, sizes) if each.modes else 1
        for each in dag.inputs
        if each.name not in omitted
    }
    buffers = {each.name: _empty(_shape(each, sizes), each.dtype) for each in dag.outputs if each.is_indexed}
    return operands, inputs, buffers


def _empty_input(request: Request, dag: TypedDag, value: Input, shapes: Shapes, sizes: dict[str, int]) -> torch.Tensor:
    if request.convolution is not None and is_image(value):
        leads = request.convolution.problem(*shapes).leads
        return from_view(_empty((*leads["m"], *leads["n"]), value.dtype))
    if value.name in index_inputs(dag):
        return _empty([sizes.get(mode, 1) for mode in value.modes], value.dtype)
    return _empty(_shape(value, sizes), value.dtype)


def _shape(value: Input | Output, sizes: dict[str, int]) -> list[int]:
    """Return the shape of a matrix or vector, with the batches of A if it may have any."""
    batch = [sizes["l"]] if "l" in sizes and value.batchable else []
    return [*batch, *(blocks_of(mode, sizes.get(base(mode), 1)) for mode in value.modes)]


def _empty(shape: Iterable[int], dtype: DType | None) -> torch.Tensor:
    assert dtype is not None
    *outer, last = shape
    return torch.empty([*outer, -(-last // 8) if dtype == B1 else last], dtype=torch_type(dtype))
