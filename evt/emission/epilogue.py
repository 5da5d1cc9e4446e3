"""An epilogue's program as visitors of CUTLASS: ``visitors(program, plan) -> NestText``.

A step is a node of CUTLASS if its generation has one (cutlass_nodes.py), else an operation of evt (operations.py). A
family of kernels is a record of names.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial

from evt.emission.cutlass_nodes import cutlass_2x, cutlass_3x, cutlass_grouped
from evt.emission.expressions import comment
from evt.emission.operations import Names, listed, members, operation
from evt.emission.text import NestText, NodeText, VisitorText
from evt.plan import Plan
from evt.plan.epilogue.program import EpilogueProgram
from evt.plan.epilogue.step import Step
from evt.plan.target import Family


@dataclass(frozen=True, slots=True)
class Visitors:
    """The C++ of a family of visitors: operations of evt, CUTLASS's nodes, the templates of trees and graphs.

    ``wrapper`` is the template around the root that gives it an element type.
    """

    names: Names
    cutlass: Callable[[Step], NodeText | None]
    tree: str
    graph: str
    wrapper: str = ""

    def node(self, step: Step) -> NodeText:
        """Return the node of a step, without its origin."""
        return self.cutlass(step) or NodeText(step.name, operation(step, self.names), members(step, self.names))


def _on_tiles(namespace: str, name: str, arguments: tuple[str, ...]) -> str:
    """Return an operation of CUTLASS 3.x, on the lanes of an architecture."""
    return listed(f"{namespace}::Visitor", ("TileShape", "EpilogueTile", listed(f"evt::epilogue::{name}", arguments)))


def _on_thread_map(name: str, arguments: tuple[str, ...]) -> str:
    """Return an operation of CUTLASS 2.x, on the lanes of a thread map."""
    return listed("evt::threadblock::Visitor", ("ThreadMap", listed(f"evt::epilogue::{name}", arguments)))


def _family_3x(namespace: str) -> Visitors:
    """Return the family whose lanes are in a namespace."""
    names = Names(partial(_on_tiles, namespace))
    return Visitors(names, cutlass_3x, "fusion::Sm90EVT", "evt::fusion::Graph", "evt::fusion::WithElement")


_2X = Visitors(Names(_on_thread_map), cutlass_2x, "visitors::Sm80EVT", "evt::threadblock::Graph")
_SM90 = _family_3x("evt::sm90")
_FAMILIES: Mapping[Family, Visitors] = {
    "2x": _2X,
    "3x": _SM90,
    "sm100": _family_3x("evt::sm100"),
    "sm120": _SM90,
    "3x_grouped": replace(_SM90, cutlass=partial(cutlass_grouped, names=_SM90.names)),
}


def visitors(program: EpilogueProgram, plan: Plan) -> NestText:
    """Return the types of the nodes, each once, and of the visitors that they form.

    If no collective stores D, the family's wrapper is around the root.
    """
    family, steps = _FAMILIES[plan.family], program.steps
    nodes = tuple(_with_origin(family.node(step), step) for step in program.unique)
    wrapper = family.wrapper if plan.destination is None else ""
    own = {node.name: f"arguments_of_{node.name}" if node.arguments else "{}" for node in nodes}
    if not program.tree:
        names = [step.name for step in steps]
        edges = ", ".join(f"cute::seq<{', '.join(map(str, step.operands))}>" for step in steps)
        type_ = f"{family.graph}<\n    cute::tuple<{edges}>,\n    {', '.join(names)}>"
        return NestText(nodes, (VisitorText("Graph", type_, tuple(own[name] for name in names)),), wrapper)
    made: list[VisitorText] = []
    types: list[str] = []
    arguments: list[str] = []
    for index, step in enumerate(steps):
        name, given = step.name, own[step.name]
        if step.operands:
            name, type_ = f"Tree{index}", listed(family.tree, (name, *(types[operand] for operand in step.operands)))
            made.append(VisitorText(name, type_, (*(arguments[operand] for operand in step.operands), given)))
            given = f"arguments_of_{name}"
        types.append(name)
        arguments.append(given)
    return NestText(nodes, tuple(made), wrapper)


def _with_origin(node: NodeText, step: Step) -> NodeText:
    return replace(node, origin=comment(step.origin))
