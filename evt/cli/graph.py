"""``evt graph``: a program as a drawing."""

from __future__ import annotations

import click

from evt.cli.output import output_option, write
from evt.cli.request import Request, takes_program


@click.command("graph", epilog="Example: evt graph 'D = relu(acc + bias)' --format svg -o graph.svg")
@click.option(
    "--format",
    type=click.Choice(["text", "mermaid", "dot", "svg"]),
    default="text",
    show_default=True,
    help="Format of the drawing; dot needs Graphviz to be viewed.",
)
@click.option(
    "--stage",
    type=click.Choice(["dag", "typed", "optimised"]),
    default="dag",
    show_default=True,
    help="The graph as written, with types, or optimised.",
)
@takes_program(arch=False, route=False, sizes=False)
@output_option("Write the drawing there instead of printing it.")
def command(request: Request, format: str, stage: str, output: str | None) -> None:
    """Draw a program's graph."""
    from evt.draw import draw
    from evt.spec import optimised_graph, typed_graph

    program = request.program
    match stage:
        case "dag":
            dag = program.spec.dag
        case "typed":
            dag = typed_graph(program.spec, request.a, request.b)
        case _:
            dag = optimised_graph(program.spec, request.a, request.b)
    text = draw(dag, format)
    write(output, text if text.endswith("\n") else f"{text}\n")
