"""The graph as one self-contained SVG picture, readable on a light or a dark page."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Sequence
from xml.etree.ElementTree import Element, SubElement, indent, tostring

from evt.draw.box import INK, PALETTE, PAPER, QUIET, Box, Kind, boxes, edges, heading, printable
from evt.draw.layout import PIXEL, BoxPosition, GraphLayout, layout
from evt.ir import Dag
from evt.ir.origin import describe

_FONT = "ui-monospace, SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono', monospace"
_SIZE, _SMALL = 13 * PIXEL, 10 * PIXEL
_ADVANCE = 61  # the width of a monospaced character, in hundredths of an em
_MARGIN = 24 * PIXEL
_CAPTION = 30 * PIXEL
_ARROW = 7 * PIXEL
_LONGEST = 48  # characters of a label; a tooltip has the rest

_ROUNDED: dict[Kind, int] = {"acc": 3, "store": 3, "load": 15, "const": 15, "index": 15, "random": 15}
_ROUNDING: dict[Kind, int] = {kind: _ROUNDED.get(kind, 7) * PIXEL for kind in PALETTE}


def draw_svg(dag: Dag) -> str:
    drawn = boxes(dag)
    plan = layout(dag, [_size(box) for box in drawn])
    caption = _shorten(heading(dag), 2 * _LONGEST)
    width = max(plan.width, _text_width(caption, _SIZE)) + 2 * _MARGIN
    height = plan.height + 2 * _MARGIN + _CAPTION

    svg = Element(
        "svg",
        {
            "xmlns": "http://www.w3.org/2000/svg",
            "width": _number(width),
            "height": _number(height),
            "viewBox": f"0 0 {_number(width)} {_number(height)}",
            "role": "img",
            "font-family": _FONT,
            "font-size": _number(_SIZE),
        },
    )
    SubElement(svg, "title").text = heading(dag)
    paper = {"x": "0.5", "y": "0.5", "width": _number(width - PIXEL), "height": _number(height - PIXEL), "rx": "12"}
    SubElement(svg, "rect", {**paper, "fill": PAPER, "stroke": "#e2e8f0"})
    _text(svg, _MARGIN, _MARGIN + 8 * PIXEL, caption, {"fill": QUIET})

    body = SubElement(
        svg,
        "g",
        {"transform": f"translate({_number((width - plan.width) // 2)} {_number(_MARGIN + _CAPTION)})"},
    )
    strokes = SubElement(body, "g", {"fill": "none", "stroke": QUIET, "stroke-width": "1.3"})
    _draw_edges(strokes, dag, drawn, plan)
    _draw_nodes(SubElement(body, "g", {"text-anchor": "middle", "fill": INK}), dag, drawn, plan)
    indent(svg)
    return tostring(svg, encoding="unicode") + "\n"


def _draw_nodes(group: Element, dag: Dag, drawn: Sequence[Box], plan: GraphLayout) -> None:
    for node, (box, place) in enumerate(zip(drawn, plan.nodes, strict=True)):
        element = SubElement(group, "g", {"data-node": str(node), "data-kind": box.kind})
        operands = " ".join(f"%{operand}" for operand in dag.arguments(node))
        definition = f"%{node} = {' '.join(filter(None, (box.title, operands)))}"
        tooltip = f"{definition} : {box.type}" if box.type else definition
        origin = printable(describe(dag.origins[node], dag.source))
        SubElement(element, "title").text = f"{tooltip}\n{origin}" if origin else tooltip
        colour = PALETTE[box.kind]
        SubElement(
            element,
            "rect",
            {
                "x": _number(place.x - place.width // 2),
                "y": _number(place.top),
                "width": _number(place.width),
                "height": _number(place.bottom - place.top),
                "rx": _number(_ROUNDING[box.kind]),
                "fill": colour.fill,
                "stroke": colour.line,
                **({"stroke-width": "2"} if box.kind in ("acc", "store") else {}),
            },
        )
        for name, offset in zip(box.ports, _port_offsets(box), strict=True):
            small = {"font-size": _number(_SMALL), "fill": QUIET}
            _text(element, place.x + offset, place.top + 12 * PIXEL, name, small)
        _text(element, place.x, place.bottom - 21 * PIXEL // 2, _shorten(box.label, _LONGEST), {})


def _draw_edges(group: Element, dag: Dag, drawn: Sequence[Box], plan: GraphLayout) -> None:
    """Draw every edge from its operand's lower side to its user's upper side."""
    nodes = plan.nodes
    leaving: list[list[tuple[int, int, int]]] = [[] for _ in nodes]
    entering: list[list[tuple[int, int, int]]] = [[] for _ in nodes]
    for edge in edges(dag):
        leaving[edge[0]].append(edge)
        entering[edge[1]].append(edge)
    start: dict[tuple[int, int, int], int] = {}
    end: dict[tuple[int, int, int], int] = {}
    for node, place in enumerate(nodes):
        # Edges leave and arrive in one order, so that they do not cross at the node.
        outward = sorted(leaving[node], key=lambda e: (*plan.lanes[e], nodes[e[1]])[0].x)
        start |= _spread(outward, place, 14 * PIXEL)
        if drawn[node].ports:
            offsets = _port_offsets(drawn[node])
            end |= {edge: place.x + offset for edge, offset in zip(entering[node], offsets, strict=True)}
        else:
            inward = sorted(entering[node], key=lambda e: (nodes[e[0]], *plan.lanes[e])[-1].x)
            end |= _spread(inward, place, 22 * PIXEL)
    for edge, lanes in plan.lanes.items():
        operand, user, slot = edge
        x, y = start[edge], nodes[operand].bottom
        path = [f"M{_number(x)},{_number(y)}"]
        floor = nodes[operand].floor
        for lane in lanes:
            path += [_down(y, floor), _curve(x, floor, lane.x, lane.top)]
            x, y, floor = lane.x, lane.top, lane.floor
        path += [_down(y, floor), _curve(x, floor, end[edge], nodes[user].top - _ARROW)]
        edge_of = {"data-edge": f"{operand} {user} {slot}"}
        SubElement(group, "path", {**edge_of, "d": " ".join(filter(None, path))})
        SubElement(group, "path", {"d": _arrowhead(end[edge], nodes[user].top), "fill": QUIET, "stroke": "none"})


def _spread(side: Sequence[tuple[int, int, int]], place: BoxPosition, pitch: int) -> dict[tuple[int, int, int], int]:
    """Return the points where edges meet one side of a box: around its middle, at most ``pitch`` apart."""
    pitch = min(pitch, (place.width - 16 * PIXEL) // max(1, len(side) - 1))
    return {edge: place.x + (2 * i - (len(side) - 1)) * pitch // 2 for i, edge in enumerate(side)}


def _down(y: int, floor: int) -> str:
    """Return the path straight down to the layer's floor, clear of taller boxes on both sides."""
    return f"V{_number(floor)}" if floor > y else ""


