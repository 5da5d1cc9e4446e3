"""Two documents of measurements compared: ``changes(old, new) -> rows``; ``read_json(path) -> document``."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from evt.bench.result import AGAIN, EVT
from evt.storage.reading import read_file
from evt.version import JSON_SCHEMA


class UnreadableError(Exception):
    """An error for a file that is no document of ``evt bench --json``."""


@dataclass(frozen=True, slots=True)
class Time:
    """The time of a version of a case in ms: its median and its quartiles. ``flops`` and ``bytes`` are of the case."""

    case: str
    version: str
    ms: float
    low: float
    high: float
    flops: int = 0
    bytes: int = 0


@dataclass(frozen=True, slots=True)
class Change:
    """The times of a version of a case in two documents; ``certain`` means that the quartiles do not overlap."""

    case: str
    version: str
    old: float
    new: float
    certain: bool

    @property
    def ratio(self) -> float:
        """The new time over the old one."""
        return self.new / self.old

    def to_json(self) -> dict[str, object]:
        """Return a dict ready for JSON."""
        return {**asdict(self), "ratio": self.ratio}


def read_json(path: str | Path) -> dict[str, Any]:
    """Return a document of :func:`evt.bench.document.write_json`. Raise UnreadableError, OSError."""
    try:
        document = json.loads(read_file(path))
        schema = document.get("schema", JSON_SCHEMA)
        list(times_of(document))
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise UnreadableError(f"{path} is no file of `evt bench --json`") from error
    if schema > JSON_SCHEMA:
        raise UnreadableError(f"{path}: a newer version of evt wrote it, with schema {schema}")
    found: dict[str, Any] = document
    return found


def times_of(document: Mapping[str, Any]) -> Iterator[Time]:
    """Yield the times of a document: of cases, epilogues and models."""
    if not {"cases", "models"} & document.keys():
        raise LookupError("neither cases nor models")
    for case in document.get("cases", ()):
        for version, row in case["versions"].items():
            if row["time"] is not None and version != AGAIN:
                yield Time(case["name"], version, *_summary(row["time"]), case["flops"], sum(case["bytes"].values()))
    for group in document.get("epilogues", ()):
        for name, row in group["epilogues"].items():
            if row["time"] is not None and name != AGAIN:
                yield Time(f"{name} {group['m']}x{group['n']}x{group['k']}", EVT, *_summary(row["time"]))
    for model in document.get("models", ()):
        title = f"{model['name']} {model['dtype']}, batch {model['batch']}"
        for version, ms in model["times"].items():
            yield Time(title, version, float(ms), float(ms), float(ms))


def _summary(time: Mapping[str, Any]) -> tuple[float, float, float]:
    return float(time["median_ms"]), float(time["quartile_low_ms"]), float(time["quartile_high_ms"])


def changes(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[Change]:
    """Return the changes of the versions that both documents have, in the order of the new one."""
    before = {(each.case, each.version): each for each in times_of(old)}
    found = []
    for each in times_of(new):
        known = before.get((each.case, each.version))
        if known is not None:
            certain = each.low > known.high or each.high < known.low
            found.append(Change(each.case, each.version, known.ms, each.ms, certain))
    return found
