"""The kernels behind a call: chosen, planned, built and loaded once for a signature."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch

from evt.build import KernelSource, build_and_use
from evt.diagnostics import Diagnostic
from evt.emission import emit
from evt.errors import LaunchError
from evt.measured import Store, applicable, measurements
from evt.plan import Plan, Problem, Target, find_target, survey
from evt.plan.speed import fastest
from evt.runtime.bound import Bound
from evt.runtime.library import Library, load_library
from evt.spec import Spec, optimised_for, options


@dataclass(frozen=True)
class Kernels:
    """The kernels of one signature: a plan and a library for each configuration."""

    plans: tuple[Plan, ...]
    libraries: tuple[Library, ...]

    def best(self, sizes: Mapping[str, int], multiprocessors: int) -> tuple[Plan, Library]:
        """Return the kernel for a problem's extents, given by mode."""
        choice = fastest(self.plans, sizes, multiprocessors)
        return self.plans[choice], self.libraries[choice]


def is_atomic(spec: Spec) -> bool:
    """Return whether reductions may be combined in any order: the program asks for that and PyTorch allows it."""
    return spec.settings.deterministic is False and not torch.are_deterministic_algorithms_enabled()


def call_problem(spec: Spec, bound: Bound, target: Target, atomic: bool = False) -> Problem:
    """Return the planner's problem for a bound call."""
    dag = optimised_for(spec, bound.dag.operands, bound.absent)
    return Problem(dag, bound.signature.only({*dag.input, *dag.output}), target, options(spec.settings, atomic))


def measured_best(spec: Spec, bound: Bound, atomic: bool = False) -> Spec:
    """Return the program with the kernel that was measured to be best for a bound call, or else as it is.

    The user's choice of a route or configuration stays.
    """
    if spec.is_forced or not Store().exists():
        return spec
    problem = call_problem(spec, bound, device_target(bound.index), atomic)
    found = measurements(problem, bound.sizes, torch.cuda.get_device_name(bound.index))
    best = applicable(survey(problem), found[0]) if found else None
    return spec if best is None else spec.forced(best.route, best.config)


def plan_kernels(spec: Spec, bound: Bound, target: Target, atomic: bool = False) -> tuple[Plan, ...]:
    """Return the plans of all configurations that serve a bound call. Raise TargetError, LaunchError (E0804)."""
    settings = spec.settings
    found = survey(call_problem(spec, bound, target, atomic), settings.route, settings.config)
    plans, most = found.defaults, found.chosen.route.kernel(target).max_batches
    if most is not None and bound.sizes["l"] > most:
        raise LaunchError(
            Diagnostic(
                "E0804",
                f"{bound.sizes['l']} batches: the route {plans[0].route} takes at most {most}",
                help="split the batch" + (", or align A, B and D for evt-3x" if "3x" in target.families else ""),
            )
        )
    return plans


def make_kernels(spec: Spec, bound: Bound, target: Target, atomic: bool = False) -> Kernels:
    """Plan, build and load. Raise TargetError, BuildError, LaunchError."""
    plans = plan_kernels(spec, bound, target, atomic)
    libraries = build_and_use(kernel_sources(plans), lambda index, path: load_library(path, plans[index]))
    return Kernels(plans, tuple(libraries))


def kernel_sources(plans: Iterable[Plan]) -> list[KernelSource]:
    """Return the sources from which evt.build makes libraries."""
    return [KernelSource(emit(each), each.target.gencode) for each in plans]


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
