"""A convolution as a PyTorch user writes it: ``convolve(problem, operands, a, b, device) -> Tensor``.

Asymmetric padding is a separate pass in PyTorch; for the result of a gradient it is a slice.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.nn import functional, grad

from evt.eager.idiom import Tensor, UnwrittenError, torch_type
from evt.ir import Operand
from evt.ir.convolution import ConvolutionProblem

#: Calls a function, or writes the call into a graph.
Call = Callable[..., Any]

_FPROP: dict[int, Call] = {1: functional.conv1d, 2: functional.conv2d, 3: functional.conv3d}
_DGRAD: dict[int, Call] = {
    1: functional.conv_transpose1d,
    2: functional.conv_transpose2d,
    3: functional.conv_transpose3d,
}
_WGRAD: dict[int, Call] = {1: grad.conv1d_weight, 2: grad.conv2d_weight, 3: grad.conv3d_weight}


def call_now(function: Call, *arguments: Any, **options: Any) -> Any:
    """Call a function immediately."""
    return function(*arguments, **options)


def convolve(
    problem: ConvolutionProblem, operands: Sequence[Operand], a: Any, b: Any, device: str, call: Call = call_now
) -> Tensor:
    """Return the convolution of A and B, or its gradient, [N, C, ...].

    On the CPU, 8-bit operands are convolved in f32; on CUDA, PyTorch cannot convolve them. Raise UnwrittenError.
    """
    dtype = operands[0].dtype
    if dtype.bits > 8:
        return _convolve(problem, a, b, call), torch_type(dtype)
    if device == "cuda":
        raise UnwrittenError("PyTorch has no convolution of 8-bit operands")
    result = _convolve(problem, a.to(torch.float32), b.to(torch.float32), call)
    return (result, torch.float32) if dtype.is_float else (result.to(torch.int32), torch.int32)


def _convolve(problem: ConvolutionProblem, a: Any, b: Any, call: Call) -> Any:
    geometry = problem.geometry
    even = all(before == after for before, after in problem.pads)
    options: dict[str, Any] = {
        "stride": geometry.stride,
        "padding": tuple(before for before, _ in problem.pads) if even else (0,) * geometry.rank,
        "dilation": geometry.dilation,
        "groups": geometry.groups,
    }
    sides = [number for pair in reversed(problem.pads) for number in pair]  # functional.pad begins with the last
    match geometry.operator:
        case "fprop":
            x = a if even else call(functional.pad, a, sides)
            return call(_FPROP[geometry.rank], x, b, **options)
        case "dgrad":
            result = call(_DGRAD[geometry.rank], a, b, output_padding=geometry.output_padding, **options)
            if even:
                return result
            ends = zip(problem.pads, problem.pixels, strict=True)
            inside = (slice(None), slice(None), *(slice(before, before + size) for (before, _), size in ends))
            return result[inside]
        case "wgrad":
            x = b if even else call(functional.pad, b, sides)
            size = (problem.filters, problem.channels // geometry.groups, *problem.filter_size)
            return call(_WGRAD[geometry.rank], x, size, a, **options)
