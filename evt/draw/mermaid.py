"""The graph as a Mermaid flowchart, which GitHub and GitLab render in Markdown.

Mermaid decodes ``#name;`` and ``#code;`` in quoted labels, then reads Markdown in them. Every character with a meaning
in either is written as a code.
"""

from __future__ import annotations

import re

from evt.draw.box import INK, PALETTE, Kind, boxes, edges
from evt.ir import Dag

_SHAPES: dict[Kind, tuple[str, str]] = {
    "acc": ("[[", "]]"),
    "load": ("([", "])"),
    "const": ("((", "))"),
    "apply": ("(", ")"),
    "cast": ("{{", "}}"),
    "reduce": ("[\\", "/]"),
    "fold": ("[\\", "/]"),
    "pick": ("[/", "/]"),
    "index": ("([", "])"),
    "random": (">", "]"),
    "store": ("[(", ")]"),
}
#: An underscore within a word is safe: Markdown recognises emphasis at a word's edges only.
_UNSAFE = re.compile(r"(?<![^\W_])_|_(?![^\W_])|[^\w .,:=+\[\]-]")


def draw_mermaid(dag: Dag) -> str:
    drawn = boxes(dag)
    lines = ["flowchart TD"]
    for node, box in enumerate(drawn):
        opening, closing = _SHAPES[box.kind]
        lines.append(f"    n{node}{opening}{_quote(box.label)}{closing}:::{box.kind}")
    for operand, user, slot in edges(dag):
        port = f"|{_quote(drawn[user].ports[slot])}|" if drawn[user].ports else ""
        lines.append(f"    n{operand} -->{port} n{user}")
    for kind, colour in PALETTE.items():
        lines.append(f"    classDef {kind} fill:{colour.fill},stroke:{colour.line},color:{INK}")
    return "\n".join(lines) + "\n"


def _quote(text: str) -> str:
    return f'"{_UNSAFE.sub(lambda match: f"#{ord(match[0])};", text)}"'
