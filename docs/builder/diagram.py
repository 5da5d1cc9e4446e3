"""A flowchart of Mermaid as an SVG: the site needs no script for it. The chart is a few nodes in layers."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple
from xml.sax.saxutils import escape

import networkx as nx

_NODE = r'(\w+)(?:\["?([^"\]]+)"?\])?'
_EDGE = re.compile(rf'^\s*{_NODE} -->(?:\|"?([^"|]+)"?\|)? {_NODE}$', re.MULTILINE)
_WIDTH, _ROW, _BOX = 760, 74, 30
_ADVANCE = 7.2  # pixels of a character
_STYLE = """
    .paper { fill: #ffffff; }
    text { font: 13px system-ui, -apple-system, 'Segoe UI', Helvetica, Arial, sans-serif; fill: #24292f; }
    .box { fill: #f6f8fa; stroke: #8c959f; }
    .edge { fill: none; stroke: #57606a; }
    .label { font-size: 11px; fill: #57606a; }
    @media (prefers-color-scheme: dark) {
      .paper { fill: #0d1117; } text { fill: #e6edf3; } .box { fill: #151b23; stroke: #656c76; }
      .edge { stroke: #9198a1; } .label { fill: #9198a1; }
    }
"""


class Place(NamedTuple):
    """The centre of a node and the width of its box."""

    x: float
    y: float
    width: float


def flowchart(text: str) -> str:
    """Return the drawing of a flowchart."""
    graph: nx.DiGraph[str] = nx.DiGraph()
    names: dict[str, str] = {}
    for source, source_text, label, target, target_text in _EDGE.findall(text):
        names |= {source: source_text or names.get(source, source), target: target_text or names.get(target, target)}
        graph.add_nodes_from((source, target))
        graph.add_edge(source, target, label=label, back=nx.has_path(graph, target, source))
    places = _places(graph, names)
    edges = [_edge(places, *edge) for edge in graph.edges(data=True)]
    height = max(place.y for place in places.values()) + _BOX
    boxes = [
        f'  <rect class="box" x="{place.x - place.width / 2:.0f}" y="{place.y - _BOX / 2:.0f}" '
        f'width="{place.width:.0f}" height="{_BOX}" rx="6"/>\n'
        f'  <text x="{place.x:.0f}" y="{place.y + 4:.0f}" text-anchor="middle">{escape(names[node])}</text>'
        for node, place in places.items()
    ]
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height:.0f}" width="{_WIDTH}" role="img">'
    arrow = '<marker id="arrow" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="8" markerHeight="8" orient="auto">'
    marker = f'  <defs>{arrow}<path d="M0,0 L8,4 L0,8 z" fill="#57606a"/></marker></defs>'
    paper = f'  <rect class="paper" width="{_WIDTH}" height="{height:.0f}" rx="8"/>'
    return "\n".join([head, f"  <style>{_STYLE}  </style>", marker, paper, *edges, *boxes, "</svg>"]) + "\n"


def _places(graph: nx.DiGraph[str], names: Mapping[str, str]) -> dict[str, Place]:
    """Return the place of each node: its layer is the longest path to it, and each layer takes the whole width."""
    forward = nx.DiGraph((source, target) for source, target, data in graph.edges(data=True) if not data["back"])
    found = {}
    for number, layer in enumerate(nx.topological_generations(forward)):
        for column, node in enumerate(layer):
            x = _WIDTH * (2 * column + 1) / (2 * len(layer))
            found[node] = Place(x, _BOX + number * _ROW, len(names[node]) * _ADVANCE + 24)
    return found


def _edge(places: Mapping[str, Place], source: str, target: str, data: Mapping[str, str]) -> str:
    """Return the line of an edge with its label; an edge that leads back goes around on the right."""
    start, end = places[source], places[target]
    if data["back"]:
        x0, x1 = start.x + start.width / 2, end.x + end.width / 2
        side = max(x0, x1) + 90
        curve = f"M{x0:.0f},{start.y:.0f} C{side:.0f},{start.y:.0f} {side:.0f},{end.y:.0f} {x1:.0f},{end.y:.0f}"
        return f'  <path class="edge" marker-end="url(#arrow)" d="{curve}"/>'
    y0, y1 = start.y + _BOX / 2, end.y - _BOX / 2
    x, y = start.x + 0.6 * (end.x - start.x) + 8, y0 + 0.6 * (y1 - y0) + 4
    label = f'\n  <text class="label" x="{x:.0f}" y="{y:.0f}">{escape(data["label"])}</text>'
    line = f'  <path class="edge" marker-end="url(#arrow)" d="M{start.x:.0f},{y0:.0f} L{end.x:.0f},{y1:.0f}"/>'
    return line + (label if data["label"] else "")