def _curve(x: int, y: int, to_x: int, to_y: int) -> str:
    middle = (y + to_y) // 2
    points = ((x, middle), (to_x, middle), (to_x, to_y))
    return "C" + " ".join(f"{_number(a)},{_number(b)}" for a, b in points)


def _arrowhead(x: int, y: int) -> str:
    """Return the path of an arrowhead that points down to a place. A marker would vanish with a hidden drawing's."""
    left, right, top = _number(x - _ARROW // 2), _number(x + _ARROW // 2), _number(y - _ARROW)
    return f"M{left},{top} L{right},{top} L{_number(x)},{_number(y)} z"


def _size(box: Box) -> tuple[int, int]:
    text = _text_width(_shorten(box.label, _LONGEST), _SIZE)
    width = max(text + 24 * PIXEL, sum(_port_widths(box)) + 16 * PIXEL, 40 * PIXEL)
    return width, (44 if box.ports else 30) * PIXEL


def _port_widths(box: Box) -> list[int]:
    return [_text_width(name, _SMALL) + 12 * PIXEL for name in box.ports]


def _port_offsets(box: Box) -> list[int]:
    """Return the positions of the slots' names, relative to the middle of the box."""
    widths = _port_widths(box)
    left = -sum(widths) // 2
    return [left + sum(widths[:slot]) + width // 2 for slot, width in enumerate(widths)]


def _text(parent: Element, x: int, y: int, text: str, attributes: dict[str, str]) -> None:
    SubElement(parent, "text", {"x": _number(x), "y": _number(y), **attributes}).text = text


def _text_width(text: str, size: int) -> int:
    return _ADVANCE * size // 100 * sum(_columns(text))


def _columns(text: str) -> Iterable[int]:
    """Return the terminal columns of each character; Chinese, Japanese and Korean characters are wide."""
    return (2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text)


def _shorten(text: str, longest: int) -> str:
    return text if len(text) <= longest else text[: longest - 1] + "…"


def _number(length: int) -> str:
    """Return a length in pixels, to a tenth."""
    tenths = (2 * abs(length) + PIXEL // 10) // (PIXEL // 5)
    return ("-" if length < 0 and tenths else "") + f"{tenths // 10}.{tenths % 10}".removesuffix(".0")
