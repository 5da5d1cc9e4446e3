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
            raise ValueError(f"A is {list(a)} and B is {list(b)}: an extent is negative")
        if max((*a, *b), default=0) > _LARGEST:
            raise ValueError("an extent of A or B does not fit in 64 bits")
        if request.convolution is not None:
            found = request.convolution.problem(a, b)
            return found, found.extents
        return None, _matrix_sizes(request.operand_modes, a, b)
    except TypeError:
        message = f"`shapes` are {shapes!r}; expected the shapes of A and B, sequences of whole numbers"
        raise ArgumentError(Diagnostic("E0607", message)) from None
    except ValueError as error:
        raise ArgumentError(Diagnostic("E0604", str(error))) from None


def _matrix_sizes(modes: tuple[tuple[str, ...], tuple[str, ...]], a: Sequence[int], b: Sequence[int]) -> dict[str, int]:
    """Return the extents by mode of a matrix product of these shapes. Raise ValueError for shapes that do not fit."""
    if len(a) < 2 or len(b) < 2:
        raise ValueError(f"A is {list(a)} and B is {list(b)}; expected at least two dimensions")
    sizes_a, sizes_b = dict(zip(modes[0], a[-2:], strict=True)), dict(zip(modes[1], b[-2:], strict=True))
    if sizes_a["k"] != sizes_b["k"]:
        raise ValueError(f"A is {list(a)} and B is {list(b)}: k is {sizes_a['k']} in A and {sizes_b['k']} in B")
    return {"l": math.prod(a[:-2]), **sizes_a, **sizes_b}
