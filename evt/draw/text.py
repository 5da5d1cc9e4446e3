"""The graph as trees for a terminal.

::

    gemm(A: f16[m, k], B: f16[k, n])

    %2 = mul        f32[m, n]
    ├─ alpha        f32
    └─ acc          f32[m, n]

    D               f16[m, n]
    └─ relu         f32[m, n]
       └─ %2        f32[m, n]

A value that is read more than once is drawn once, above its users, under its id in ``str(dag)``. A value that would be
indented too far is drawn likewise, which keeps the text's size linear.
"""

from __future__ import annotations

from collections.abc import Iterator

from evt.draw.box import Box, boxes, edges, heading
from evt.ir import Dag
from evt.ir.node import ROOTS

_DEPTH = 12
_WIDEST_COLUMN = 60


def draw_text(dag: Dag) -> str:
    drawn, named = boxes(dag), _named(dag)
    roots = [(f"%{node} = {drawn[node].title}", node) for node in sorted(named)]
    roots += [(drawn[node].title, node) for node in (*dag.feeds.values(), *dag.scales.values(), *dag.stores.values())]
    paragraphs = [[(title, node), *_branches(dag, drawn, named, node)] for title, node in roots]
    lengths = (len(text) for rows in paragraphs for text, _ in rows)
    column = max((length for length in lengths if length <= _WIDEST_COLUMN), default=0)
    lines = [heading(dag)]
    for rows in paragraphs:
        lines.append("")
        lines += (f"{text:<{column}}  {drawn[node].type}".rstrip() for text, node in rows)
    return "\n".join(lines) + "\n"


def _named(dag: Dag) -> set[int]:
    """Return the values that are drawn separately: read more than once, or never, or nested too deep."""
    readers: list[list[int]] = [[] for _ in range(len(dag))]
    for operand, user, _ in edges(dag):
        readers[operand].append(user)
    named: set[int] = set()
    depth = [0] * len(dag)
    for node in reversed(range(len(dag))):
        if not dag.arguments(node) or isinstance(dag[node], ROOTS):
            continue  # a leaf or an output already has a name
        if len(readers[node]) != 1 or depth[readers[node][0]] == _DEPTH:
            named.add(node)
        else:
            depth[node] = depth[readers[node][0]] + 1
    return named


def _branches(dag: Dag, drawn: tuple[Box, ...], named: set[int], root: int) -> list[tuple[str, int]]:
    """Return the rows below a root: text and node."""

    def below(node: int, indent: str) -> Iterator[tuple[str, int]]:
        operands = dag.arguments(node)
        for slot, operand in enumerate(operands):
            last = slot == len(operands) - 1
            title = f"%{operand}" if operand in named else drawn[operand].title
            yield f"{indent}{'└─' if last else '├─'} {title}", operand
            if operand not in named:
                yield from below(operand, indent + ("   " if last else "│  "))

    return list(below(root, ""))
