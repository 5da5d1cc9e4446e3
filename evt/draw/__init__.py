"""Drawings of a graph: ``draw(dag, format) -> str``. They are for people; ``str(dag)`` reads back.

:mod:`evt.draw.box` decides once the content of a node's drawing; each format is a separate module. All formats take
time linear in the graph, do not need Graphviz, and print identical bytes in every run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from evt.draw.dot import draw_dot
from evt.draw.mermaid import draw_mermaid
from evt.draw.svg import draw_svg
from evt.draw.text import draw_text
from evt.ir import Dag

_DRAWERS: Mapping[str, Callable[[Dag], str]] = MappingProxyType(
    {"text": draw_text, "mermaid": draw_mermaid, "dot": draw_dot, "svg": draw_svg}
)

FORMATS: tuple[str, ...] = tuple(_DRAWERS)
"""The formats of :func:`draw`."""


def draw(dag: Dag, format: str) -> str:
    """Draw a graph, typed or not. Raise ValueError for a format that is not one of :data:`FORMATS`."""
    if format not in _DRAWERS:
        raise ValueError(f"no drawing format {format!r}; there are {', '.join(FORMATS)}")
    return _DRAWERS[format](dag)


__all__ = ["FORMATS", "draw"]
