"""``evt cache``: the cache of built libraries."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from evt.cli.invocation import TARGET_HELP
from evt.cli.output import OutputPath, json_option, print_json, print_path, print_text
from evt.cli.sections import files, targets

if TYPE_CHECKING:
    from evt.compilation import Entry, Packed

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
    """List, remove, export and import cached libraries.

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
    """List the libraries, the least recently used first.

    A line has the key, the size, the last use, the target, the route and the configuration; the formula follows.
    """
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


@command.command("export", epilog="Example: evt cache export kernels.pack --arch sm90 --used-within 7d")
@click.argument("file", type=OutputPath())
@click.option(
    "--arch",
    "archs",
    multiple=True,
    metavar="NAME",
    shell_complete=targets,
    help=f"Only this target: {TARGET_HELP}. Repeatable.",
)
@click.option(
    "--program",
    "programs",
    multiple=True,
    metavar="PROGRAM",
    shell_complete=files,
    help="Only this program's kernels. Repeatable.",
)
@click.option("--used-within", type=_AGE, help="Only kernels that were used in this time: 12h, 30d, 8w.")
@json_option
@click.pass_context
def export(
    ctx: click.Context,
    file: str,
    archs: tuple[str, ...],
    programs: tuple[str, ...],
    used_within: int | None,
    json: bool,
) -> None:
    """Write kernels to a pack, for machines that do not compile.

    The pack is one file with the libraries, their sources, and the versions that built them. `evt cache import` reads
    it. Skeletons of kernels are in it too, except with --program: with them, a machine with the same nvcc builds new
    formulas in seconds. Equal kernels make an equal file. The exit code is 1 if no kernel was written.
    """
    from evt.cli.invocation import read_source
    from evt.compilation import Cache, contents, write_pack
    from evt.compilation.contents import gencode
    from evt.plan import find_target

    if file == "-":
        raise click.UsageError("A pack is written to a file, not to standard output.")
    targets = {find_target(arch).gencode for arch in archs}
    formulas = {_lines(read_source(program).text) for program in programs}
    found = []
    for entry in Cache().entries():
        is_recent = used_within is None or time.time() - entry.used <= used_within
        is_target = not targets or gencode(entry) in targets
        if is_recent and is_target and (not formulas or _lines(contents(entry).formula) in formulas):
            found.append(entry)
    packed = write_pack(Path(file), found)
    if json:
        size_bytes = Path(file).stat().st_size
        print_json({"ok": bool(packed), "pack": file, "size_bytes": size_bytes, "count": len(packed)})
    else:
        left = f"; {len(found) - len(packed)} damaged, equal or of another version" if len(packed) < len(found) else ""
        print_text(f"{file}: {_summary(packed)}, {_megabytes(Path(file).stat().st_size)} in the pack{left}")
    ctx.exit(0 if packed else 1)


@command.command("import", epilog="Example: EVT_COMPILE=never evt cache import kernels.pack")
@click.argument("file", shell_complete=files)
@json_option
@click.pass_context
def import_pack(ctx: click.Context, file: str, json: bool) -> None:
    """Read the kernels of a pack into the cache.

    Imported kernels are found without nvcc, and take precedence over kernels that are built here. A pack holds code:
    import only packs that you trust. Kernels of another version of evt, another kind of machine or a newer C library
    are refused. A file that is not a sound pack is refused as a whole. The exit code is 1 if no kernel can be used.
    """
    from dataclasses import asdict
    from typing import get_args

    from evt.compilation import Cache, read_pack
    from evt.compilation.pack import Outcome

    packed = read_pack(Path(file), Cache())
    outcomes = [each.outcome for each in packed]
    counts = {outcome: outcomes.count(outcome) for outcome in get_args(Outcome)}
    if json:
        kernels = [{"key": each.key, **asdict(each.contents), **_outcome(each)} for each in packed]
        print_json({"ok": counts["refused"] < len(packed), **counts, "kernels": kernels})
    else:
        for each in packed:
            if each.outcome == "refused":
                print_text(f"{each.key[:12]}  {each.contents.kernel}: refused, because it was {each.reason}")
        print_text(", ".join(f"{count} {outcome}" for outcome, count in counts.items()))
    ctx.exit(0 if counts["refused"] < len(packed) else 1)


def _outcome(packed: Packed) -> dict[str, str]:
    return {"outcome": packed.outcome, "reason": packed.reason}


def _lines(text: str) -> tuple[str, ...]:
    """Return the lines of a formula, without the spaces around them and without empty lines."""
    return tuple(line.strip() for line in text.splitlines() if line.strip())


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
