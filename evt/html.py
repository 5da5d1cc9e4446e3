"""Tables, texts and bars as HTML, for notebooks: readable on a light and on a dark page.

A text is escaped unless it is :class:`Html`. Colours come from the page, so that themes decide them.
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence

from evt.diagnostics import visible

_STYLE = (
    "<style>.evt table{border-collapse:collapse;margin:.3em 0}.evt caption{text-align:left;font-weight:600}"
    ".evt th,.evt td{padding:.15em .7em;text-align:left;vertical-align:top;border-bottom:1px solid #8884}"
    ".evt td.number{text-align:right;font-variant-numeric:tabular-nums}.evt pre{margin:.2em 0;white-space:pre-wrap}"
    ".evt tr.chosen td{font-weight:600}.evt tr.failed td{opacity:.65}.evt summary{cursor:pointer}"
    ".evt .bar{display:inline-block;height:.7em;background:#4c7fd1;border-radius:2px;min-width:1px}</style>"
)


class Html(str):
    """A text that is HTML."""

    __slots__ = ()


def escaped(text: str) -> Html:
    """Return a text as HTML, with visible control characters; HTML stays."""
    return text if isinstance(text, Html) else Html(html.escape(visible(text, keep="\n")))


def page(*parts: Html) -> str:
    """Return the parts as one output of a notebook."""
    return f'<div class="evt">{_STYLE}{"".join(filter(None, parts))}</div>'


def table(
    headings: Sequence[str],
    rows: Iterable[Sequence[str]],
    caption: str = "",
    *,
    numbers: Iterable[str] = (),
    marks: Sequence[str] = (),
) -> Html:
    """Return a table.

    ``numbers`` are the headings of numeric columns. ``marks`` are the classes of the rows: chosen, failed, or "".
    """
    right = {headings.index(name) for name in numbers}
    head = "".join(f"<th>{escaped(each)}</th>" for each in headings)
    lines = []
    for place, row in enumerate(rows):
        cells = (
            f'<td class="number">{escaped(cell)}</td>' if column in right else f"<td>{escaped(cell)}</td>"
            for column, cell in enumerate(row)
        )
        mark = f' class="{marks[place]}"' if place < len(marks) and marks[place] else ""
        lines.append(f"<tr{mark}>{''.join(cells)}</tr>")
    title = f"<caption>{escaped(caption)}</caption>" if caption else ""
    return Html(f"<table>{title}<tr>{head}</tr>{''.join(lines)}</table>")


def code(text: str) -> Html:
    """Return a program or another text of fixed width."""
    return Html(f"<pre>{escaped(text)}</pre>") if text else Html("")


def details(summary: str, content: Html) -> Html:
    """Return content that a click opens."""
    return Html(f"<details><summary>{escaped(summary)}</summary>{content}</details>")


def bar(fraction: float) -> Html:
    """Return a bar; the longest has the fraction 1."""
    return Html(f'<span class="bar" style="width:{8 * max(0.0, min(1.0, fraction)):.2f}em"></span>')
