"""What a route is: one record of all that is decided about a way to compile programs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from evt.plan.configurations.config import Config
from evt.plan.kernels.kernel import Planner
from evt.plan.problem import Problem, Shape
from evt.plan.rules.rule import Rule
from evt.plan.target import Family, Generation, Target

#: The kind of a route's kernel: a fused epilogue of CUTLASS's own, a visitor tree, a mainloop fusion, or
#: a kernel of ours.
Kind = Literal["stock", "evt", "mainloop", "own"]
#: The most batches of a non-persistent kernel, for which they are the grid's third dimension.
GRID_Z = 65535


@dataclass(frozen=True, slots=True, eq=False)
class Kernel:
    """A route's kernel for one family of targets.

    ``planner`` decides about it and names the template that prints it; ``configurations`` are those that it may have
    for a problem that the route's rules admit, the general one first. ``max_batches`` is None where there is no limit.
    """

    planner: Planner
    configurations: Callable[[Problem], tuple[Config, ...]]
    max_batches: int | None = GRID_Z


@dataclass(frozen=True, slots=True, eq=False)
class Route:
    """A way to compile programs, tried in the order of evt.plan.routes.order.

    ``summary`` is its description in ``evt explain``. ``rules`` are the conditions that a problem must meet, ``shapes``
    the shapes of problems that it concerns, and ``kernels`` has its kernel for each family of targets that
    the rules admit. ``otherwise`` is what a user can type instead where the rules refuse. ``suits`` is a rule about
    speed: where it fails, routes that come later are preferred; where it holds in part, its kernels are built beside
    those of the preferred route, and each call takes what is expected to be the fastest for its sizes. ``alone`` tells
    the problems that no other route compiles: there, what it refuses is what a user is told, and elsewhere it is not.
    """

    name: str
    kind: Kind
    generation: Generation
    summary: str
    rules: tuple[Rule, ...]
    kernels: Mapping[Family, Kernel]
    shapes: tuple[Shape, ...] = ("gemm", "convolution")
    otherwise: str = ""
    suits: Rule | None = None
    alone: Callable[[Problem], bool] | None = None

    def kernel(self, target: Target) -> Kernel:
        """Return the kernel for a target that the rules admit."""
        family = target.family(self.generation)
        assert family is not None
        return self.kernels[family]
