"""Emission: ``emit(plan) -> str``, the text of one self-contained .cu file."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import jinja2

from evt import resources
from evt.plan.plan import Node, Plan
from evt.version import __version__

__all__ = ["emit"]


def emit(plan: Plan) -> str:
    """Print a plan. The text needs the CUTLASS and CUDA headers only; what it uses of ours is pasted in."""
    template = _environment().get_template(f"{plan.template}.cu.jinja")
    headers = [_header(name)[1] for name in _needed(plan.headers)]
    return template.render(plan=plan, nest=_nest(plan), headers=headers, version=__version__)


@dataclass(frozen=True, slots=True)
class _Visitor:
    """A composite: a tree of one node over its operands, or the whole topological visitor."""

    type: str
    types: tuple[str, ...]
    arguments: tuple[str, ...]
    edges: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Nest:
    """The visitor's types in the order in which C++ needs them."""

    kind: str
    unique: tuple[Node, ...]
    visitors: tuple[_Visitor, ...]
    wrapper: str = ""

    @property
    def root(self) -> str:
        """The visitor as the kernel takes it: wrapped where it, not the collective, stores every output."""
        return f"{self.wrapper}<{self.last}, ElementAux>" if self.wrapper else self.last

    @property
    def last(self) -> str:
        """The visitor that all others lead to."""
        return self.visitors[-1].type if self.visitors else self.unique[-1].name


def _nest(plan: Plan) -> _Nest:
    unique = tuple({node.name: node for node in plan.nodes}.values())
    own = {node.name: f"arguments_of_{node.name}" if node.arguments else "{}" for node in unique}
    if not plan.tree:
        names = tuple(node.name for node in plan.nodes)
        edges = tuple(f"cute::seq<{', '.join(map(str, node.operands))}>" for node in plan.nodes)
        visitor = _Visitor("Graph", names, tuple(own[name] for name in names), edges)
        return _Nest("topological", unique, (visitor,), plan.wrapper)
    visitors: list[_Visitor] = []
    types: list[str] = []
    arguments: list[str] = []
    for index, node in enumerate(plan.nodes):
        if node.operands:
            visitor = _Visitor(
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
    return _Nest("tree", unique, tuple(visitors), plan.wrapper)


@cache
def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(resources.directory("codegen") / "templates"),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,  # C++, not HTML; every name that reaches a template is ours
    )
    environment.filters["cute_int"] = lambda number: f"cute::Int<{number}>"
    environment.filters["c_string"] = json.dumps
    environment.filters["declare"] = lambda parameter: f"[[maybe_unused]] {parameter[0]} {parameter[1]}"
    environment.filters["inside"] = lambda name, template: f"{template}<{name}>" if template else name
    environment.filters["member_of"] = lambda name, owner: f"{owner}.{name}"
    environment.filters["template_arguments"] = lambda names: f"<{', '.join(names)}>" if names else ""
    return environment


_INCLUDE = re.compile(r'^#include "evt/([\w.]+)"\n', re.MULTILINE)


def _needed(names: Sequence[str]) -> list[str]:
    """Our headers and those that they include, each after what it includes."""
    order: list[str] = []

    def visit(name: str) -> None:
        if name not in order:
            for included in _header(name)[0]:
                visit(included)
            order.append(name)

    for name in names:
        visit(name)
    return order


@cache
def _header(name: str) -> tuple[tuple[str, ...], str]:
    """The headers of ours that a header includes, and its text without these lines."""
    text = resources.text("codegen", f"include/evt/{name}")
    return tuple(_INCLUDE.findall(text)), _INCLUDE.sub("", text).strip()
