"""Workloads: programs with their shapes and weights, from a TOML file: ``read_workload(path) -> Workload``.

``chosen(names, words)`` selects problems, and cases of benchmarks, by name.

::

    title = "a layer"
    dtype = "bf16"                      # of A and B, where a program names no other

    [[program]]
    name = "up"
    formula = "D = gelu(acc + bias)"    # or file = "up.evt", beside the workload
    operation = "linear"                # gemm, if it is left out
    weight = 32                         # how often it counts: layers of a model
    shapes = [{m = [1, 16], n = 14336, k = 4096}, {m = 2048, n = 14336, k = 4096, weight = 2}]

    [[program]]
    formula = "D = relu(acc + bias)"
    operation = "conv2d"
    padding = 1                         # any keyword of the operation
    shapes = [{a = [32, 64, 56, 56], b = [64, 64, 3, 3]}]

An extent may be a list: each of its values is one shape.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from evt.diagnostics import Diagnostic, closest
from evt.errors import ArgumentError
from evt.language import read_program
from evt.program import Program
from evt.request import Shapes, problem_sizes, typed_graph
from evt.settings import ConvolutionKeywords

#: The suffix of workload files.
SUFFIX = ".toml"
#: The most problems of a workload.
MOST = 10_000
_EXTENTS = ("m", "n", "k", "l")
_WORKLOAD = ("title", "dtype", "program")
_PROGRAM = ("name", "formula", "file", "operation", "dtype", "weight", "shapes")
_SHAPE = (*_EXTENTS, "a", "b", "weight")


@dataclass(frozen=True)
class Entry:
    """One problem of a workload: a program at one size, with its weight in the workload's time."""

    name: str
    program: Program
    dtype: str | None
    shapes: Shapes
    weight: float = 1.0

    @property
    def sizes(self) -> Mapping[str, int]:
        """The extents of the problem."""
        return problem_sizes(self.program.request, self.shapes)

    @property
    def title(self) -> str:
        """The name, with the sizes."""
        if self.program.request.convolution is not None:
            return f"{self.name} {' '.join('x'.join(map(str, shape)) for shape in self.shapes)}"
        return f"{self.name} {'x'.join(str(self.sizes[mode]) for mode in ('m', 'n', 'k'))}"


@dataclass(frozen=True)
class Workload:
    """Problems, by the order of the file."""

    title: str
    entries: tuple[Entry, ...]

    def __post_init__(self) -> None:
        assert all(each.weight > 0 for each in self.entries)


def is_workload(text: str) -> bool:
    """Return whether an argument names a workload file."""
    return text.endswith(SUFFIX) and "\n" not in text


def chosen(names: Iterable[str], words: str | None) -> tuple[str, ...]:
    """Return the names that contain one of the words, which spaces or commas separate; without words, all."""
    wanted = (words or "").replace(",", " ").split()
    return tuple(name for name in names if not wanted or any(word in name for word in wanted))


def read_workload(path: str | Path) -> Workload:
    """Return the workload in a TOML file.

    Raise ProgramError (E0105) if the file cannot be read, or for an invalid program; ArgumentError (E0109) for another
    mistake in it.
    """
    source = read_program(path)
    try:
        document = _parse(source.text)
        return _workload(document, Path(path))
    except _InvalidError as error:
        raise ArgumentError(Diagnostic("E0109", f"{path}: {error}", help=error.help)) from error


class _InvalidError(Exception):
    """A mistake in a workload."""

    def __init__(self, message: str, help: str = "run `evt explain E0109` for an example") -> None:
        super().__init__(message)
        self.help = help


def _parse(text: str) -> Mapping[str, Any]:
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    try:
        found: dict[str, Any] = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise _InvalidError(f"it is not TOML: {error}") from error
    return found


def _workload(document: Mapping[str, Any], path: Path) -> Workload:
    _check_names(document, _WORKLOAD, "the workload")
    programs = _of(document.get("program"), list, "`program`", "one `[[program]]` table or more")
    dtype = _text(document, "dtype", "the workload")
    entries = [
        entry for number, table in enumerate(programs, 1) for entry in _program(table, number, dtype, path.parent)
    ]
    if not 0 < len(entries) <= MOST:
        raise _InvalidError(f"it has {len(entries)} problems; expected 1 to {MOST}")
    return Workload(_text(document, "title", "the workload") or path.stem, tuple(entries))


