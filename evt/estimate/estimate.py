"""Estimates of kernels: ``estimate(plan, sizes, costs, card) -> Estimate``.

    time     the start, and the L4 norm of the tiles' duration and of the memory traffic; at least each bound
    bounds   the microseconds that each resource needs alone; the largest bounds the kernel

:mod:`evt.plan.speed` has the start and the duration of the tiles, in clock cycles of sm90. Other cards multiply at
other rates: their cycles count in proportion. The start runs at the clock rate of short kernels, tiles run at the rate
under load. Over 25 layers on an H200, estimates differ from measurements by 4 % (median) and 9 % (90th percentile).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from evt.estimate.costs import Costs
from evt.html import bar, page, table
from evt.plan import Plan, Survey
from evt.plan.cards import Card
from evt.plan.configurations.config import Config
from evt.plan.geometry.halo_schedule import EIGHTHS_A_CYCLE, LINE_BYTES, READ_BYTES
from evt.plan.halo_cost import THREADS
from evt.plan.plan import DepthwiseConvolution, FilterGradient, HaloConvolution
from evt.plan.speed import depth, duration, evaluation, rate, refusal, traffic, waves

#: Warpgroups of an SM that evaluate epilogues at a time.
_EVALUATING = 2
#: Bytes that an SM loads from L2 in a cycle.
_L2_BYTES = LINE_BYTES * EIGHTHS_A_CYCLE / 8


@dataclass(frozen=True, repr=False)
class Estimate:
    """The estimated time of a kernel in microseconds, and the time that each resource needs alone.

    ``instructions`` are the ones of the epilogue's functions for each element of the product.
    """

    card: Card
    route: str
    config: str
    us: float
    bounds: Mapping[str, float]
    instructions: int
    costs: Costs
    #: The origin of the constants.
    source: str

    @property
    def bound(self) -> str:
        """The resource that needs the most time."""
        return max(self.bounds, key=self.bounds.__getitem__)

    @property
    def tflops(self) -> float:
        """The multiplications and additions of the product in a second, in units of 10^12."""
        return self.costs.flops / self.us / 1e6

    def to_json(self) -> dict[str, object]:
        """Return a dict ready for JSON."""
        return {
            "gpu": self.card.name,
            "fitted": self.card.is_fitted,
            "source": self.source,
            "route": self.route,
            "config": self.config,
            "us": round(self.us, 3),
            "bound": self.bound,
            "bounds_us": {name: round(us, 3) for name, us in self.bounds.items()},
            "epilogue_instructions": self.instructions,
            "tflops": round(self.tflops, 3),
        }

    def __str__(self) -> str:
        parts = ", ".join(f"{name} {us:.1f}" for name, us in self.bounds.items())
        return (
            f"estimate: {self.us:.1f} us on {self.card.name} ({self.source}), bound by {self.bound}\n"
            f"   us of each resource alone: {parts}\n"
            f"   {self.tflops:.0f} TFLOP/s; {self.instructions} instructions of the epilogue for each element of acc"
        )

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        longest = max(self.bounds.values())
        rows = [(name, f"{us:.1f}", bar(us / longest)) for name, us in self.bounds.items()]
        marks = ["chosen" if name == self.bound else "" for name in self.bounds]
        kernel = f"{self.route} {self.config}: {self.us:.1f} us on {self.card.name} ({self.source})"
        return page(table(("resource", "us alone", ""), rows, kernel, numbers=("us alone",), marks=marks))


def estimate(plan: Plan, sizes: Mapping[str, int], costs: Costs, card: Card) -> Estimate:
    """Return the estimate of a kernel. ``sizes`` are the extents of a problem, and the other sizes of a convolution."""
    found = duration(plan, sizes, card)
    rounds = waves(plan, sizes, card.multiprocessors)
    idle = found.work * (1 - rounds / math.ceil(rounds)) if rounds else 0.0
    memory = traffic(plan, sizes) / card.bytes_per_us
    bounds = {**_bounds(plan, sizes, costs, card), "memory": memory, "launch": found.start, "waves": idle}
    us = max(found.total, *bounds.values())
    return Estimate(card, plan.route, plan.config.name, us, bounds, plan.epilogue_instructions, costs, card.source)


def estimates(
    found: Survey, sizes: Mapping[str, int], costs: Costs, card: Card, *, wide: bool = False
) -> tuple[Estimate, ...]:
    """Return the estimates of all kernels of a survey that can run a problem, the fastest first.

    ``wide`` includes the search space of tuning.
    """
    plans = [
        made
        for each in found.asked
        if each.applies
        for made in map(each.try_plan, each.search_space.values() if wide else each.configs)
        if isinstance(made, Plan) and not refusal(made, sizes, found.problem.sizes)
    ]
    made = (estimate(plan, sizes, costs, card) for plan in plans)
    return tuple(sorted((each for each in made if each.us < math.inf), key=lambda each: each.us))


def _bounds(plan: Plan, sizes: Mapping[str, int], costs: Costs, card: Card) -> dict[str, float]:
    """Return the microseconds that the resources of all SMs need."""

    def shared_out(cycles: float) -> float:
        return card.microseconds(cycles / card.multiprocessors)

    elements = sizes["m"] * sizes["n"] * sizes.get("l", 1)
    evaluated = elements / (_EVALUATING * THREADS) * evaluation(plan)
    if isinstance(plan.mainloop, DepthwiseConvolution):
        multiplied = duration(plan, sizes, card).work
        return {"multiply-adds": multiplied, "epilogue instructions": shared_out(evaluated)}
    if isinstance(plan.mainloop, FilterGradient):
        return {"tensor cores": duration(plan, sizes, card).work, "epilogue instructions": shared_out(evaluated)}
    config, element_bytes = plan.config, plan.operand_bits / 8
    multiplications = costs.flops / 2 * plan.operand_bits / 16
    terms = depth(plan, sizes)
    tiles = elements / (config.tile[0] * config.tile[1])
    return {
        "tensor cores": shared_out(multiplications / rate(plan, card)),
        "L2": shared_out(tiles * _loaded(plan, sizes) * terms * element_bytes / _L2_BYTES),
        "shared memory": shared_out(tiles * _read(config) * terms * element_bytes / READ_BYTES),
        "epilogue instructions": shared_out(evaluated),
    }


def _loaded(plan: Plan, sizes: Mapping[str, int]) -> float:
    """Return the rows and columns that a tile loads from L2 for each element of k; clusters share them.

    A halo kernel loads a pixel once for all taps.
    """
    (m, n, _), (across, along, _) = plan.config.tile, plan.config.cluster
    if isinstance(plan.mainloop, HaloConvolution):
        taps = math.prod(size for name, size in sizes.items() if name.startswith("filter_"))
        return m / taps + n
    return m / along + n / across


def _read(config: Config) -> float:
    """Return the rows and columns that instructions read from shared memory for each element of k of a tile.

    A WGMMA instruction reads 64 rows and all columns of a tile; a warp of mma reads its own rows and columns.
    """
    m, n, _ = config.tile
    if config.schedule == "multistage":
        rows, columns, _ = config.warp
        return (m // rows) * (n // columns) * (rows + columns)
    return math.ceil(m / 64) * (64 + n)
