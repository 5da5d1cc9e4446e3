"""The measurement of one problem on one GPU."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

#: The fraction by which a route must be faster than a preferred route; smaller differences are noise.
NOISE = 0.01
#: The bits of the largest number that the database keeps.
_BITS = 63


@dataclass(frozen=True, slots=True)
class Timing:
    """The median time of a route's kernel in one configuration, in ms, with a flushed L2 cache.

    ``warm_ms`` is the time without a flush, ``samples`` the number of samples, and ``kernel`` the digest of the
    kernel's text; None, 0 and "" if they are unknown.
    """

    route: str
    config: str
    ms: float
    warm_ms: float | None = field(default=None, compare=False)
    samples: int = field(default=0, compare=False)
    kernel: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class Origin:
    """Who measured, when (UTC), with which driver and version of evt; "" for unknown facts."""

    who: str = ""
    when: str = ""
    driver: str = ""
    evt: str = ""


@dataclass(frozen=True)
class Measurement:
    """The times of a problem's kernels on a GPU, in the order in which the rules prefer them.

    ``call`` describes the problem's call, from which :func:`evt.measured.call_of` makes the program and its shapes.
    """

    gpu: str
    target: str
    program: str
    sizes: Mapping[str, int]
    timings: tuple[Timing, ...]
    call: str = field(default="", compare=False)
    origin: Origin = field(default=Origin(), compare=False)

    def best(self) -> Timing | None:
        """Return the kernel to take: the first in order of preference whose time is within noise of the fastest."""
        fastest = min((timing.ms for timing in self.timings), default=math.inf)
        return next((timing for timing in self.timings if timing.ms <= fastest * (1 + NOISE)), None)

    def to_json(self) -> dict[str, Any]:
        """Return a dict ready for JSON."""
        return {**asdict(self), "sizes": dict(self.sizes)}

    @staticmethod
    def from_json(value: Any) -> Measurement:
        """Return the measurement in a dict of :meth:`to_json`. Raise ValueError for anything else."""
        fields = _fields(value, {"gpu": str, "target": str, "program": str, "sizes": dict, "timings": list})
        sizes = {_of(str, mode): _of(int, size) for mode, size in fields["sizes"].items()}
        timings = tuple(map(_timing, fields["timings"]))
        origin = _fields(value.get("origin", {}), dict.fromkeys(("who", "when", "driver", "evt"), str), optional=True)
        call = _of(str, value.get("call", ""), "call")
        return Measurement(fields["gpu"], fields["target"], fields["program"], sizes, timings, call, Origin(**origin))


def keyed(entry: Any) -> tuple[str, Measurement]:
    """Return the key and the measurement in an entry of ``evt tune export``. Raise ValueError for anything else."""
    key, found = _fields(entry, {"key": str})["key"], Measurement.from_json(entry)
    if not (key.isalnum() and key.isascii()):
        raise ValueError(f"no problem has the key {key!r}")
    if not found.timings:
        raise ValueError(f"the problem {key} has no times")
    return key, found


def _timing(value: Any) -> Timing:
    fields = _fields(value, {"route": str, "config": str, "ms": (int, float)})
    known: dict[str, Any] = {"warm_ms": (int, float, type(None)), "samples": int, "kernel": str}
    more = _fields(value, known, optional=True)
    times = [fields["ms"], *([more["warm_ms"]] if more.get("warm_ms") is not None else [])]
    for ms in map(float, times):
        if not 0 < ms < math.inf:
            raise ValueError(f"a time of {ms} ms")
    return Timing(fields["route"], fields["config"], float(fields["ms"]), **more)


def _fields(value: Any, kinds: Mapping[str, Any], *, optional: bool = False) -> dict[str, Any]:
    given = _of(dict, value)
    return {name: _of(kind, given.get(name), name) for name, kind in kinds.items() if not optional or name in given}


def _of(kind: Any, value: Any, name: str = "an entry") -> Any:
    kinds: Iterable[type] = kind if isinstance(kind, tuple) else (kind,)
    if not isinstance(value, tuple(kinds)) or isinstance(value, bool):
        raise ValueError(f"{name} is of type {type(value).__name__}")
    if isinstance(value, int) and value.bit_length() > _BITS:
        raise ValueError(f"{name} is a number of {value.bit_length()} bits")
    if isinstance(value, str):
        value.encode()  # a half of a surrogate pair is no text
    return value
