"""The closing tables: what was run by route and type, and which parts of the language it covered."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from ..tree import (
    Acc,
    Block,
    Call,
    Cast,
    Dropout,
    Element,
    Expression,
    Interleave,
    Iota,
    Number,
    Pair,
    Program,
    Rand,
    Read,
    Reduce,
    Size,
    walk,
)
from .cases import Case
from .kinds import ROUTES, TYPES

_NODES: dict[type[Expression], str] = {
    Acc: "acc",
    Element: "A, B",
    Number: "number",
    Read: "name",
    Call: "function",
    Cast: "cast",
    Size: "size",
    Block: "block",
    Pair: "pair",
    Interleave: "interleave",
    Iota: "iota",
    Rand: "rand",
    Dropout: "dropout",
}
#: The parts of the language that a run covers.
FEATURES = (
    *_NODES.values(),
    *("sum", "max", "min", "mean", "argmax", "argmin", "after a reduction", "derivative", "def", "mainloop fusion"),
    *("header", "batches", "shared operand", "transposed output", "fewer modes", "bits in", "bits out", "bool"),
    *("n/w output", "n/2 input", "default", "left out", "[m?]", "gather", "scatter", "groups", "dilation", "padding"),
    *("stride", "match_eager", "relaxed", "atomics", "strided"),
)
COLUMNS = ("kernels", "launches", "wrong", "canaries", "refused", "seconds")


def features(case: Case) -> set[str]:
    """Return the parts of the language that a case has, of FEATURES."""
    return {name for program in case.problems for name in _features(program)} | ({"strided"} if case.layouts else set())


def _features(program: Program) -> Iterator[str]:
    values = {each.name: each.value for each in program.assigns}
    for node in program.expressions():
        if type(node) in _NODES:
            yield _NODES[type(node)]
        if isinstance(node, Reduce):
            yield node.kind
        if isinstance(node, Call) and node.primes:
            yield "derivative"
    reduced = {name for name, value in values.items() if isinstance(value, Reduce)}
    for name, value in values.items():
        if name not in reduced and any(isinstance(node, Reduce) for node in walk(value)):
            yield "after a reduction"
    settings = dict(program.settings)
    g = program.geometry
    flags = {
        "def": program.defines,
        "mainloop fusion": program.feeds,
        "header": program.header,
        "batches": program.sizes.batch and g is None and not program.groups,
        "match_eager": settings.get("numerics") == "match_eager",
        "relaxed": settings.get("relaxed"),
        "atomics": settings.get("deterministic") is False,
        "groups": program.groups or (g and g.groups > 1),
        "dilation": g and set(g.dilation) != {1},
        "padding": g and any(map(any, g.padding)),
        "stride": g and set(g.stride) != {1},
        "shared operand": len(program.sizes.batch) == 1 and program.sizes.batch[0] > 1,
    }
    yield from (name for name, on in flags.items() if on)
    for output in program.outputs:
        yield from ["transposed output"] if output.modes[-2:] == ("n", "m") else []
        yield from ["fewer modes"] if output.name not in reduced and len(output.modes) < 2 else []
        yield from ["bits out"] if output.type == "b1" else []
        yield from ["bool"] if output.type == "bool" else []
        yield from ["n/w output"] if any("/" in mode for mode in output.modes) else []
        yield from ["scatter"] if output.indexed else []
    for value in program.inputs:
        yield from ["bits in"] if value.type == "b1" else []
        yield from ["bool"] if value.type == "bool" else []
        yield from ["n/2 input"] if "n/2" in value.modes else []
        yield from ["default"] if value.default else []
        yield from ["left out"] if value.given == "absent" else []
        yield from ["[m?]"] if value.flexible else []
        yield from ["gather"] if value.indexed else []


@dataclass
class Table:
    """Counts by route and types, and what was covered."""

    rows: dict[tuple[str, str], Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    covered: Counter[str] = field(default_factory=Counter)
    compared: int = 0
    doubted: int = 0

    def add(self, case: Case, **counts: float) -> None:
        self.rows[case.route, case.types].update(counts)  # type: ignore[arg-type]

    def cover(self, case: Case) -> None:
        self.covered.update(features(case))

    def __str__(self) -> str:
        order = sorted(self.rows, key=lambda key: (ROUTES.index(key[0]), key[1]))
        lines = [("route", "types", *COLUMNS), *((*key, *_numbers(self.rows[key])) for key in order)]
        total: Counter[str] = Counter()
        for row in self.rows.values():
            total.update(row)
        lines.append(("all", "", *_numbers(total)))
        return "\n".join([*_aligned(lines), "", *self.coverage()])

    def coverage(self) -> Iterator[str]:
        """Yield which routes met which types, and how many kernels have each part of the language."""
        met = {(route, dtype) for route, types in self.rows for dtype in types.split("*")}
        lines = [("coverage", *TYPES)]
        lines += [(route, *("x" if (route, dtype) in met else "-" for dtype in TYPES)) for route in ROUTES]
        yield from _aligned(lines)
        yield ""
        yield ", ".join(f"{name} {self.covered[name]}" for name in FEATURES)
        missing = [name for name in FEATURES if not self.covered[name]]
        yield f"not covered: {', '.join(missing)}" if missing else "every part of the language is covered"
        if self.compared:
            yield f"{self.compared} elements compared, {self.doubted / self.compared:.1%} of them in doubt"


def _numbers(counts: Counter[str]) -> Iterable[str]:
    return (f"{counts[name]:.0f}" for name in COLUMNS)


def _aligned(lines: Sequence[Sequence[str]]) -> Iterator[str]:
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        first = line[0].ljust(widths[0])
        yield "  ".join([first, *(cell.rjust(width) for cell, width in zip(line[1:], widths[1:], strict=True))])
