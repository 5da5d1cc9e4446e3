"""Tables and pictures of the committed benchmark results, ``docs/benchmarks/*.json``."""

from __future__ import annotations

import json
import re
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
    text { font: 13px system-ui, -apple-system, 'Segoe UI', Helvetica, Arial, sans-serif; fill: #24292f; }
    .title { font-size: 15px; font-weight: 600; }
    .quiet { fill: #57606a; }
    .bar { fill: #1a7f37; }
    .number { fill: #ffffff; }
    .line { stroke: #57606a; stroke-width: 1; stroke-dasharray: 4 3; }
    @media (prefers-color-scheme: dark) {
      text { fill: #e6edf3; } .quiet { fill: #9198a1; } .line { stroke: #9198a1; } .number { fill: #ffffff; }
    }
"""
_LEFT, _WIDTH, _ROW, _TOP = 210, 760, 24, 58
_LONGEST = 480  # pixels of a bar of ratio 1


def picture(results: Results, names: str, ratios: str) -> str:
    """Return bars of the ratios of one column, as an SVG for light and dark pages. The line at 1 is the baseline."""
    pairs = sorted(
        (float(ratio), str(name))
        for name, ratio in zip(results.column(names), results.column(ratios), strict=True)
        if ratio is not None
    )
    height = _TOP + _ROW * len(pairs) + 16
    ours, baseline = ratios.split(" / ")
    title = f"{results.title}: {ours} relative to {baseline}; shorter is better"
    origin = f"{results.card}, {results.date}; {results.software}; {names}"
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{height}" '
        f'viewBox="0 0 {_WIDTH} {height}" role="img">',
        f"  <title>{escape(title)}</title>",
        f"  <style>{_STYLE}  </style>",
        f'  <text class="title" x="0" y="18">{escape(title)}</text>',
        f'  <text class="quiet" x="0" y="38">{escape(origin)}</text>',
    ]
    for number, (ratio, name) in enumerate(pairs):
        top = _TOP + _ROW * number
        width = round(ratio * _LONGEST)
        lines += [
            f'  <text x="{_LEFT - 10}" y="{top + 14}" text-anchor="end">{escape(name)}</text>',
            f'  <rect class="bar" x="{_LEFT}" y="{top + 2}" width="{width}" height="{_ROW - 7}" rx="2"/>',
            f'  <text class="number" x="{_LEFT + width - 6}" y="{top + 14}" text-anchor="end">{ratio:.2f}</text>',
        ]
    line = _LEFT + _LONGEST
    lines += [
        f'  <line class="line" x1="{line}" y1="{_TOP - 4}" x2="{line}" y2="{height - 14}"/>',
        f'  <text class="quiet" x="{line}" y="{height - 2}" text-anchor="middle">{escape(baseline)}</text>',
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


#: The files that results determine.
PICTURES = {"images/speed.svg": ("models", "model, batch", "evt / torch.compile")}


def derived() -> dict[Path, str]:
    """Return the committed files that results determine, and their right texts."""
    found = {DOCS / path: picture(load(name), *columns) for path, (name, *columns) in PICTURES.items()}
    page = DOCS / "benchmarks.md"
    return {**found, page: with_tables(page.read_text(encoding="utf-8"))}
