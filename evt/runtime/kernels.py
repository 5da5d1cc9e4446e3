"""The kernels behind a call: chosen, planned, built and loaded once for a signature."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import TypeVar

import torch

from evt.compilation import KernelSource, build, build_ahead, build_and_use, has_tools
from evt.compilation.policy import granted, may_compile
from evt.diagnostics import Diagnostic
from evt.errors import BuildError, LaunchError, TargetError
from evt.measured import applicable, fitted, may_be_measured, measurements
from evt.plan import Plan, Problem, Target, find_target, survey
from evt.plan.cards import Card, card_of
from evt.plan.speed import fastest, refusal
from evt.request import Request, optimised_for, options, surveyed
from evt.runtime.bound import Bound
from evt.runtime.library import Library, load_library
from evt.runtime.plans import check_batches, check_sizes, kernel_sources, launches_of

_Made = TypeVar("_Made")


@dataclass(frozen=True)
class Kernel:
    """A plan and its loaded library."""

    plan: Plan
    library: Library


@dataclass(frozen=True)
class OfferedKernel:
    """A plan and the source of its library, which is built or found, and loaded, when a call first takes it.

    ``compiles``: whether the process might compile when the kernel was offered; if so, it may be built later.
    """

    plan: Plan = field(compare=False)
    source: KernelSource
    compiles: bool = field(compare=False)

    @cached_property
    def library(self) -> Library:
        """Build and load. Raise BuildError, LaunchError."""
        with granted(self.compiles):
            (made,) = build_and_use([self.source], lambda _, path: load_library(path, self.plan, self.source.name))
        return made


@dataclass(frozen=True)
class Kernels:
    """The kernels of a layer, one for each configuration.

    A layer is a signature with the extents of a convolution's weights. The sizes of its first call choose the
    configurations. Later calls take one of these kernels for any size and number of images: a new size asks for no
    other kernel. Only a size that no kernel of the layer can run adds kernels.

    The first call waits for the kernel that it takes; a thread builds the others meanwhile (:func:`build_ahead`). A
    size that comes before its kernel is built waits for that one.

    A class has a fixed list of configurations, its route's: to build all of them takes minutes, and to plan for each
    new size makes its call wait. By the cost model, a size takes 1.06 times as long by another size's kernels as by its
    own on average (7,000 pairs of image sizes). ``op.tune`` measures a size's own kernels and keeps the fastest.
    """

    each: tuple[Kernel | OfferedKernel, ...] = ()

    @property
    def plans(self) -> tuple[Plan, ...]:
        """The plans of the kernels."""
        return tuple(kernel.plan for kernel in self.each)

    def run(self, bound: Bound) -> bool:
        """Return whether one of the kernels can run a call."""
        return any(not refusal(plan, bound.sizes, bound.plan_sizes) for plan in self.plans)

    def with_others(self, others: Kernels) -> Kernels:
        """Return these kernels, and the kernels of ``others`` that are not among them."""
        return Kernels((*self.each, *(kernel for kernel in others.each if kernel not in self.each)))

    def best(self, bound: Bound, card: Card) -> Kernel | OfferedKernel:
        """Return the fastest kernel for a call by the cost model.

        It runs the call in one launch if one of the kernels can. Raise LaunchError (E0804) where none can run it.
        """
        return self.each[best_of(self.plans, bound, card)]


def best_of(plans: Sequence[Plan], bound: Bound, card: Card | int) -> int:
    """Return the index of the fastest plan for a call; see :meth:`Kernels.best`."""
    able = [at for at, plan in enumerate(plans) if not refusal(plan, bound.sizes, bound.plan_sizes)]
    if not able:
        check_sizes(plans[0], bound.sizes, bound.plan_sizes)
    fitting = [at for at in able if len(launches_of(plans[at], bound.sizes["l"])) == 1] or able
    return fitting[fastest([plans[at] for at in fitting], bound.sizes, card)]


def device_card(index: int, target: str) -> Card:
    """Return the card of a device with kernels for a target, as cost models see it."""
    properties = torch.cuda.get_device_properties(index)
    return fitted(card_of(getattr(properties, "name", ""), target, properties.multi_processor_count))


@dataclass(frozen=True)
class BuiltKernel:
    """A plan, its library, and the prefix of the library's functions. It pickles, and a process loads it when used."""

    plan: Plan
    path: Path
    name: str

    def load(self) -> Kernels:
        """Load the library. Raise LaunchError."""
        return Kernels((Kernel(self.plan, load_library(self.path, self.plan, self.name)),))


