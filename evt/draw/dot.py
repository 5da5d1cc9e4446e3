"""The graph in Graphviz's language: inputs on top, outputs at the bottom."""

from __future__ import annotations

from collections.abc import Iterable

from evt.draw.box import INK, PALETTE, QUIET, Kind, boxes, edges, heading
from evt.ir import Dag

_SHAPES: dict[Kind, str] = {
    "acc": "box3d",
    "load": "box",
    "const": "ellipse",
    "apply": "box",
    "cast": "hexagon",
    "reduce": "invtrapezium",
    "fold": "invtrapezium",
    "pick": "parallelogram",
    "index": "box",
    "random": "octagon",
    "store": "cylinder",
}


def draw_dot(dag: Dag) -> str:
    drawn = boxes(dag)
    lines = [
        "digraph evt {",
        f'  graph [label={_quote(heading(dag))}, labelloc=t, fontname="monospace", bgcolor=white];',
        f'  node [style="filled,rounded", fontname="monospace", fontcolor="{INK}"];',
        f'  edge [color="{QUIET}", fontcolor="{QUIET}", fontname="monospace", fontsize=10];',
    ]
    for node, box in enumerate(drawn):
        colour = PALETTE[box.kind]
        style = "" if box.kind in ("load", "index", "apply") else ", style=filled"
        lines.append(
            f"  n{node} [label={_quote(box.label)}, shape={_SHAPES[box.kind]}{style}, "
            f'fillcolor="{colour.fill}", color="{colour.line}"];'
        )
    for operand, user, slot in edges(dag):
        port = f" [label={_quote(drawn[user].ports[slot])}]" if drawn[user].ports else ""
        lines.append(f"  n{operand} -> n{user}{port};")
    lines.append(_rank("source", (node for node, box in enumerate(drawn) if box.kind in ("acc", "load", "index"))))
    lines.append(_rank("sink", dag.stores.values()))
    return "\n".join([*filter(None, lines), "}"]) + "\n"


def _rank(rank: str, nodes: Iterable[int]) -> str:
    names = " ".join(f"n{node};" for node in nodes)
    return f"  {{ rank={rank}; {names} }}" if names else ""


def _quote(text: str) -> str:
    r"""Return a quoted string; Graphviz reads escapes such as ``\N`` and entities such as ``&lt;`` in labels."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("&", "&amp;") + '"'
