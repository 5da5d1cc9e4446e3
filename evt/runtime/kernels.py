"""The kernels behind a call: chosen, planned, built and loaded once for a signature."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch

from evt.compilation import KernelSource, build_and_use, source_of
from evt.diagnostics import Diagnostic
from evt.emission import emitted
from evt.errors import LaunchError
from evt.ir import TypedDag
from evt.measured import Store, applicable, measurements
from evt.plan import Plan, Problem, Route, Target, find_target, survey
from evt.plan.batches import launches, refusal
from evt.plan.plan import HaloProduct
from evt.plan.routes import order
from evt.plan.speed import fastest
from evt.request import Request, optimised_for, options
from evt.runtime.bound import Bound
from evt.runtime.library import Library, load_library


@dataclass(frozen=True)
class Kernels:
    """The kernels of one signature: a plan and a library for each configuration."""

    plans: tuple[Plan, ...]
    libraries: tuple[Library, ...]

    def best(self, sizes: Mapping[str, int], multiprocessors: int) -> tuple[Plan, Library]:
        """Return the kernel for a problem's extents, given by mode. Raise LaunchError (E0804) where it takes others."""
        fitting = [at for at, plan in enumerate(self.plans) if len(launches_of(plan, sizes["l"])) == 1]
        fitting = fitting or list(range(len(self.plans)))
        choice = fitting[fastest([self.plans[at] for at in fitting], sizes, multiprocessors)]
        check_depth(self.plans[choice], sizes)
        return self.plans[choice], self.libraries[choice]


def is_atomic(request: Request) -> bool:
    """Return whether reductions may be combined in any order: the program asks for that and PyTorch allows it."""
    return request.settings.deterministic is False and not torch.are_deterministic_algorithms_enabled()


def call_problem(request: Request, bound: Bound, target: Target, atomic: bool = False) -> Problem:
    """Return the planner's problem for a bound call."""
    dag = optimised_for(request, bound.dag.operands, bound.absent)
    return Problem(dag, bound.signature.only({*dag.input, *dag.output}), target, options(request.settings, atomic))


def measured_best(request: Request, bound: Bound, atomic: bool = False) -> Request:
    """Return the program with the kernel that was measured to be best for a bound call, or else as it is.

    The user's choice of a route or configuration stays.
    """
    if request.is_forced or not Store().exists():
        return request
    problem = call_problem(request, bound, device_target(bound.index), atomic)
    found = measurements(problem, bound.sizes, torch.cuda.get_device_name(bound.index))
    best = applicable(survey(problem), found[0]) if found else None
    return request if best is None else request.forced(best.route, best.config)


def plan_kernels(request: Request, bound: Bound, target: Target, atomic: bool = False) -> tuple[Plan, ...]:
    """Return the plans of all configurations that serve a bound call. Raise TargetError, LaunchError (E0804)."""
    settings = request.settings
    found = survey(call_problem(request, bound, target, atomic), settings.route, settings.config)
    check_batches(bound.dag, found.chosen.route, target, bound.sizes["l"])
    return found.defaults


def launches_of(plan: Plan, batches: int) -> list[tuple[int, int]]:
    """Return the first batch and the number of batches of each launch: one launch where the kernel takes them all."""
    return launches(route_of(plan).kernel(plan.target).max_batches, batches)


def route_of(plan: Plan) -> Route:
    """Return the route that a plan takes."""
    return next(each for each in order.ROUTES if each.name == plan.route)


def check_batches(dag: TypedDag, route: Route, target: Target, batches: int) -> None:
    """Raise LaunchError (E0804) for batches that a kernel does not take, and that cannot be divided among launches."""
    most = route.kernel(target).max_batches
    if reason := refusal(dag, most, batches):
        other = ", or take evt-3x, for which A, B and D have to be aligned" if "3x" in target.families else ""
        message = f"the route {route.name} takes at most {most} batches in a launch: {reason}"
        raise LaunchError(Diagnostic("E0804", message, help=f"split the batch{other}"))


def check_depth(plan: Plan, sizes: Mapping[str, int]) -> None:
    """Raise LaunchError (E0804) for a product that is too short to be shared."""
    loop, depth = plan.mainloop, plan.config.tile[2]
    if isinstance(loop, HaloProduct) and loop.shared and sizes["k"] <= depth:
        message = f"k = {sizes['k']}: {plan.config.name} shares tiles among thread blocks that take {depth} of k each"
        raise LaunchError(Diagnostic("E0804", message, help="leave `config` out, or take one that shares no tiles"))


def make_kernels(request: Request, bound: Bound, target: Target, atomic: bool = False) -> Kernels:
    """Plan, build and load. Raise TargetError, BuildError, LaunchError."""
    plans = plan_kernels(request, bound, target, atomic)
    sources = kernel_sources(plans)
    libraries = build_and_use(sources, lambda at, path: load_library(path, plans[at], sources[at].name))
    return Kernels(plans, tuple(libraries))


def kernel_sources(plans: Iterable[Plan]) -> list[KernelSource]:
    """Return the sources from which evt.compilation makes libraries."""
    return [source_of(emitted(each), each) for each in plans]


def refuse_capture() -> None:
    """Raise LaunchError (E0803) inside CUDA graph capture, which a synchronisation while loading could end."""
    if torch.cuda.is_available() and torch.cuda.is_current_stream_capturing():
        raise LaunchError(
            Diagnostic(
                "E0803",
                "a program's first call with these types and layouts is inside CUDA graph capture",
                help="call it once before the capture, which builds and loads its kernel",
            )
        )


def device_target(index: int) -> Target:
    """Return the target of a CUDA device. Raise TargetError for an unknown one."""
    major, minor = torch.cuda.get_device_capability(index)
    return find_target(f"sm{major}{minor}")
