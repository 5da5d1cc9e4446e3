"""Layouts as grids: the index of each coordinate in its cell, as text or as a self-contained SVG picture.

A layout of rank 1 is drawn as one row; a layout of rank 2 with its first mode downwards, as CuTe draws it.
"""

from __future__ import annotations

from xml.etree.ElementTree import Element, SubElement, indent, tostring

from evt.layout.access import bank
from evt.layout.layout import Layout
from evt.layout.refused import refused
from evt.layout.swizzle import ComposedLayout, as_function, inner

#: The largest number of cells of a drawing.
MAX_CELLS = 4096
#: Eight fill colours, used cyclically, on which dark text is legible.
_FILLS = ("#dbeafe", "#fef3c7", "#dcfce7", "#fce7f3", "#ede9fe", "#cffafe", "#ffedd5", "#e2e8f0")
_INK, _QUIET, _PAPER, _LINE = "#0f172a", "#64748b", "#ffffff", "#94a3b8"
_FONT = "ui-monospace, SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono', monospace"
_HEIGHT, _MARGIN, _CAPTION = 28, 16, 28


def grid(layout: int | Layout | ComposedLayout) -> list[list[int]]:
    """Return the indices, row by row.

    Raise LayoutError E0674 for a rank above 2, and E0675 for more than :data:`MAX_CELLS` cells.
    """
    layout = as_function(layout)
    if layout.rank > 2:
        message = f"a layout of rank {layout.rank} is not a grid"
        raise refused("E0674", message, "group its modes into two, as in ((2,4),8)", layout=layout)
    if layout.size > MAX_CELLS:
        message = f"a grid of {layout.size} cells is too large to draw"
        raise refused("E0675", message, f"{MAX_CELLS} cells are drawn: divide the layout first", layout=layout)
    if layout.rank == 1:
        return [[layout(place) for place in range(layout.size)]]
    rows, columns = (mode.size for mode in inner(layout).modes)
    return [[layout(row, column) for column in range(columns)] for row in range(rows)]


def draw_text(layout: int | Layout | ComposedLayout) -> str:
    """Return the grid as text, with coordinates above and at the left. Raise LayoutError as :func:`grid`."""
    rows = grid(layout)
    width = max(len(str(value)) for row in [*rows, range(len(rows[0]))] for value in row)
    side = len(str(len(rows) - 1))
    rule = f"{'':{side}} {('+' + '-' * (width + 2)) * len(rows[0])}+"
    lines = [f"{'':{side}}  " + " ".join(f"{column:^{width + 2}}" for column in range(len(rows[0]))).rstrip(), rule]
    for place, row in enumerate(rows):
        lines += [f"{place:>{side}} " + "".join(f"| {value:>{width}} " for value in row) + "|", rule]
    return "\n".join(lines)


def draw_svg(layout: int | Layout | ComposedLayout, bank_of_bytes: int | None = None) -> str:
    """Return the grid as SVG. Colours repeat every 8 indices.

    ``bank_of_bytes`` is the size of an element in bytes. With it, colours follow the banks of shared memory, four banks
    a colour, and each cell's tooltip names its bank. Raise LayoutError as :func:`grid`.
    """
    layout = as_function(layout)
    rows = grid(layout)
    cell = 8 * max(len(str(value)) for row in [*rows, range(len(rows[0]))] for value in row) + 16
    caption = str(layout)
    side = 8 * len(str(len(rows) - 1)) + 12
    width = max(side + cell * len(rows[0]), 8 * len(caption)) + 2 * _MARGIN
    height = _CAPTION + _HEIGHT * (len(rows) + 1) + 2 * _MARGIN
    size = {"width": str(width), "height": str(height), "viewBox": f"0 0 {width} {height}"}
    style = {"role": "img", "font-family": _FONT, "font-size": "13", "text-anchor": "middle"}
    svg = Element("svg", {"xmlns": "http://www.w3.org/2000/svg", **size, **style})
    SubElement(svg, "title").text = caption
    SubElement(svg, "rect", {"width": str(width), "height": str(height), "rx": "12", "fill": _PAPER})
    _text(svg, _MARGIN, _MARGIN + 13, caption, {"fill": _QUIET, "text-anchor": "start"})
    left, top = _MARGIN + side, _MARGIN + _CAPTION + _HEIGHT
    for column in range(len(rows[0])):
        _text(svg, left + cell * column + cell // 2, top - 9, str(column), {"fill": _QUIET})
    cells = SubElement(svg, "g", {"stroke": _LINE})
    numbers = SubElement(svg, "g", {"fill": _INK, "pointer-events": "none"})
    for place, row in enumerate(rows):
        y = top + _HEIGHT * place
        _text(svg, left - 8, y + 19, str(place), {"fill": _QUIET, "text-anchor": "end"})
        for column, value in enumerate(row):
            x = left + cell * column
            colour = value if bank_of_bytes is None else bank(value, bank_of_bytes) // 4
            box = {"x": str(x), "y": str(y), "width": str(cell), "height": str(_HEIGHT)}
            rectangle = SubElement(cells, "rect", {**box, "fill": _FILLS[colour % len(_FILLS)]})
            if bank_of_bytes is not None:
                SubElement(rectangle, "title").text = f"index {value}, bank {bank(value, bank_of_bytes)}"
            _text(numbers, x + cell // 2, y + 19, str(value), {})
    indent(svg)
    return tostring(svg, encoding="unicode") + "\n"


def _text(parent: Element, x: int, y: int, text: str, attributes: dict[str, str]) -> None:
    SubElement(parent, "text", {"x": str(x), "y": str(y), **attributes}).text = text
