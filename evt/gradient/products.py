"""The gradients of A and B from the gradient of the accumulator: ``operand_gradients(...)``, in PyTorch.

A convolution, its dgrad and its wgrad are one sum over an activation, a weight and an output, solved for different
tensors. The gradient of any of them with respect to an operand is another of them.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as functional

from evt.ir.convolution import ConvolutionProblem
from evt.ir.dtype import accumulator, converts
from evt.ir.node import Operand
from evt.reference.convolution import convolve
from evt.reference.int4 import unpacked
from evt.reference.rounding import working

#: A gradient of A, and of B; None if it is not needed.
Pair = tuple[torch.Tensor | None, torch.Tensor | None]


def product(
    operands: Sequence[Operand], a: torch.Tensor, b: torch.Tensor, problem: ConvolutionProblem | None = None
) -> torch.Tensor:
    """Return the accumulator [..., m, n] of A and B in its own type, computed in PyTorch."""
    first, second = operands
    wide = working(accumulator(first.dtype), torch.float32)
    a, b = a.to(wide), b.to(wide)
    if problem is not None:
        return convolve(problem.geometry, problem, a, b)
    return (a if first.modes == ("m", "k") else a.mT) @ (b if second.modes == ("k", "n") else b.mT)


def product_gradients(
    operands: Sequence[Operand], a: torch.Tensor, b: torch.Tensor, gradient: torch.Tensor, needed: tuple[bool, bool]
) -> Pair:
    """Return the gradients of a matrix product's A and B, in their shapes, from ``gradient`` [..., m, n]."""
    modes_a, modes_b = (operand.modes for operand in operands)
    if converts(*(operand.dtype for operand in operands)):
        b = unpacked(operands[1].dtype, b).to(a.dtype)
    left = a if modes_a == ("m", "k") else a.mT
    right = b if modes_b == ("k", "n") else b.mT
    to_left: torch.Tensor | None = None
    to_right: torch.Tensor | None = None
    if left.dim() == 1:  # linear: one row
        left, gradient = left.unsqueeze(0), gradient.unsqueeze(0)
    if needed[0]:
        to_left = _summed_to(gradient @ right.mT, left)
        to_left = (to_left if modes_a == ("m", "k") else to_left.mT).reshape(a.shape)
    if needed[1]:
        if right.dim() == 2:
            rows = left.expand(*gradient.shape[:-1], left.shape[-1])
            to_right = rows.flatten(0, -2).mT @ gradient.flatten(0, -2)
        else:
            to_right = _summed_to(left.mT @ gradient, right)
        to_right = to_right if modes_b == ("k", "n") else to_right.mT
    return to_left, to_right


def convolution_gradients(
    problem: ConvolutionProblem, a: torch.Tensor, b: torch.Tensor, gradient: torch.Tensor, needed: tuple[bool, bool]
) -> Pair:
    """Return the gradients of a convolution's A and B from ``gradient`` in the shape of its result."""
    match problem.geometry.operator:
        case "fprop":
            return _backward(problem, gradient, a, b, needed)
        case "dgrad":
            to_output = _forward(problem, gradient, b) if needed[0] else None
            return to_output, _backward(problem, a, gradient, b, (False, needed[1]))[1]
        case "wgrad":
            to_output = _forward(problem, b, gradient) if needed[0] else None
            return to_output, _backward(problem, a, b, gradient, (needed[1], False))[0]


def _summed_to(gradient: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """Return a gradient summed over the batches that share an operand."""
    return gradient if gradient.shape == like.shape else gradient.sum_to_size(like.shape)


def _forward(problem: ConvolutionProblem, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    geometry = problem.geometry
    convolve = (functional.conv1d, functional.conv2d, functional.conv3d)[geometry.rank - 1]
    x, padding = _padded(problem, x)
    result: torch.Tensor = convolve(x, weight, None, geometry.stride, padding, geometry.dilation, geometry.groups)
    return result


def _backward(
    problem: ConvolutionProblem, output: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, needed: tuple[bool, bool]
) -> Pair:
    """Return the gradients of the activation and of the weight, from the output's."""
    if not any(needed):
        return None, None
    geometry = problem.geometry
    padded, padding = _padded(problem, x)
    to_x, to_weight, _ = torch.ops.aten.convolution_backward(
        output,
        padded,
        weight,
        None,
        geometry.stride,
        padding,
        geometry.dilation,
        False,
        [0] * geometry.rank,
        geometry.groups,
        [*needed, False],
    )
    if needed[0] and padded is not x:
        for dim, (size, (before, _)) in enumerate(zip(problem.pixels, problem.pads, strict=True), 2):
            to_x = to_x.narrow(dim, before, size)
    return to_x if needed[0] else None, to_weight if needed[1] else None


def _padded(problem: ConvolutionProblem, x: torch.Tensor) -> tuple[torch.Tensor, list[int]]:
    """Return the activation and the padding that PyTorch adds, which cannot differ between the two sides."""
    if all(before == after for before, after in problem.pads):
        return x, [before for before, _ in problem.pads]
    pads = [number for pair in reversed(problem.pads) for number in pair]
    return functional.pad(x, pads), [0] * len(problem.pads)
