"""The planner's input for packed tensors: ``packed_problem(request, arch, a, b, shapes) -> Problem``."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from operator import index

from evt.diagnostics import Diagnostic
from evt.errors import ArgumentError
from evt.ir.convolution import ConvolutionProblem
from evt.plan import LayoutClass, Options, Problem, Signature, Sizes, convolution_class, find_target, natural_signature
from evt.plan.sizes import UNKNOWN
from evt.request.graphs import optimised_graph
from evt.request.request import Request
from evt.settings import Settings

#: The shapes of A and B, in PyTorch's order.
Shapes = tuple[Sequence[int], Sequence[int]]


def packed_problem(
    request: Request, arch: str, a: str | None = None, b: str | None = None, shapes: Shapes | None = None
) -> Problem:
    """Return the planner's input for packed tensors, aligned as ``shapes`` of A and B allow.

    Raise ProgramError; TargetError (E0303, E0305, E0501); ArgumentError (E0604, E0607) for shapes that do not fit.
    """
    dag = optimised_graph(request, a, b)
    convolution, extents = (None, None) if shapes is None else _problem(request, shapes)
    of, sizes = None, UNKNOWN
    if request.convolution is not None:
        operand = dag.operands[0].dtype
        of = convolution_class(request.convolution, convolution, operand)
        if convolution is not None:
            sizes = Sizes(convolution, convolution.largest_operand * operand.bits // 8)
    asked = options(request.settings, request.settings.deterministic is False)
    return Problem(dag, natural_signature(dag, of, extents), find_target(arch), asked, sizes=sizes)


def grouped_problem(
    request: Request, arch: str, a: str | None = None, b: str | None = None, shapes: Sequence[Shapes] | None = None
) -> Problem:
    """Return the planner's input for groups of packed tensors, aligned as ``shapes`` of A and B of each group allow.

    Raise the errors of :func:`packed_problem`.
    """
    dag = optimised_graph(request, a, b)
    found = [natural_signature(dag, None, problem_sizes(request, each)) for each in shapes or ()]
    signature = common_signature(found) if found else natural_signature(dag)
    return Problem(dag, signature, find_target(arch), options(request.settings, False), grouped=True)


def common_signature(signatures: Sequence[Signature]) -> Signature:
    """Return the layouts that all groups share: the common contiguous mode, if any, and the smallest alignment."""
    return Signature(
        _common([each.a for each in signatures]),
        _common([each.b for each in signatures]),
        tuple((name, _common([each[name] for each in signatures])) for name, _ in signatures[0].tensors),
    )


def _common(layouts: Sequence[LayoutClass]) -> LayoutClass:
    contiguous = {layout.contiguous for layout in layouts}
    if len(contiguous) > 1:
        return LayoutClass(None, 1)
    return replace(layouts[0], alignment=min(layout.alignment for layout in layouts))


def options(settings: Settings, atomic: bool) -> Options:
    """Return the options of a kernel. ``atomic`` allows reductions to combine in any order."""
    return Options(atomic, settings.fast_math, settings.numerics == "match_eager")


def problem_sizes(request: Request, shapes: Shapes | None) -> Mapping[str, int]:
    """Return the extents of a problem by mode, for the shapes of A and B; {} without shapes.

    Raise ArgumentError (E0604, E0607) for shapes that do not fit.
    """
    return {} if shapes is None else _problem(request, shapes)[1]


def _problem(request: Request, shapes: Shapes) -> tuple[ConvolutionProblem | None, Mapping[str, int]]:
    try:
        a, b = (tuple(map(index, shape)) for shape in shapes)
        if min((*a, *b), default=0) < 0:
            raise ValueError(f"A is {list(a)} and B is {list(b)}: an extent is negative")
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