def _program(table: object, number: int, dtype: str | None, folder: Path) -> Iterator[Entry]:
    """Yield the problems of one program."""
    place = f"program {number}"
    given = _of(table, dict, place, "a table")
    keywords = ConvolutionKeywords.__annotations__
    _check_names(given, (*_PROGRAM, *keywords), place)
    formula, file = _text(given, "formula", place), _text(given, "file", place)
    if (formula is None) == (file is None):
        raise _InvalidError(f"{place} needs either `formula` or `file`")
    name = _text(given, "name", place) or (Path(file).stem if file else " ".join(str(formula).split()))
    settings: dict[str, Any] = {each: value for each, value in given.items() if each in keywords}
    text = read_program(folder / file) if file else str(formula)
    program = Program(text, _text(given, "operation", place) or "gemm", **settings)
    own = _text(given, "dtype", place) or dtype
    typed_graph(program.request, own, own)
    weight = _weight(given, place)
    shapes = _of(given.get("shapes"), list, f"`shapes` of {place}", "a list of tables")
    for each in shapes:
        sizes = _of(each, dict, f"a shape of {place}", "a table such as `{m = 16, n = 512, k = 512}`")
        _check_names(sizes, _SHAPE, f"a shape of {place}")
        for found in _shapes(sizes, program, place):
            problem_sizes(program.request, found)
            yield Entry(name, program, own, found, weight * _weight(sizes, place))


def _shapes(sizes: Mapping[str, Any], program: Program, place: str) -> Iterator[Shapes]:
    """Yield the shapes of A and B: one for each combination of extents."""
    if program.request.convolution is not None:
        if missing := [name for name in ("a", "b") if name not in sizes]:
            raise _InvalidError(f"a shape of {place} lacks `{missing[0]}`: a convolution has the shapes of A and B")
        yield _dims(sizes["a"], place), _dims(sizes["b"], place)
        return
    if missing := [name for name in ("m", "n", "k") if name not in sizes]:
        raise _InvalidError(f"a shape of {place} lacks `{missing[0]}`")
    extents = [_dims(sizes[mode], place) for mode in _EXTENTS if mode in sizes]
    (first, second), batched = program.request.operand_modes, "l" in sizes
    for found in product(*extents):
        by_mode = dict(zip(_EXTENTS, found, strict=False))
        batch = (by_mode["l"],) if batched else ()
        a, b = (tuple(by_mode[mode] for mode in modes if mode != "l") for modes in (first, second))
        yield (*batch, *a), b if program.request.operation == "linear" else (*batch, *b)


def _dims(value: object, place: str) -> tuple[int, ...]:
    """Return positive integers."""
    found = value if isinstance(value, list) else [value]
    if not found or not all(isinstance(each, int) and not isinstance(each, bool) and each > 0 for each in found):
        raise _InvalidError(f"{value!r} in a shape of {place} is not a positive integer, or a list of them")
    return tuple(found)


def _weight(table: Mapping[str, Any], place: str) -> float:
    weight = table.get("weight", 1)
    if isinstance(weight, bool) or not isinstance(weight, int | float) or not 0 < weight < 1e12:
        raise _InvalidError(f"the weight {weight!r} of {place} is not a positive number")
    return float(weight)


def _text(table: Mapping[str, Any], name: str, place: str) -> str | None:
    value = table.get(name)
    if value is not None and not isinstance(value, str):
        raise _InvalidError(f"`{name}` of {place} is not a text")
    return value


def _of(value: object, kind: type, name: str, wanted: str) -> Any:
    if not isinstance(value, kind):
        raise _InvalidError(f"{name} is {'missing' if value is None else repr(value)}; expected {wanted}")
    return value


def _check_names(table: Mapping[str, Any], known: Sequence[str], place: str) -> None:
    for name in table:
        if name not in known:
            guess = closest(name, known)
            hint = f"did you mean `{guess}`?" if guess else f"names: {', '.join(known)}"
            raise _InvalidError(f"{place} has an unknown name `{name}`", hint)
