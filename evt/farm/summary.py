"""The results of a workload: ``summarise(results) -> Summary``."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass

from evt.farm.task import Task
from evt.tuning.table import Tuning


@dataclass(frozen=True)
class Summary:
    """The totals of a workload: kernels measured now and earlier, pruned, unfit and failed ones, and seconds.

    ``untuned_ms`` and ``tuned_ms`` are weighted sums over the problems whose untuned choice was timed.
    """

    problems: int
    measured: int
    kept: int
    pruned: int
    unfit: int
    failed: int
    seconds: float
    untuned_ms: float
    tuned_ms: float

    @property
    def gain(self) -> float:
        """The time of the untuned choices over the time of the fastest kernels."""
        return self.untuned_ms / self.tuned_ms if self.tuned_ms else 1.0

    def to_json(self) -> dict[str, object]:
        """Return a dict ready for JSON."""
        return {**asdict(self), "gain": self.gain}

    def __str__(self) -> str:
        return (
            f"{self.problems} problems: {self.measured} kernels measured, {self.kept} measured earlier, "
            f"{self.pruned} pruned by the cost model, {self.unfit} do not fit, {self.failed} failed, "
            f"{self.seconds:.0f} s\nweighted time {self.tuned_ms:.4f} ms, {self.gain:.3f} times as fast as untuned"
        )


def summarise(results: Iterable[tuple[Task, Tuning]]) -> Summary:
    """Return the totals of results."""
    found = list(results)
    tunings = [tuning for _, tuning in found]
    gains = [(task.weight, tuning.gain, tuning.chosen.ms) for task, tuning in found if tuning.chosen is not None]
    known = [(weight * ms * gain, weight * ms) for weight, gain, ms in gains if gain is not None]
    return Summary(
        len(found),
        sum(each.measured for each in tunings),
        sum(row.kept for each in tunings for row in each.rows),
        sum(each.pruned for each in tunings),
        sum(each.unfit for each in tunings),
        sum(each.failed for each in tunings),
        sum(each.seconds for each in tunings),
        sum(untuned for untuned, _ in known),
        sum(tuned for _, tuned in known),
    )
