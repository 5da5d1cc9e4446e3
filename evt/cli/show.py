"""``evt show``: a program after any stage."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, TypeGuard

import click

from evt.cli.output import output_option, write
from evt.cli.request import Request, takes_program

if TYPE_CHECKING:
    from evt.plan import Plan


@click.command("show", epilog="Example: evt show --stage optimised 'D = max(acc + bias, 0)'")
@click.option(
    "--stage",
    type=click.Choice(["tree", "dag", "typed", "optimised", "plan"]),
    default="dag",
    show_default=True,
    help="The stage after which the program is shown.",
)
@takes_program()
@output_option("Write it there instead of printing it.")
def command(request: Request, stage: str, output: str | None) -> None:
    """Print a program as it is after a stage of the compiler.

    tree: as parsed, fully parenthesised. dag: as a graph. typed: with the type of every value. optimised:
    after the optimiser. plan: what the templates print, decided for the target.
    """
    write(output, _STAGES[stage](request))


def _tree(request: Request) -> str:
    from evt.language import format_tree, parse

    return format_tree(parse(request.source))


def _typed(request: Request) -> str:
    from evt.spec import typed_graph

    return str(typed_graph(request.program.spec, request.a, request.b))


def _optimised(request: Request) -> str:
    from evt.spec import optimised_graph

    return str(optimised_graph(request.program.spec, request.a, request.b))


def _plan(request: Request) -> Plan:
    return request.program.plan(request.arch, request.a, request.b, shapes=request.shapes)


_STAGES: dict[str, Callable[[Request], str]] = {
    "tree": _tree,
    "dag": lambda request: str(request.program.spec.dag),
    "typed": _typed,
    "optimised": _optimised,
    "plan": lambda request: format_plan(_plan(request)),
}


def format_plan(plan: Plan) -> str:
    """A plan for people: one line a fact, one line a node; what is at its default is left out."""
    return "\n".join(_lines(plan, "")) + "\n"


def _lines(value: object, indent: str) -> Iterator[str]:
    """A value of fields, each on lines of its own."""
    for name, item in _facts(value):
        if _is_table(item):
            yield f"{indent}{name}:"
            for position, row in enumerate(item):
                yield f"{indent}  {position}: {_row(row)}"
                for _, nested in _facts(row):
                    if _is_table(nested):
                        yield from (f"{indent}     {_row(each)}" for each in nested)
        elif dataclasses.is_dataclass(item):
            yield f"{indent}{name}:"
            yield from _lines(item, f"{indent}  ")
        else:
            yield f"{indent}{name}: {_text(item)}"


def _row(value: object) -> str:
    """A value of fields on one line, without the tables in it."""
    return "  ".join(f"{name}={_text(item)}" for name, item in _facts(value) if not _is_table(item))


def _facts(value: Any) -> list[tuple[str, Any]]:
    """The fields that are not at their default."""
    facts = ((field, getattr(value, field.name)) for field in dataclasses.fields(value))
    return [(field.name, item) for field, item in facts if item != field.default]


def _is_table(value: object) -> TypeGuard[tuple[object, ...]]:
    return isinstance(value, tuple) and any(map(dataclasses.is_dataclass, value))


def _text(value: object) -> str:
    if isinstance(value, tuple):
        return f"({', '.join(map(_text, value))})"
    return str(value) if value != "" else "-"
