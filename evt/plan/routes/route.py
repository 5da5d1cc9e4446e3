"""A route: one record of a way to compile programs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from evt.plan.configurations.config import Config
from evt.plan.kernels.kernel import Planner
from evt.plan.problem import Problem, Shape
from evt.plan.rules.rule import Rule
from evt.plan.target import Family, Generation, Target

#: The kind of a route's kernel: a fused epilogue of CUTLASS, a visitor tree, a mainloop fusion, or a kernel of evt.
Kind = Literal["stock", "evt", "mainloop", "own"]
#: The most batches of a non-persistent kernel: they are the grid's third dimension.
GRID_Z = 65535


@dataclass(frozen=True, slots=True, eq=False)
class Kernel:
    """A route's kernel for one family of targets.

    ``planner`` plans it and names its template. ``configurations`` returns the possible configurations of a problem
    that the route's rules admit, the general configuration first. ``space`` returns further configurations, which
    tuning may try. ``max_batches`` is None if there is no limit.
    """

    planner: Planner
    configurations: Callable[[Problem], tuple[Config, ...]]
    max_batches: int | None = GRID_Z
    space: Callable[[Problem], Iterable[Config]] = lambda problem: ()


@dataclass(frozen=True, slots=True, eq=False)
class Route:
    """A way to compile programs, tried in the order of evt.plan.routes.order.

    ``summary`` is its description in ``evt explain``. ``rules`` are the conditions that a problem must meet. ``shapes``
    are its shapes of problems. ``kernels`` has its kernel for each family of targets that the rules admit.
    ``otherwise`` is a formula or option that a user can type instead if the rules refuse. ``suits`` is a rule about
    speed. If it fails, later routes are preferred. If it holds in part, the route's kernels are built beside the
    preferred route's. Each call then takes the kernel with the best estimate for its sizes. ``beside`` is a rule about
    problems: if it holds, a route that suits has kernels built beside the kernels of an earlier route. ``alone`` tells
    the problems that no other route compiles: for these a user reads only this route's refusals. ``special``: whether
    the route is for no other problems. ``printed``: whether its text is printed where no route is requested.
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
    beside: Rule | None = None
    alone: Callable[[Problem], bool] = lambda problem: False
    special: bool = False
    printed: bool = True

    def kernel(self, target: Target) -> Kernel:
        """Return the kernel for a target that the rules admit."""
        family = target.family(self.generation)
        assert family is not None
        return self.kernels[family]
