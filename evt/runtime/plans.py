"""Plans before a call, without torch: their launches, checks and sources."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from evt.compilation import KernelSource, source_of
from evt.diagnostics import Diagnostic
from evt.emission import emitted
from evt.errors import LaunchError
from evt.ir import TypedDag
from evt.plan import Plan, Route, Sizes, Target
from evt.plan.batches import launches
from evt.plan.batches import refusal as refusal_of_batches
from evt.plan.routes import order
from evt.plan.sizes import UNKNOWN
from evt.plan.speed import refusal


def launches_of(plan: Plan, batches: int) -> list[tuple[int, int]]:
    """Return the first batch and the number of batches of each launch: one launch where the kernel takes them all."""
    return launches(route_of(plan).kernel(plan.target).max_batches, batches)


def route_of(plan: Plan) -> Route:
    """Return the route that a plan takes."""
    return next(each for each in order.ROUTES if each.name == plan.route)


def check_batches(dag: TypedDag, route: Route, target: Target, batches: int) -> None:
    """Raise LaunchError (E0804) for batches that a kernel does not take, and that cannot be divided among launches.

    ``dag`` is the optimised program, which the kernel computes.
    """
    most = route.kernel(target).max_batches
    if reason := refusal_of_batches(dag, most, batches):
        other = ", or take evt-3x, for which A, B and D have to be aligned" if "3x" in target.families else ""
        few = "1 batch" if most == 1 else f"{most} batches"
        message = f"the route {route.name} takes at most {few} in a launch: {reason}"
        raise LaunchError(Diagnostic("E0804", message, help=f"split the batch{other}"))


def check_sizes(plan: Plan, extents: Mapping[str, int], sizes: Sizes = UNKNOWN) -> None:
    """Raise LaunchError (E0804) where a kernel does not run a call of these extents and sizes."""
    if reason := refusal(plan, extents, sizes):
        raise LaunchError(Diagnostic("E0804", reason, help="leave `route` and `config` out, or take others"))


def kernel_sources(plans: Iterable[Plan]) -> list[KernelSource]:
    """Return the sources from which evt.compilation makes libraries."""
    return [source_of(emitted(each), each, launches=True) for each in plans]
