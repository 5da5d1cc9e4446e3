"""``evt cache``: the cache of built libraries."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

import click

from evt.cli.output import json_option, print_json, print_path, print_text

if TYPE_CHECKING:
    from evt.compilation import Entry

_SIZES = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
_SIZES |= {"KI": 2**10, "MI": 2**20, "GI": 2**30, "TI": 2**40}
_AGES = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}


class _Quantity(click.ParamType):  # type: ignore[type-arg]  # generic since click 8.4
    """A number with a unit, converted to bytes or seconds."""

    def __init__(self, name: str, pattern: str, units: dict[str, int], example: str) -> None:
        self.name, self._pattern, self._units, self._example = name, pattern, units, example

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        match = re.fullmatch(r"(\d{1,15}(?:\.\d{1,9})?) ?" + self._pattern, str(value))
        if match is None:
            self.fail(f"{value!r} is not a quantity with a unit; write for example {self._example}.", param, ctx)
        unit = match[2] if match[2] in self._units else match[2].upper()
        return int(float(match[1]) * self._units[unit])


_SIZE = _Quantity("size", r"((?:[KkMmGgTt][Ii]?)?)[Bb]?", _SIZES, "500MB, 1GB or 2GiB")
_AGE = _Quantity("age", r"([smhdw])", _AGES, "12h, 30d or 8w")


@click.group("cache", epilog="Example: evt cache prune --max-size 1GB --older-than 30d")
def command() -> None:
    """List or remove cached libraries.

    They are in the user's cache directory, or in EVT_CACHE_DIR if it is set.
    """


@command.command("path", epilog="Example: evt cache path")
@json_option
def path(json: bool) -> None:
    """Print the cache's directory."""
    from evt.compilation import Cache

    root = str(Cache().root)
    if json:
        print_json({"ok": True, "path": root})
    else:
        print_path(root)


@command.command("size", epilog="Example: evt cache size --json")
@json_option
def size(json: bool) -> None:
    """Print the number of libraries and their total size."""
    from evt.compilation import Cache

    entries = Cache().entries()
    if json:
        print_json({"ok": True, **_totals(entries)})
    else:
        print_text(_summary(entries))


@command.command("list", epilog="Example: evt cache list")
@json_option
def list_entries(json: bool) -> None:
    """List the libraries, least recently used first: target, route, configuration and formula."""
    from dataclasses import asdict

    from evt.compilation import Cache, contents

    entries = Cache().entries()
    if json:
        found = [{**_entry(entry), **asdict(contents(entry))} for entry in entries]
        print_json({"ok": True, **_totals(entries), "entries": found})
        return
    for entry in entries:
        used, known = datetime.fromtimestamp(entry.used).strftime("%Y-%m-%d %H:%M"), contents(entry)
        line = f"{entry.key[:12]}  {_megabytes(entry.size_bytes):>10}  used {used}  {known.target:<6} {known.kernel}"
        print_text("\n".join([line.rstrip(), *(f"    {each}" for each in known.formula.splitlines())]))
    print_text(_summary(entries))


@command.command("clear", epilog="Example: evt cache clear")
@json_option
def clear(json: bool) -> None:
    """Remove every library, failed builds, and the times of `evt tune`.

    evt builds removed kernels again on demand.
    """
    from evt.compilation import Cache
    from evt.measured import Store

    measurements = Store().clear()
    _removed(Cache().clear(), json, measurements)


@command.command("prune", epilog="Example: evt cache prune --max-size 1GB --older-than 30d")
@click.option(
    "--max-size", type=_SIZE, help="Remove the least recently used libraries above this total size: 500MB, 1GB, 2GiB."
)
@click.option("--older-than", type=_AGE, help="Remove libraries that were not used for this time: 12h, 30d, 8w.")
@json_option
def prune(max_size: int | None, older_than: int | None, json: bool) -> None:
    """Remove libraries that have not been used for a long time."""
    if max_size is None and older_than is None:
        raise click.UsageError("Give --max-size, --older-than or both; `evt cache clear` removes everything.")
    from evt.compilation import Cache

    _removed(Cache().prune(max_bytes=max_size, older_than_s=older_than), json)


def _removed(entries: Sequence[Entry], json: bool, measurements: int | None = None) -> None:
    """Print the removed libraries, and the removed measurements if the command removes measurements."""
    if json:
        counted = {} if measurements is None else {"measurements": measurements}
        print_json({"ok": True, **_totals(entries), **counted, "removed": [_entry(entry) for entry in entries]})
    else:
        noun = "measurement" if measurements == 1 else "measurements"
        also = f", and {measurements} {noun}" if measurements else ""
        print_text(f"removed {_summary(entries)}{also}")


def _totals(entries: Sequence[Entry]) -> dict[str, object]:
    return {"count": len(entries), "size_bytes": sum(entry.size_bytes for entry in entries)}


def _entry(entry: Entry) -> dict[str, object]:
    library, used = str(entry.library), entry.used
    return {"key": entry.key, "library": library, "size_bytes": entry.size_bytes, "used": used}


def _summary(entries: Sequence[Entry]) -> str:
    noun = "library" if len(entries) == 1 else "libraries"
    return f"{len(entries)} {noun}, {_megabytes(sum(entry.size_bytes for entry in entries))}"


def _megabytes(size_bytes: int) -> str:
    return f"{size_bytes / 1e6:.1f} MB"