#: Everything that decides the best kernel of a call.
CallKey = tuple[object, ...]


def call_key(request: Request, bound: Bound, target: Target, atomic: bool) -> CallKey:
    """Return the key of a call's best kernel. It pickles, and is equal in all processes."""
    sizes, forced = tuple(sorted(bound.sizes.items())), (request.settings.route, request.settings.config)
    return bound.dag, bound.signature, bound.plan_sizes, sizes, target.name, atomic, forced


def is_atomic(request: Request) -> bool:
    """Return whether reductions may be combined in any order: the program asks for that and PyTorch allows it."""
    return request.settings.deterministic is False and not torch.are_deterministic_algorithms_enabled()


def call_problem(request: Request, bound: Bound, target: Target, atomic: bool = False) -> Problem:
    """Return the planner's problem for a bound call."""
    dag = optimised_for(request, bound.dag.operands, bound.absent)
    signature = bound.signature.only({*dag.input, *dag.output})
    asked = options(request.settings, atomic)
    return Problem(dag, signature, target, asked, ragged=request.ragged, sizes=bound.plan_sizes)


def measured_best(request: Request, bound: Bound, atomic: bool = False) -> Request:
    """Return the program with the kernel that was measured to be best for a bound call, or the unchanged program.

    The user's choice of a route or configuration stays.
    """
    if not request.may_be_measured or not may_be_measured():
        return request
    problem = call_problem(request, bound, device_target(bound.index), atomic)
    found = measurements(problem, bound.sizes, torch.cuda.get_device_name(bound.index))
    best = applicable(survey(problem), found[0]) if found else None
    return request if best is None else request.forced(best.route, best.config)


def plan_kernels(request: Request, bound: Bound, target: Target, atomic: bool = False) -> tuple[Plan, ...]:
    """Return the plans of all configurations that serve a bound call. Raise TargetError, LaunchError (E0804)."""
    found = surveyed(request, call_problem(request, bound, target, atomic))
    check_batches(found.problem.dag, found.chosen.route, target, bound.sizes["l"])
    return found.defaults


def make_kernels(
    request: Request, bound: Bound, target: Target, atomic: bool = False, *, alone: bool = False
) -> Kernels:
    """Plan the kernels, build and load the best one for the call, and let a thread build the others.

    If this process may not compile, or lacks the tools for some of them, all are found now, or the call fails. If
    ``alone``, the best one is the only one.

    Raise TargetError, BuildError, LaunchError.
    Without nvcc or CUTLASS, own kernels stand in for CUTLASS's where there are any: they need neither.
    """
    plans = plan_kernels(request, bound, target, atomic)

    def begin(plans: tuple[Plan, ...]) -> Kernels:
        best = best_of(plans, bound, device_card(bound.index, target.name))
        if alone:
            plans, best = (plans[best],), 0
        sources = kernel_sources(plans)
        compiles = may_compile()
        if not compiles or not (all(each.alone for each in sources) or has_tools()):
            build(sources)
        made = tuple(OfferedKernel(plan, source, compiles) for plan, source in zip(plans, sources, strict=True))
        _ = made[best].library
        build_ahead([*sources[:best], *sources[best + 1 :]])
        return Kernels(made)

    return _made(request, partial(call_problem, request, bound, target, atomic), plans, begin)


def build_for(request: Request, bound: Bound, target: Target, atomic: bool = False) -> int:
    """Build the kernels of a bound call, or their stand-ins; return their number.

    Raise TargetError, BuildError, LaunchError (E0804).
    """
    plans = plan_kernels(request, bound, target, atomic)
    problem = partial(call_problem, request, bound, target, atomic)
    return _made(request, problem, plans, lambda found: len(build(kernel_sources(found))))


def _made(
    request: Request,
    problem: Callable[[], Problem],
    plans: tuple[Plan, ...],
    make: Callable[[tuple[Plan, ...]], _Made],
) -> _Made:
    """Make the kernels of plans, or own kernels if tools are missing. Raise BuildError."""
    try:
        return make(plans)
    except BuildError as error:
        if request.is_forced or not {each.code for each in error.diagnostics} <= {"E0701", "E0702"}:
            raise
        try:
            return make(own_plans(problem()))
        except (TargetError, BuildError):
            raise error from None


def own_plans(problem: Problem) -> tuple[Plan, ...]:
    """Return the plans of own kernels, which need neither nvcc nor CUTLASS. Raise TargetError."""
    return survey(problem).asked_for("own").defaults


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
