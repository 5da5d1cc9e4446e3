"""Search spaces of tuning: the configurations of a kernel family beyond the ones that calls choose from, as data."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise, product

from evt.plan.configurations.config import Config

#: (tile rows, tile columns, thread blocks along the rows and columns of a cluster, pipeline stages or 0) to a
#: configuration; None if the kernel has no such configuration.
Make = Callable[[int, int, tuple[int, int], int], Config | None]


@dataclass(frozen=True, slots=True)
class Space:
    """A search space: all combinations of tiles, clusters and pipeline stages.

    ``accumulators`` are the most elements of a tile for each thread. ``stages`` is (0,) for kernels whose stages fill
    the shared memory.
    """

    make: Make
    rows: tuple[int, ...]
    columns: tuple[int, ...]
    threads: int
    accumulators: int
    clusters: tuple[tuple[int, int], ...] = ((1, 1),)
    stages: tuple[int, ...] = (0,)

    def configs(self) -> Iterator[Config]:
        """Yield the configurations."""
        for m, n, cluster, stages in product(self.rows, self.columns, self.clusters, self.stages):
            if m * n <= self.accumulators * self.threads:
                config = self.make(m, n, cluster, stages)
                if config is not None:
                    yield config


def interpolated(points: tuple[tuple[int, float], ...], at: int) -> float:
    """Return a value between the points of a curve, which are sorted; beyond the ends, the value of the end."""
    if at <= points[0][0]:
        return points[0][1]
    for (x0, y0), (x1, y1) in pairwise(points):
        if at <= x1:
            return y0 + (y1 - y0) * (at - x0) / (x1 - x0)
    return points[-1][1]
