"""Calls with expected results for the self-tests of exported packages: ``example_of(program) -> Example``."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import torch

from evt.bench.calls import call_sizes, held_buffers, random_call
from evt.export import Named
from evt.export.example import Data, Example, Given
from evt.export.kernels import values_of
from evt.ir import Interleave, TypedDag
from evt.ir.convolution import Convolution
from evt.ir.dtype import DType
from evt.ir.node import distance, divisor, is_divided
from evt.ir.operand import epilogue_of
from evt.program import program_of
from evt.reference.compare import limit
from evt.reference.rounding import torch_type
from evt.request import Request, Shapes
from evt.runtime.arguments import bind
from evt.runtime.given import split_held

#: Extents that divide by 16 but not by a tile, and the images, channels, filters and pixels of a convolution.
_M, _N, _K = 208, 144, 80
_IMAGES, _CHANNELS, _FILTERS, _PIXELS, _TAPS = 2, 32, 48, (5, 9, 7), 3
_SEED = 0


def example_of(program: Named) -> Example:
    """Return a call of a program on random tensors, packed and aligned, that each of its natural kernels supports."""
    request, dag = program.request, program.dag
    shapes = _shapes(request, dag)
    generator = torch.Generator().manual_seed(_SEED)
    (a, b), inputs = random_call(request, dag, shapes, generator)
    held = held_buffers(dag, call_sizes(request, shapes), torch.device("cpu"))
    exact = program_of(request).reference(a, b, float64=True, **inputs, **held)
    results = dict(zip(request.outputs, (exact,) if isinstance(exact, torch.Tensor) else exact, strict=True))
    read, buffers = split_held(dag, {**inputs, **held})
    bound = bind(request, a, b, read, buffers)
    types = {each.name: each.dtype for each in dag.outputs}
    operands = [each.dtype for each in dag.operands]
    roles = {
        (name, step): argument.strides[step] for name, argument in bound.tensors.items() for step in argument.strides
    }
    roles |= {
        (name, f"extent {mode}"): extent
        for name, argument in bound.tensors.items()
        for mode, extent in argument.extents.items()
    }
    given: dict[str, Any] = {"A": a, "B": b, **inputs, **held}
    return Example(
        {name: _given(value) for name, value in given.items()},
        {name: _data(_stored(value, types[name])) for name, value in results.items()},
        {name: limit([_dtype(types[name])], operands) for name in results},
        {**roles, **{("", name): size for name, size in bound.sizes.items()}},
    )


def _dtype(dtype: DType | None) -> DType:
    assert dtype is not None
    return dtype


def _stored(exact: torch.Tensor, dtype: DType | None) -> torch.Tensor:
    """Return an exact result in a type that is wide enough for comparison."""
    known = _dtype(dtype)
    return exact.to(torch.float32 if known.is_float and known.bits < 64 else torch_type(known))


def _shapes(request: Request, dag: TypedDag) -> Shapes:
    if request.convolution is not None:
        return _images(request.convolution)
    modes = {mode for value in epilogue_of(dag).types for mode in value.modes if is_divided(mode)}
    widths = {divisor(mode) * distance(mode) for mode in modes}
    widths |= {2 * op.block for op, _ in dag.table if isinstance(op, Interleave)}
    widths = {width for width in widths if width} or {1}
    width = math.lcm(16, *widths)
    sizes = {"m": _M, "n": -(-_N // width) * width, "k": _K}
    batched = any("l" in value.modes for value in values_of(dag).values())
    a, b = (tuple(sizes[mode] for mode in modes) for modes in request.operand_modes)
    return ((2, *a), (2, *b)) if batched else (a, b)


def _images(geometry: Convolution) -> Shapes:
    """Return the shapes of a small convolution that fits the geometry."""
    taps = geometry.kernel_size or (_TAPS,) * geometry.rank
    reach = [dilation * (size - 1) + 1 for dilation, size in zip(geometry.dilation, taps, strict=True)]
    pixels = tuple(map(max, _PIXELS[-geometry.rank :], reach))
    x, weight = (_IMAGES, _CHANNELS, *pixels), (_FILTERS, _CHANNELS, *taps)
    gradient = (_IMAGES, _FILTERS, *replace(geometry, operator="fprop").problem(x, weight).results)
    return {"fprop": (x, weight), "dgrad": (gradient, weight), "wgrad": (gradient, x)}[geometry.operator]


def _given(value: Any) -> Given:
    return _data(value) if isinstance(value, torch.Tensor) else value


def _data(tensor: torch.Tensor) -> Data:
    """Return a tensor's memory as a flat tensor, in the order of its strides."""
    order = sorted(range(tensor.dim()), key=lambda dim: -tensor.stride()[dim])
    flat = tensor.permute(order).contiguous().view(-1).view(torch.uint8)
    strides, step = [0] * tensor.dim(), 1
    for dim in reversed(order):
        strides[dim], step = step, step * tensor.shape[dim]
    name = str(tensor.dtype).removeprefix("torch.")
    return Data(name, tuple(tensor.shape), tuple(strides), flat.numpy().tobytes())
