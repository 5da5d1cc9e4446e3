"""Tables and pictures of the committed benchmark results, ``docs/benchmarks/*.json``."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from xml.sax.saxutils import escape

DOCS = Path(__file__).parents[1]
#: A table of results within a page.
TABLE = re.compile(r"(<!-- results: (\w+) -->\n).*?(<!-- end of results -->)", re.DOTALL)

Cell = str | int | float | None


@dataclass(frozen=True, slots=True)
class Results:
    """Measurements of one kind on one card."""

    title: str
    card: str
    date: str
    software: str
    command: str
    columns: dict[str, str]
    """The titles of the columns, and the format of their numbers."""
    rows: list[list[Cell]]

    def column(self, title: str) -> list[Cell]:
        """Return the cells of a column."""
        place = list(self.columns).index(title)
        return [row[place] for row in self.rows]


def load(name: str) -> Results:
    """Return the results of a name."""
    return Results(**json.loads((DOCS / "benchmarks" / f"{name}.json").read_text(encoding="utf-8")))


def table(results: Results) -> str:
    """Return results as a Markdown table, with their origin."""
    by = f"; `{results.command}`" if results.command else ""
    lines = [f"| {' | '.join(results.columns)} |", "|---" * len(results.columns) + "|"]
    for row in results.rows:
        cells = (
            "" if cell is None else format(cell, form) for cell, form in zip(row, results.columns.values(), strict=True)
        )
        lines.append(f"| {' | '.join(cells)} |")
    return f"{results.title}: {results.card}, {results.date}; {results.software}{by}.\n\n" + "\n".join(lines) + "\n"


def with_tables(page: str) -> str:
    """Return the text of a page with its tables written anew."""
    return TABLE.sub(lambda found: f"{found[1]}\n{table(load(found[2]))}\n{found[3]}", page)


_STYLE = """
    .paper { fill: #ffffff; }
    text { font: 13px system-ui, -apple-system, 'Segoe UI', Helvetica, Arial, sans-serif; fill: #24292f; }
    .title { font-size: 15px; font-weight: 600; }
    .quiet { fill: #57606a; }
    .bar0 { fill: #1a7f37; }
    .bar1 { fill: #0969da; }
    .number { font-size: 10px; fill: #ffffff; }
    .line { stroke: #57606a; stroke-width: 1; stroke-dasharray: 4 3; }
    @media (prefers-color-scheme: dark) {
      .paper { fill: #151b23; } text { fill: #e6edf3; } .quiet { fill: #9198a1; } .line { stroke: #9198a1; }
      .number { fill: #ffffff; }
    }
"""
_LEFT, _WIDTH, _BAR, _TOP = 214, 760, 13, 82
_LONGEST = 480  # pixels of a bar of ratio 1


def picture(results: Results, names: str, series: Mapping[str, str]) -> str:
    """Return bars of the ratios of some columns, each with its name; a line at 1 is torch.compile.

    The picture has its own background, because a page may be dark where the system is light.
    """
    columns = [results.column(column) for column in series]
    rows = sorted(zip(results.column(names), *columns, strict=True), key=lambda row: (row[1] is None, row[1]))
    step = _BAR * len(columns) + 9
    height = _TOP + step * len(rows) + 26
    title = f"{results.title} of evt relative to torch.compile; shorter is better"
    origin = f"{results.card}, {results.date}; {results.software}; {names}"
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{height}" '
        f'viewBox="0 0 {_WIDTH} {height}" role="img">',
        f"  <title>{escape(title)}</title>",
        f"  <style>{_STYLE}  </style>",
        f'  <rect class="paper" width="{_WIDTH}" height="{height}" rx="8"/>',
        f'  <text class="title" x="14" y="24">{escape(title)}</text>',
        f'  <text class="quiet" x="14" y="44">{escape(origin)}</text>',
    ]
    for number, name in enumerate(series.values()):
        x = _LEFT + 250 * number
        lines += [
            f'  <rect class="bar{number}" x="{x}" y="56" width="12" height="12" rx="2"/>',
            f'  <text x="{x + 18}" y="67">{escape(name)}</text>',
        ]
    line = _LEFT + _LONGEST
    lines += [  # the line lies behind the bars and their numbers
        f'  <line class="line" x1="{line}" y1="{_TOP - 4}" x2="{line}" y2="{height - 22}"/>',
        f'  <text class="quiet" x="{line}" y="{height - 8}" text-anchor="middle">torch.compile</text>',
    ]
    for number, (name, *ratios) in enumerate(rows):
        top = _TOP + step * number
        lines.append(f'  <text x="{_LEFT - 10}" y="{top + step // 2}" text-anchor="end">{escape(str(name))}</text>')
        for place, ratio in enumerate(ratios):
            if ratio is not None:
                width, y = round(float(ratio) * _LONGEST), top + _BAR * place
                lines += [
                    f'  <rect class="bar{place}" x="{_LEFT}" y="{y}" width="{width}" height="{_BAR - 1}" rx="2"/>',
                    f'  <text class="number" x="{_LEFT + width - 5}" y="{y + 10}" text-anchor="end">{ratio:.2f}</text>',
                ]
    return "\n".join([*lines, "</svg>"]) + "\n"


#: The files that results determine: the results, the column of the names, and the columns of the bars with their names.
PICTURES = {
    "images/speed.svg": (
        "models",
        "model, batch",
        {"evt / torch.compile": "default mode", "with CUDA graphs": "both with CUDA graphs"},
    )
}


def derived() -> dict[Path, str]:
    """Return the committed files that results determine, and their right texts."""
    found = {DOCS / path: picture(load(name), names, series) for path, (name, names, series) in PICTURES.items()}
    page = DOCS / "benchmarks.md"
    return {**found, page: with_tables(page.read_text(encoding="utf-8"))}
