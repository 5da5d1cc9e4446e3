"""Constants of cards that this machine fitted, beside the database: ``fitted(card) -> Card``.

``evt tune fit`` writes ``cards.json``. Its constants replace the ones that ship with evt.
"""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

from evt.compilation import Cache
from evt.diagnostics import Diagnostic, visible
from evt.errors import BuildError
from evt.plan.cards import Card, Fit, find_card
from evt.storage.trust import read_private

#: The largest size of the file, in bytes.
_MOST = 1 << 20


def fitted(card: Card) -> Card:
    """Return a card with the constants that this machine fitted, if there are any."""
    path = _path(Cache())
    try:
        status = path.stat()
    except OSError:
        return card
    fit = _read(path, (status.st_ino, status.st_mtime_ns, status.st_size)).get(card.name)
    return card if fit is None else replace(card, measured=fit)


def named_card(name: str) -> Card:
    """Return the card that is called so, with the constants that this machine fitted: see :func:`find_card`."""
    return fitted(find_card(name))


def keep_fit(card: Card, fit: Fit) -> Path:
    """Keep the constants of a card; return the file. Raise BuildError (E0704)."""
    cache = Cache()
    path = _path(cache)
    try:
        cache.prepare()
        known = {}
        if path.exists():
            status = path.stat()
            known = dict(_read(path, (status.st_ino, status.st_mtime_ns, status.st_size)))
        text = json.dumps({name: each.to_json() for name, each in {**known, card.name: fit}.items()}, indent=1)
        part = path.with_name(f".{path.name}.{os.getpid()}")
        part.write_text(text + "\n", encoding="utf-8")
        part.replace(path)
    except OSError as error:
        message = f"the constants of a card cannot be kept in {path}: {error.strerror or error}"
        help = "set EVT_CACHE_DIR to a directory that you can write, on a disk with space"
        raise BuildError(Diagnostic("E0704", message, help=help)) from error
    return path


def _path(cache: Cache) -> Path:
    return cache.root / "cards.json"


@lru_cache(maxsize=8)
def _read(path: Path, identity: tuple[int, ...]) -> Mapping[str, Fit]:
    """Return the constants by card; none, after a warning, if the file cannot be read. ``identity`` is of the file."""
    try:
        return {name: Fit.from_json(value) for name, value in json.loads(read_private(path, _MOST)).items()}
    except (BuildError, OSError, ValueError, AttributeError) as error:
        warnings.warn(visible(f"E0704: the constants of cards in {path} are ignored: {error}"), stacklevel=3)
        return {}
