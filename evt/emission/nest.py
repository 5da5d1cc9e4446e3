"""How visitor nodes nest: as a tree of types, or as one topological visitor."""

from __future__ import annotations

from dataclasses import replace

from evt.emission.expressions import comment
from evt.emission.text import NestText, VisitorText
from evt.emission.visitors import Dialect
from evt.plan.epilogue.program import EpilogueProgram


def nest(program: EpilogueProgram, dialect: Dialect, wrapper: str) -> NestText:
    """Return the types of the nodes, each once, and of the visitors that they form."""
    nodes = program.steps
    unique = tuple(replace(dialect.spell(node), origin=comment(node.origin)) for node in program.unique)
    own = {node.name: f"arguments_of_{node.name}" if node.arguments else "{}" for node in unique}
    if not program.tree:
        names = tuple(node.name for node in nodes)
        edges = tuple(f"cute::seq<{', '.join(map(str, node.operands))}>" for node in nodes)
        visitor = VisitorText("Graph", names, tuple(own[name] for name in names), edges)
        return NestText("topological", unique, (visitor,), wrapper)
    visitors: list[VisitorText] = []
    types: list[str] = []
    arguments: list[str] = []
    for index, node in enumerate(nodes):
        if node.operands:
            visitor = VisitorText(
                f"Tree{index}",
                (node.name, *(types[operand] for operand in node.operands)),
                (*(arguments[operand] for operand in node.operands), own[node.name]),
            )
            visitors.append(visitor)
            types.append(visitor.type)
            arguments.append(f"arguments_of_{visitor.type}")
        else:
            types.append(node.name)
            arguments.append(own[node.name])
    return NestText("tree", unique, tuple(visitors), wrapper)
