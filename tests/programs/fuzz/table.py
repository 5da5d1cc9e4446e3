"""The closing tables: the runs by route and type, and the covered parts of the language."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from ..features import LANGUAGE, features
from .cases import Case
from .kinds import ROUTES, TYPES

#: The parts of the language that a run covers, and the features of its calls.
FEATURES = (*LANGUAGE, "strided", "offsets")
COLUMNS = ("kernels", "launches", "wrong", "canaries", "refused", "seconds")


def features_of(case: Case) -> set[str]:
    """Return the parts of the language that a case has, of FEATURES."""
    found = {name for program in case.problems for name in features(program)}
    of_call = {"strided": case.layouts, "offsets": case.program.by_offsets}
    return (found | {name for name, on in of_call.items() if on}) & set(FEATURES)


@dataclass
class Table:
    """Counts by route and types, and the coverage."""

    rows: dict[tuple[str, str], Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    covered: Counter[str] = field(default_factory=Counter)
    compared: int = 0
    doubted: int = 0

    def add(self, case: Case, **counts: float) -> None:
        self.rows[case.route, case.types].update(counts)

    def cover(self, case: Case) -> None:
        self.covered.update(features_of(case))

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
