"""The planner's input for packed tensors: ``packed_problem(request, arch, a, b, shapes) -> Problem``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from evt.plan import (
    LayoutClass,
    Options,
    Problem,
    Signature,
    Sizes,
    Survey,
    convolution_class,
    find_target,
    natural_signature,
    survey,
)
from evt.plan.sizes import UNKNOWN
from evt.request.graphs import optimised_graph
from evt.request.ragged import ragged_request, selects_ragged
from evt.request.request import Request, remembered
from evt.request.shapes import Shapes, problem_of, problem_sizes
from evt.settings import Settings


def packed_problem(
    request: Request,
    arch: str,
    a: str | None = None,
    b: str | None = None,
    shapes: Shapes | None = None,
) -> Problem:
    """Return the planner's input for packed tensors, aligned as ``shapes`` of A and B allow.

    Raise ProgramError; TargetError (E0303, E0305, E0501); ArgumentError (E0604, E0607) for shapes that do not fit.
    """
    dag = optimised_graph(request, a, b)
    convolution, extents = (None, None) if shapes is None else problem_of(request, shapes)
    of, sizes = None, UNKNOWN
    if request.convolution is not None:
        operand = dag.operands[0].dtype
        of = convolution_class(request.convolution, convolution, operand)
        if convolution is not None and not convolution.is_empty:
            sizes = Sizes(convolution, convolution.largest_operand * operand.bits // 8)
    elif extents is not None:
        sizes = Sizes(has_batches=extents["l"] > 1)
    asked = options(request.settings, request.settings.deterministic is False)
    signature = natural_signature(dag, of, extents)
    return Problem(dag, signature, find_target(arch), asked, ragged=request.ragged, sizes=sizes)


@remembered
def surveyed(request: Request, problem: Problem, *, fused: bool = True) -> Survey:
    """Return the survey of one of the request's problems by its settings; equal problems share it.

    Raise TargetError (E0501) as :func:`evt.plan.survey`, for the route of the settings.
    """
    return survey(problem, request.settings.route, request.settings.config, fused=fused)


def grouped_problem(
    request: Request, arch: str, a: str | None = None, b: str | None = None, shapes: Sequence[Shapes] | None = None
) -> Problem:
    """Return the planner's input for groups of packed tensors, aligned as ``shapes`` of A and B of each group allow.

    The groups are consecutive rows if the user selected a route for such groups. Raise the errors of
    :func:`packed_problem`.
    """
    ragged = selects_ragged(request)
    dag = optimised_graph(ragged_request(request) if ragged else request, a, b)
    found = [natural_signature(dag, None, problem_sizes(request, each)) for each in shapes or ()]
    signature = common_signature(found) if found else natural_signature(dag)
    asked = options(request.settings, False)
    return Problem(dag, signature, find_target(arch), asked, grouped=not ragged, ragged=ragged)


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
    return Options(
        atomic,
        settings.fast_math,
        eager=settings.numerics == "eager",
        batch_invariant=settings.batch_invariant,
        fast_sums=settings.accumulate == "fast",
    )
