"""Measurements that ship with evt, for GPUs on which a machine has measured nothing itself: ``shipped(key)``.

Each file of :data:`TABLES` is written by ``evt tune export`` on a GPU.
"""

from __future__ import annotations

import json
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

from evt.measured.measurement import Measurement, keyed

#: The directory of the files.
TABLES = Path(__file__).parent / "tables"


def shipped(key: str) -> tuple[Measurement, ...]:
    """Return the measurements of a problem that ship with evt, one for each GPU."""
    return _tables(TABLES).get(key, ())


@lru_cache
def _tables(folder: Path) -> dict[str, tuple[Measurement, ...]]:
    found: dict[str, tuple[Measurement, ...]] = {}
    for path in sorted(folder.glob("*.json")):
        for entry in json.loads(path.read_bytes())["measurements"]:
            key, measurement = keyed(entry)
            found[key] = (*found.get(key, ()), measurement)
    return found


def any_shipped() -> bool:
    """Return whether measurements ship with evt."""
    return bool(_tables(TABLES))


def has_shipped(beginning: str) -> bool:
    """Return whether measurements ship under any key with this beginning."""
    return any(key.startswith(beginning) for key in _tables(TABLES))


def anonymous(measurement: Measurement) -> Measurement:
    """Return a measurement without its user and machine, for a table that ships."""
    return replace(measurement, origin=replace(measurement.origin, who=""))
