"""The measurement of one problem on one GPU."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

#: The fraction by which a route must be faster than a preferred route; smaller differences are noise.
NOISE = 0.01


@dataclass(frozen=True, slots=True)
class Timing:
    """The median time of a route's kernel in one configuration, in ms."""

    route: str
    config: str
    ms: float


@dataclass(frozen=True)
class Measurement:
    """The times of a problem's kernels on a GPU, in the order in which the rules prefer them."""

    gpu: str
    target: str
    program: str
    sizes: Mapping[str, int]
    timings: tuple[Timing, ...]

    def best(self) -> Timing | None:
        """Return the kernel to take: the first in order of preference whose time is within noise of the fastest."""
        fastest = min((timing.ms for timing in self.timings), default=math.inf)
        return next((timing for timing in self.timings if timing.ms <= fastest * (1 + NOISE)), None)

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "sizes": dict(self.sizes)}

    @staticmethod
    def from_json(value: Any) -> Measurement:
        """Return the measurement in a dict of :meth:`to_json`. Raise ValueError for anything else."""
        fields = _fields(value, {"gpu": str, "target": str, "program": str, "sizes": dict, "timings": list})
        sizes = {_of(str, mode): _of(int, size) for mode, size in fields["sizes"].items()}
        timings = tuple(map(_timing, fields["timings"]))
        return Measurement(fields["gpu"], fields["target"], fields["program"], sizes, timings)


def _timing(value: Any) -> Timing:
    fields = _fields(value, {"route": str, "config": str, "ms": (int, float)})
    ms = float(fields["ms"])
    if not 0 < ms < math.inf:
        raise ValueError(f"a time of {ms} ms")
    return Timing(fields["route"], fields["config"], ms)


def _fields(value: Any, kinds: Mapping[str, Any]) -> dict[str, Any]:
    given = _of(dict, value)
    return {name: _of(kind, given.get(name), name) for name, kind in kinds.items()}


def _of(kind: Any, value: Any, name: str = "an entry") -> Any:
    kinds: Iterable[type] = kind if isinstance(kind, tuple) else (kind,)
    if not isinstance(value, tuple(kinds)) or isinstance(value, bool):
        raise ValueError(f"{name} is of type {type(value).__name__}")
    return value
