"""The results of tuning: a row for each kernel, and the kernel that later calls take."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from math import isfinite

from evt.diagnostics import visible
from evt.html import bar, page, table
from evt.measured import Timing

#: The sizes that a table shows: a convolution has more, groups have their :func:`evt.measured.size_class`.
_SHOWN = ("m", "n", "k", "l", "groups", "mean_m", "mean_n", "mean_k")

#: A kernel's name: its route and its configuration.
Name = tuple[str, str]


@dataclass(frozen=True, slots=True)
class KernelTime:
    """One kernel: its median times in ms with a cold and a warm L2 cache, or the reason that there are none.

    ``distance`` is the distance of its outputs from the first kernel's. ``samples`` is the number of cold samples: a
    slow kernel is stopped early. ``kept`` means that an earlier run measured the time.
    """

    route: str
    config: str
    ms: float | None = None
    distance: float | None = None
    failure: str = ""
    warm_ms: float | None = None
    samples: int = 0
    kept: bool = False


@dataclass(frozen=True, repr=False)
class Tuning:
    """The result of tuning, in the order in which the rules prefer kernels; later calls take ``chosen``.

    ``untuned`` is the kernel that a call takes without measurements. ``pruned`` counts the configurations that were not
    built, because the cost model expects them to be slow. ``unfit`` counts configurations that do not run the problem,
    ``failed`` the others without a time.
    """

    operation: str
    gpu: str
    target: str
    sizes: Mapping[str, int]
    rows: tuple[KernelTime, ...]
    chosen: Timing | None
    untuned: Name | None = None
    pruned: int = 0
    unfit: int = 0
    failed: int = 0
    seconds: float = 0.0

    @property
    def gain(self) -> float | None:
        """The time of the untuned choice over the time of the chosen kernel."""
        before = next((row.ms for row in self.rows if (row.route, row.config) == self.untuned), None)
        return before / self.chosen.ms if before is not None and self.chosen is not None else None

    @property
    def measured(self) -> int:
        """The number of kernels that this run measured."""
        return sum(row.ms is not None and not row.kept for row in self.rows)

    def to_json(self) -> dict[str, object]:
        """Return a dict ready for JSON; infinite values are null."""
        rows = [
            {**asdict(row), "distance": row.distance if row.distance is not None and isfinite(row.distance) else None}
            for row in self.rows
        ]
        more = {"sizes": dict(self.sizes), "rows": rows, "gain": self.gain}
        return {"ok": self.chosen is not None, **asdict(self), **more}

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        slowest = max((row.ms for row in self.rows if row.ms is not None), default=1.0)
        rows = [
            (row.route, row.config, row.failure if row.ms is None else f"{row.ms:.4f}", bar((row.ms or 0.0) / slowest))
            for row in self.rows
        ]
        marks = ["failed" if row.ms is None else "chosen" if self._takes(row) else "" for row in self.rows]
        title, *_ = str(self).splitlines()
        return page(table(("route", "configuration", "ms", ""), rows, title, numbers=("ms",), marks=marks))

    def _takes(self, row: KernelTime) -> bool:
        return self.chosen is not None and (row.route, row.config) == (self.chosen.route, self.chosen.config)

    def __str__(self) -> str:
        sizes = " ".join(f"{mode}={size}" for mode, size in self.sizes.items() if mode in _SHOWN)
        lines = [f"{self.operation} on {self.gpu} ({self.target}): {sizes}"]
        width = max((len(f"{row.route} {row.config}".strip()) for row in self.rows), default=0)
        for row in self.rows:
            result = row.failure if row.ms is None else f"{row.ms:.4f} ms"
            warm = f", {row.warm_ms:.4f} ms with a warm L2 cache" if row.warm_ms is not None else ""
            kept = ", measured earlier" if row.kept else ""
            name = f"{row.route} {row.config}".strip()
            lines.append(f"{'->' if self._takes(row) else '  '} {name:<{width}}  {result}{warm}{kept}")
        if self.pruned:
            lines.append(f"{self.pruned} more configurations were not built: the cost model expects them to be slower")
        if self.gain is not None and self.gain > 1:
            lines.append(f"{self.gain:.3f} times as fast as the untuned choice")
        return visible("\n".join(lines), keep="\n")
