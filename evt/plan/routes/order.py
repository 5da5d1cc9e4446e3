"""The routes to a kernel, in order of preference; ``evt explain`` prints them with their rules.

Newer generations of CUTLASS come first. Within a generation, CUTLASS's fused epilogues come before visitor trees, and
visitor trees before mainloop fusions. A kernel of evt comes before the kernels that it replaces. A route that does not
suit a problem comes after the routes that do: see Route. A measurement of ``evt tune`` overrides the order.
"""

from __future__ import annotations

from evt.diagnostics import Diagnostic, hint
from evt.errors import TargetError
from evt.plan.problem import Problem
from evt.plan.routes import (
    convolution_2x,
    convolution_3x,
    depthwise_3x,
    gemm_2x,
    gemm_3x,
    gemm_own_3x,
    gemv_3x,
    grouped_3x,
    halo_3x,
    wgrad_3x,
)
from evt.plan.routes.route import Route

ROUTES: tuple[Route, ...] = (
    wgrad_3x.WGRAD,
    halo_3x.PADDED,
    halo_3x.TAPS,
    halo_3x.HALO,
    depthwise_3x.DEPTHWISE,
    halo_3x.GROUPED,
    halo_3x.WORDS,
    halo_3x.COPIED,
    gemm_own_3x.PRODUCT,
    gemm_own_3x.BATCHES,
    gemm_own_3x.RAGGED,
    gemv_3x.GEMV,
    gemv_3x.BY_ROWS,
    gemm_3x.STOCK,
    gemm_3x.EVT,
    grouped_3x.EVT,
    convolution_3x.PADDED,
    convolution_3x.EVT,
    gemm_2x.STOCK,
    gemm_2x.EVT,
    convolution_2x.STOCK,
    convolution_2x.EVT,
    gemm_2x.MAINLOOP,
    convolution_2x.MAINLOOP,
)


def routes_of(problem: Problem) -> tuple[Route, ...]:
    """Return the routes for a problem's shape."""
    return tuple(route for route in ROUTES if problem.shape in route.shapes)


def find_routes(problem: Problem, named: str | None = None) -> tuple[Route, ...]:
    """Return the routes for a problem's shape with a name, or of a kind.

    Raise TargetError (E0501) for an unknown name.
    """
    known = routes_of(problem)
    routes = tuple(route for route in known if named in (None, route.name, route.kind))
    if not routes:
        names = ", ".join(dict.fromkeys([route.name for route in known] + [route.kind for route in known]))
        raise TargetError(Diagnostic("E0501", f"there is no route `{named}`", help=f"routes: {names}"))
    return routes


def check_route(named: str | None) -> None:
    """Raise TargetError (E0501) for a name that no route and no kind of route has."""
    names = list(dict.fromkeys([*(route.name for route in ROUTES), *(route.kind for route in ROUTES)]))
    if named is not None and named not in names:
        raise TargetError(Diagnostic("E0501", f"there is no route `{named}`", help=hint(named, names, "routes")))
