"""The numbers of a measurement."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from evt.html import bar, page, table

if TYPE_CHECKING:
    from evt.bench.case import Case

EVT, AGAIN, COMPILE = "evt", "evt again", "compile"


@dataclass(frozen=True, slots=True)
class Summary:
    """A summary of samples: the median and the quartiles."""

    median: float
    low: float
    high: float
    samples: int

    @property
    def spread(self) -> float:
        """The interquartile range over the median."""
        return (self.high - self.low) / self.median


def summarise(samples: Sequence[float]) -> Summary:
    """Return the median and quartiles of at least one sample."""
    if len(samples) == 1:
        return Summary(samples[0], samples[0], samples[0], 1)
    low, median, high = statistics.quantiles(samples, n=4, method="inclusive")
    return Summary(median, low, high, len(samples))


@dataclass(frozen=True, slots=True)
class VersionResult:
    """One version of a case: its times in ms and its error against the oracle, or the reason that there are none."""

    version: str
    time: Summary | None = None
    error: float | None = None
    failure: str = ""


@dataclass(frozen=True, repr=False)
class CaseResult:
    """All versions of one case.

    ``exposed`` counts samples that were discarded because the GPU waited for the host. ``wrong`` means that evt's
    result was wrong. ``kernel`` is the route and the configuration of evt on a GPU.
    """

    case: Case
    rows: tuple[VersionResult, ...]
    bytes: Mapping[str, int]
    exposed: int = 0
    wrong: bool = False
    kernel: tuple[str, str] | None = None

    def __str__(self) -> str:
        times = ", ".join(
            f"{row.version} {f'{row.time.median:.4f} ms' if row.time else row.failure or '-'}" for row in self.rows
        )
        return f"{self.case.name}: {times}"

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        slowest = max((row.time.median for row in self.rows if row.time), default=1.0)
        rows = []
        for row in self.rows:
            ratio = self.ratio(row.version, COMPILE)
            error = "" if row.error is None else f"{row.error:.1e}"
            shown = row.failure if row.time is None else f"{row.time.median:.4f}"
            median = row.time.median if row.time else 0.0
            rows.append((row.version, shown, bar(median / slowest), "" if ratio is None else f"{ratio:.2f}", error))
        marks = ["failed" if row.failure else "chosen" if row.version == EVT else "" for row in self.rows]
        headings = ("version", "ms", "", f"/ {COMPILE}", "error")
        return page(table(headings, rows, self.case.name, numbers=("ms", f"/ {COMPILE}", "error"), marks=marks))

    def row(self, version: str) -> VersionResult | None:
        return next((row for row in self.rows if row.version == version), None)

    def ms(self, version: str) -> float | None:
        row = self.row(version)
        return row.time.median if row and row.time else None

    def ratio(self, version: str, base: str) -> float | None:
        """Return the time of a version over another's; None if either was not timed."""
        time, against = self.ms(version), self.ms(base)
        return time / against if time is not None and against else None

    @property
    def contender(self) -> str | None:
        """The fastest baseline that computes the whole formula."""
        times = {row.version: row.time.median for row in self.rows if row.time is not None}
        others = times.keys() - {EVT, AGAIN, self.case.product}
        return min(others, key=times.__getitem__, default=None)

    @property
    def noise(self) -> float | None:
        """The relative difference between two measurements of one kernel."""
        ratio = self.ratio(AGAIN, EVT)
        return abs(ratio - 1) if ratio is not None else None

    @property
    def tflops(self) -> float | None:
        ms = self.ms(EVT)
        return self.case.flops / ms / 1e9 if ms else None

    @property
    def gbytes_per_s(self) -> float | None:
        ms = self.ms(EVT)
        return sum(self.bytes.values()) / ms / 1e6 if ms else None

    @property
    def within_bar(self) -> bool | None:
        ratio = self.ratio(EVT, COMPILE)
        return ratio <= self.case.bar if ratio is not None and self.case.bar is not None else None


@dataclass(frozen=True)
class EpilogueResult:
    """Epilogues of one product, by name, timed in the same rounds; the first case is the bare store of D.

    ``bytes`` has the size of each case's tensors; ``copy`` is the time of moving ``copied_bytes``, read and written.
    ``exposed`` counts samples that were discarded because the GPU waited for the host; ``wrong`` has the epilogues
    whose result was wrong.
    """

    cases: tuple[Case, ...]
    rows: tuple[VersionResult, ...]
    bytes: Mapping[str, Mapping[str, int]]
    copy: Summary | None
    copied_bytes: int
    exposed: int = 0
    wrong: tuple[str, ...] = ()

    @property
    def bare(self) -> str:
        return self.cases[0].name

    def ms(self, name: str) -> float | None:
        row = next((row for row in self.rows if row.version == name), None)
        return row.time.median if row and row.time else None

    def ratio(self, name: str) -> float | None:
        """Return the time of an epilogue over the bare store's; None if either was not timed."""
        time, bare = self.ms(name), self.ms(self.bare)
        return time / bare if time is not None and bare else None

    @property
    def noise(self) -> float | None:
        """The relative difference between two measurements of the bare store."""
        ratio = self.ratio(AGAIN)
        return abs(ratio - 1) if ratio is not None else None

    @property
    def gbytes_per_s(self) -> float | None:
        """The bandwidth of the copy."""
        return self.copied_bytes / self.copy.median / 1e6 if self.copy else None

    def extra_bytes(self, name: str) -> int | None:
        """Return the bytes that an epilogue reads and writes beyond the bare store's."""
        if name == AGAIN or name not in self.bytes or self.bare not in self.bytes:
            return None
        return sum(self.bytes[name].values()) - sum(self.bytes[self.bare].values())

    def bound(self, name: str) -> float | None:
        """Return the time of the bare store plus the time to copy the extra bytes, in ms."""
        bare, extra, bandwidth = self.ms(self.bare), self.extra_bytes(name), self.gbytes_per_s
        return bare + extra / bandwidth / 1e6 if bare is not None and extra is not None and bandwidth else None

    def over_bound(self, name: str) -> float | None:
        """Return the time of an epilogue over its bound."""
        time, bound = self.ms(name), self.bound(name)
        return time / bound if time is not None and bound else None


@dataclass(frozen=True)
class HostResult:
    """Host time of one call in microseconds, by the name of the call."""

    case: Case
    calls: Mapping[str, Summary]

    def ratio(self, call: str, base: str) -> float:
        return self.calls[call].median / self.calls[base].median
