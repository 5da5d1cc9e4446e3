"""The kernels behind a call: planned, built and loaded once for a signature."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from evt.build import KernelSource, build_and_use
from evt.diagnostics import Diagnostic
from evt.emission import emit
from evt.errors import LaunchError
from evt.plan import Plan, Problem, Target, find_target, survey
from evt.plan.speed import fastest
from evt.runtime.library import Library, load_library
from evt.runtime.tensors import Bound

if TYPE_CHECKING:
    from evt.program import Program


@dataclass(frozen=True)
class Kernels:
    """The kernels of one signature: a plan and a library for each configuration."""

    plans: tuple[Plan, ...]
    libraries: tuple[Library, ...]

    def best(self, sizes: Mapping[str, int], multiprocessors: int) -> tuple[Plan, Library]:
        """The kernel for a problem's extents, by mode."""
        choice = fastest(self.plans, sizes, multiprocessors)
        return self.plans[choice], self.libraries[choice]


def make_kernels(program: Program, bound: Bound, target: Target, atomic: bool = False) -> Kernels:
    """Plan, build and load. Raises TargetError, BuildError, LaunchError."""
    plans = plan_kernels(program, bound, target, atomic)
    libraries = build_and_use(kernel_sources(plans), lambda index, path: load_library(path, plans[index]))
    return Kernels(plans, tuple(libraries))


def plan_kernels(program: Program, bound: Bound, target: Target, atomic: bool = False) -> tuple[Plan, ...]:
    """The plans of all configurations that serve a bound call. Raises TargetError, LaunchError (E0804)."""
    settings = program.settings
    found = survey(call_problem(program, bound, target, atomic), settings.route, settings.config)
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


def call_problem(program: Program, bound: Bound, target: Target, atomic: bool = False) -> Problem:
    """What the planner is asked for a bound call."""
    dag = program.optimise(bound.dag)
    return Problem(dag, bound.signature.only({*dag.input, *dag.output}), target, program.options(atomic))


def is_empty(bound: Bound) -> bool:
    """Whether a call's product has no elements or no terms; a convolution may well have no padding."""
    return any(size == 0 for name, size in bound.sizes.items() if "pad_" not in name)


def kernel_sources(plans: Iterable[Plan]) -> list[KernelSource]:
    """What evt.build makes libraries of."""
    return [KernelSource(emit(each), each.target.gencode) for each in plans]


def refuse_capture() -> None:
    """Raise LaunchError (E0803) inside CUDA graph capture, which loading a kernel may end by synchronising."""
    if torch.cuda.is_available() and torch.cuda.is_current_stream_capturing():
        raise LaunchError(
            Diagnostic(
                "E0803",
                "a program's first call with these types and layouts is inside CUDA graph capture",
                help="call it once before the capture, which builds and loads its kernel",
            )
        )


def device_target(index: int) -> Target:
    """The target of a CUDA device. Raises TargetError for one that evt does not know."""
    major, minor = torch.cuda.get_device_capability(index)
    return find_target(f"sm{major}{minor}")
