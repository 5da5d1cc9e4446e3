"""``evt graph``: a program as a drawing."""

from __future__ import annotations

import os

import click

from evt.cli.invocation import Invocation, takes_program
from evt.cli.output import json_option, json_text, output_option, write
from evt.cli.sections import Command
from evt.cli.show import graph_json

#: The formats, as `evt.draw` has them: the help needs no room of drawings.
_FORMATS = ("text", "mermaid", "dot", "svg")


@click.command("graph", cls=Command, epilog="Example: evt graph 'D = relu(acc + bias)' -o graph.svg")
@click.option(
    "--format",
    type=click.Choice(_FORMATS),
    help="Format of the drawing; Graphviz displays dot. [default: the file's suffix, else text]",
)
@click.option(
    "--stage",
    type=click.Choice(["dag", "typed", "optimised"]),
    default="dag",
    show_default=True,
    help="Draw the graph as written, with types, or optimised.",
)
@takes_program(arch=False, route=False, sizes=False)
@output_option("Write the drawing to this file instead of printing it.")
@json_option
def command(invocation: Invocation, format: str | None, stage: str, output: str | None, json: bool) -> None:
    """Draw a program's graph."""
    drawing = invocation.program.graph(stage, invocation.a, invocation.b)
    if json:
        facts = {"format": format or "text", "drawing": drawing.to(format or "text")}
        text = json_text({"ok": True, **facts, "nodes": graph_json(drawing.dag)})
    else:
        text = drawing.to(format or _format_of(output))
    write(output, text if text.endswith("\n") else f"{text}\n")


def _format_of(output: str | None) -> str:
    """Return the format that a file's suffix names. Raise click.BadParameter for an unknown suffix."""
    from evt.draw.drawing import SUFFIXES

    suffix = ".txt" if output in (None, "-", os.devnull) else os.path.splitext(str(output))[1].lower()
    if suffix not in SUFFIXES:
        known = ", ".join(f"{known} ({format})" for known, format in SUFFIXES.items())
        message = f"`{suffix}` is no format's suffix" if suffix else "the file has no suffix"
        raise click.BadParameter(f"{message}: {known}; or give --format.", param_hint="'-o' / '--output'")
    return SUFFIXES[suffix]
