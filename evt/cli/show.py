"""``evt show``: a program after any stage."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, TypeGuard

import click

from evt.cli.invocation import DEFAULT_ARCH, Invocation, takes_program
from evt.cli.output import json_option, json_text, output_option, write
from evt.cli.sections import Command

if TYPE_CHECKING:
    from evt.gradient import Gradient
    from evt.ir import Dag
    from evt.plan import Plan


@click.command("show", cls=Command, epilog="Example: evt show --stage optimised 'D = max(acc + bias, 0)'")
@click.option(
    "--stage",
    type=click.Choice(["tree", "dag", "typed", "optimised", "plan", "gradient"]),
    default="dag",
    show_default=True,
    help="Show the program after this stage.",
)
@click.option("--origins", is_flag=True, help="Print the source expression of each value of a graph.")
@takes_program()
@output_option("Write it to this file instead of printing it.")
@json_option
def command(invocation: Invocation, stage: str, origins: bool, output: str | None, json: bool) -> None:
    """Print a program's form after a compiler stage.

    tree: as parsed, fully parenthesised. dag: as a graph. typed: with the type of every value. optimised: after the
    optimiser. plan: the input of the templates, for the target. gradient: the forward and backward programs of
    autograd, and the values that are saved between them.
    """
    from evt.ir import format_dag
    from evt.request import STAGES, graph_at

    if invocation.arch != DEFAULT_ARCH:
        from evt.plan import find_target

        find_target(invocation.arch)  # an unknown target is refused before every stage
    is_graph = stage in STAGES
    graph = graph_at(invocation.program.request, stage, invocation.a, invocation.b) if is_graph else None
    if graph is None and origins:
        raise click.UsageError(f"--origins is for the stages {', '.join(STAGES)}.")
    text = format_dag(graph, origins=origins) if graph is not None else _OTHERS[stage](invocation)
    if json:
        nodes = {} if graph is None else {"nodes": graph_json(graph)}
        text = json_text({"ok": True, "stage": stage, "text": text, **nodes}) + "\n"
    write(output, text)


def graph_json(dag: Dag) -> list[dict[str, object]]:
    """Return the nodes of a graph: the operation, the numbers of its operands, the type if it has one, the origin."""
    from evt.ir import TypedDag
    from evt.ir.origin import describe
    from evt.ir.text import format_node

    return [
        {
            "operation": format_node(dag[node]),
            "operands": list(dag.arguments(node)),
            "type": str(dag.types[node]) if isinstance(dag, TypedDag) else None,
            "origin": describe(dag.origins[node], dag.source),
        }
        for node in range(len(dag))
    ]


def _tree(invocation: Invocation) -> str:
    from evt.language import format_tree, parse

    return format_tree(parse(invocation.source))


def _plan(invocation: Invocation) -> Plan:
    return invocation.program.plan(invocation.arch, invocation.a, invocation.b, shapes=invocation.shapes)


def _gradient(invocation: Invocation) -> Gradient:
    from evt.gradient.program import whole_gradient

    return whole_gradient(invocation.program.request, invocation.a, invocation.b)


#: The other stages, as text.
_OTHERS: dict[str, Callable[[Invocation], str]] = {
    "tree": lambda invocation: _tree(invocation),
    "plan": lambda invocation: format_plan(_plan(invocation)),
    "gradient": lambda invocation: f"{_gradient(invocation)}\n",
}


def format_plan(plan: Plan) -> str:
    """Return a plan as text, one line per field or node, without fields that have their default value."""
    return "\n".join(_lines(plan, "")) + "\n"


def _lines(value: object, indent: str) -> Iterator[str]:
    """Yield the lines of a dataclass, one or more for each field."""
    for name, item in _facts(value):
        if _is_table(name, item):
            yield f"{indent}{name}:"
            for position, row in enumerate(item):
                yield f"{indent}  {position}: {_row(row)}"
                for _, nested in _facts(row):
                    yield from (f"{indent}     {line}" for line in _statements(nested))
        elif _has_fields(item) and not _is_printed(item):
            yield f"{indent}{name}: {type(item).__name__}"
            yield from _lines(item, f"{indent}  ")
        else:
            yield f"{indent}{name}: {_text(item)}"


def _statements(value: object) -> Iterator[str]:
    """Yield the statements of a region, the only field of a row that is printed on separate lines."""
    from evt.plan.epilogue.regions import Region

    if isinstance(value, Region):
        yield from map(str, value.statements)


def _row(value: object) -> str:
    """Return a dataclass on one line: its class and its fields."""
    return "  ".join((type(value).__name__, *(f"{name}={_text(item)}" for name, item in _facts(value))))


def _facts(value: Any) -> list[tuple[str, Any]]:
    """Return the fields that do not have their default value."""
    facts = ((field, getattr(value, field.name)) for field in dataclasses.fields(value))
    return [(field.name, item) for field, item in facts if item != field.default]


def _has_fields(value: object) -> bool:
    return dataclasses.is_dataclass(value)


def _is_table(name: str, value: object) -> TypeGuard[tuple[object, ...]]:
    """Return whether a value has rows: dataclasses without their own text, or any ``fields``."""
    if not isinstance(value, tuple) or not value or not all(map(_has_fields, value)):
        return False
    return name == "fields" or not all(map(_is_printed, value))


def _is_printed(value: object) -> bool:
    """Return whether a value's class defines its text."""
    return type(value).__str__ is not object.__str__


def _text(value: object) -> str:
    if isinstance(value, tuple):
        return f"({', '.join(map(_text, value))})"
    if _has_fields(value) and not _is_printed(value):
        return f"{type(value).__name__}({', '.join(f'{name}={_text(item)}' for name, item in _facts(value))})"
    return str(value) if value != "" else "-"
