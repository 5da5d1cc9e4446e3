"""``evt check``: diagnostics of several programs, without code generation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from evt.cli.invocation import (
    DEFAULT_ARCH,
    TARGET_HELP,
    Invocation,
    is_file,
    operation_option,
    takes_geometry,
    takes_operands,
    takes_settings,
    takes_sizes,
)
from evt.cli.output import json_option, print_json, print_text, report
from evt.cli.sections import Command, files, targets

if TYPE_CHECKING:
    from evt.diagnostics import Diagnostic


@click.command("check", cls=Command, epilog="Example: evt check samples/*.evt --arch sm90")
@click.argument("programs", nargs=-1, required=True, metavar="PROGRAM...", shell_complete=files)
@operation_option
@takes_operands
@click.option(
    "--arch",
    metavar="NAME",
    shell_complete=targets,
    help=f"Also check that this target supports the program: {TARGET_HELP}.",
)
@takes_settings
@takes_geometry
@takes_sizes
@click.option("-q", "--quiet", is_flag=True, help="Print nothing for valid programs.")
@json_option
@click.pass_context
def command(
    ctx: click.Context,
    programs: tuple[str, ...],
    op: str | None,
    a: str | None,
    b: str | None,
    arch: str | None,
    settings: Mapping[str, Any],
    sizes: Mapping[str, Any],
    quiet: bool,
    json: bool,
) -> None:
    """Check programs and report every mistake; generate nothing.

    For a valid program, print its inputs and outputs with types, modes and defaults, and its warnings. Warnings do not
    change the exit code.
    """
    from evt.diagnostics import visible

    found = []
    for text in programs:
        invocation = Invocation(text, op, a, b, DEFAULT_ARCH if arch is None else arch, settings, **sizes)
        name = "<stdin>" if text == "-" else text if is_file(text) else "<formula>"
        interface, diagnostics, warnings = _check(invocation, plan=arch is not None)
        found.append((name, interface, diagnostics, warnings))
        if json:
            continue
        if diagnostics or warnings:
            report((*diagnostics, *warnings))
        if not diagnostics and not quiet:
            print_text("\n".join([f"{visible(name)}: ok", *(f"    {line}" for line in interface)]))
    ok = not any(diagnostics for _, _, diagnostics, _ in found)
    if json:
        by_program: list[dict[str, Any]] = [
            {
                "name": name,
                "ok": not diagnostics,
                "interface": list(interface),
                "diagnostics": [each.to_json() for each in diagnostics],
                "warnings": [each.to_json() for each in warnings],
            }
            for name, interface, diagnostics, warnings in found
        ]
        every = {
            kind: [each for program in by_program for each in program[kind]] for kind in ("diagnostics", "warnings")
        }
        print_json({"ok": ok, **every, "programs": by_program})
    ctx.exit(0 if ok else 1)


def _check(
    invocation: Invocation, *, plan: bool
) -> tuple[tuple[str, ...], tuple[Diagnostic, ...], tuple[Diagnostic, ...]]:
    """Return the interface of a valid program, the diagnostics of an invalid one, and warnings."""
    from evt.errors import EvtError, InternalError
    from evt.ir.doubts import doubts
    from evt.ir.interface import format_interface
    from evt.request import problem_sizes, typed_graph

    try:
        typed = typed_graph(invocation.program.request, invocation.a, invocation.b)
        if plan:
            invocation.program.plan(invocation.arch, invocation.a, invocation.b, shapes=invocation.shapes)
        else:
            for shapes in invocation.products_or(None):
                problem_sizes(invocation.program.request, shapes)
    except InternalError:
        raise
    except EvtError as error:
        return (), error.diagnostics, ()
    return format_interface(typed), (), doubts(typed)
