"""A program as HTML, for notebooks: ``program_html(dag, text) -> str``, and its graph: ``graph_html(dag)``."""

from __future__ import annotations

from collections.abc import Iterator

from evt.draw.drawing import Drawing
from evt.html import Html, code, details, page, table
from evt.ir import Dag
from evt.ir.convolution import CONVOLUTIONS
from evt.ir.node import Input, Operand, Output, written
from evt.ir.number import decimal

#: The most nodes that a result's HTML draws; their SVG has about 100 KB.
_MOST_NODES = 200


def program_html(dag: Dag, text: str) -> str:
    """Return a program's text, the table of its operands, inputs and outputs, and the drawing of its graph."""
    headings = ("name", "kind", "type", "modes", "default")
    return page(code(text), table(headings, _rows(dag), dag.operation), graph_html(dag))


def graph_html(dag: Dag, name: str = "graph") -> Html:
    """Return the drawing of a graph, which a click opens; for a graph of many nodes, their number."""
    if len(dag.table) > _MOST_NODES:
        return Html(f"<p>{name}: {len(dag.table)} nodes are too many to draw here</p>")
    return details(name, Html(Drawing(dag).to("svg")))


def _rows(dag: Dag) -> Iterator[tuple[str, ...]]:
    values: tuple[Operand | Input | Output, ...] = (*dag.operands, *dag.inputs, *dag.outputs)
    kinds = ("operand",) * len(dag.operands) + ("input",) * len(dag.inputs) + ("output",) * len(dag.outputs)
    for value, kind in zip(values, kinds, strict=True):
        optional = "?" if isinstance(value, Input) and value.flexible else ""
        modes = ", ".join(written(mode) + optional for mode in value.modes)
        shown = "" if kind == "operand" and dag.operation in CONVOLUTIONS else f"[{modes}]"
        default = decimal(value.default) if isinstance(value, Input) and value.default is not None else ""
        yield value.name, kind, str(value.dtype or ""), shown, default
