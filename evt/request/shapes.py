"""The shapes of a call's operands: ``problem_sizes(request, shapes)`` returns the extents by mode."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from operator import index

from evt.diagnostics import Diagnostic
from evt.errors import ArgumentError
from evt.ir.convolution import ConvolutionProblem
from evt.request.request import Request

#: The largest extent of a tensor.
_LARGEST = 2**63 - 1
#: The length of a wrong argument's text that a message does not show.
_LONG = 100
_GIVE = "pass shapes=(A.shape, B.shape)"
#: The shapes of A and B, in PyTorch's order.
Shapes = tuple[Sequence[int], Sequence[int]]


def problem_sizes(request: Request, shapes: Shapes | None) -> Mapping[str, int]:
    """Return the extents of a problem by mode, for the shapes of A and B; {} without shapes.

    Raise ArgumentError (E0604, E0607) for shapes that do not fit.
    """
    return {} if shapes is None else problem_of(request, shapes)[1]


def problem_of(request: Request, shapes: Shapes) -> tuple[ConvolutionProblem | None, Mapping[str, int]]:
    """Return a convolution's problem, or None, and the extents by mode, for the shapes of A and B.

    Raise ArgumentError (E0604, E0607) for shapes that do not fit.
    """
    try:
        given = [tuple(map(index, shape)) for shape in shapes]
        if len(given) != 2:
            raise TypeError
        a, b = given
        if min((*a, *b), default=0) < 0:
            message = f"A is {list(a)} and B is {list(b)}: an extent is negative"
            raise ArgumentError(Diagnostic("E0604", message, help=_GIVE))
        if max((*a, *b), default=0) > _LARGEST:
            raise ArgumentError(Diagnostic("E0604", "an extent of A or B does not fit in 64 bits", help=_GIVE))
        if request.convolution is not None:
            found = request.convolution.problem(a, b)
            return found, found.extents
        return None, _matrix_sizes(request, a, b)
    except TypeError:
        text = repr(shapes)
        told = text if len(text) < _LONG and "\n" not in text else f"of type {type(shapes).__name__}"
        message = f"`shapes` are {told}; expected the shapes of A and B, sequences of whole numbers"
        raise ArgumentError(Diagnostic("E0607", message, help=_GIVE)) from None


def transposed_hint(request: Request, k: int, b: Sequence[int]) -> str:
    """Return a help for a B whose k differs from A's, if its transpose fits; otherwise ""."""
    modes = request.operand_modes[1]
    if request.convolution is not None or len(b) < 2 or dict(zip(modes, reversed(b[-2:]), strict=True))["k"] != k:
        return ""
    other = "linear" if modes[0] == "k" else "gemm"
    as_declared = bool(request.dag.operands)
    return "pass B.mT" if as_declared else f"pass B.mT; evt.{other} takes B as [{', '.join(reversed(modes))}]"


def _matrix_sizes(request: Request, a: Sequence[int], b: Sequence[int]) -> dict[str, int]:
    """Return the extents by mode of a matrix product. Raise ArgumentError (E0604) for shapes that do not fit."""
    modes = request.operand_modes
    if len(a) < 2 or len(b) < 2:
        message = f"A is {list(a)} and B is {list(b)}; expected at least two dimensions"
        raise ArgumentError(Diagnostic("E0604", message, help=_GIVE))
    sizes_a, sizes_b = dict(zip(modes[0], a[-2:], strict=True)), dict(zip(modes[1], b[-2:], strict=True))
    if sizes_a["k"] != sizes_b["k"]:
        message = f"A is {list(a)} and B is {list(b)}: k is {sizes_a['k']} in A and {sizes_b['k']} in B"
        raise ArgumentError(Diagnostic("E0604", message, help=transposed_hint(request, sizes_a["k"], b)))
    return {"l": math.prod(a[:-2]), **sizes_a, **sizes_b}
