"""What a measurement gives, in numbers."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from evt.bench.case import Case

EVT, AGAIN, COMPILE, MM = "evt", "evt again", "compile", "mm"


@dataclass(frozen=True, slots=True)
class Summary:
    """Samples in short: the median and the quartiles."""

    median: float
    low: float
    high: float
    samples: int

    @property
    def spread(self) -> float:
        """The interquartile range over the median."""
        return (self.high - self.low) / self.median


def summarise(samples: Sequence[float]) -> Summary:
    """The median and quartiles of at least one sample."""
    if len(samples) == 1:
        return Summary(samples[0], samples[0], samples[0], 1)
    low, median, high = statistics.quantiles(samples, n=4, method="inclusive")
    return Summary(median, low, high, len(samples))


@dataclass(frozen=True, slots=True)
class Row:
    """One version of a case: its times in ms and its error against the oracle, or why there are none."""

    version: str
    time: Summary | None = None
    error: float | None = None
    failure: str = ""


@dataclass(frozen=True)
class CaseResult:
    """All versions of one case.

    ``exposed`` counts samples thrown away because the GPU waited for the host; ``wrong``: evt's answer was.
    """

    case: Case
    rows: tuple[Row, ...]
    bytes: Mapping[str, int]
    exposed: int = 0
    wrong: bool = False

    def row(self, version: str) -> Row | None:
        return next((row for row in self.rows if row.version == version), None)

    def ms(self, version: str) -> float | None:
        row = self.row(version)
        return row.time.median if row and row.time else None

    def ratio(self, version: str, base: str) -> float | None:
        """The time of a version over another's; None when either was not timed."""
        time, against = self.ms(version), self.ms(base)
        return time / against if time is not None and against else None

    @property
    def noise(self) -> float | None:
        """How far two measurements of the same kernel are apart."""
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
class HostResult:
    """Host time of one call, in microseconds, by what was called."""

    case: Case
    calls: Mapping[str, Summary]

    def ratio(self, call: str, base: str) -> float:
        return self.calls[call].median / self.calls[base].median
