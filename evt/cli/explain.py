"""``evt explain``: the reasons behind a program's plan, or the page of a diagnostic code."""

from __future__ import annotations

import re
import sys

import click

from evt.cli.invocation import Invocation, takes_program
from evt.cli.output import json_option, print_json, print_text, use_color
from evt.cli.sections import Command, codes_or_files, measured_gpus

#: Suggestions for an unknown code: their number, their largest distance from it, and the longest code that gets any.
_NEAREST, _SAME_KIND, _LONGEST_CODE = 3, 99, 12


@click.command("explain", cls=Command, epilog="Example: evt explain 'D = relu(acc + bias)' --arch sm80")
@takes_program(complete=codes_or_files)
@click.option(
    "--gpu",
    metavar="NAME",
    shell_complete=measured_gpus,
    help="Use the measurements of the GPU whose name contains this, if several GPUs were measured.",
)
@click.option("-v", "--verbose", is_flag=True, help="Print every rule of every route, and the steps of the epilogue.")
@json_option
def command(invocation: Invocation, gpu: str | None, verbose: bool, json: bool) -> None:
    """Explain a program, or the code of a diagnostic.

    For a program: the route of its kernel, the other routes, and the kernel's cost. With sizes, also the
    cost of the problem and the times of `evt tune`, which then decide the route. --verbose adds the rules of every
    route, and the reasons against it.

    For a code, as in `evt explain E0203`: its meaning, with an example.
    """
    if re.fullmatch(r"[EeWw]\d+", invocation.text):
        _explain_code(invocation.text.upper(), json)
        return
    program = invocation.program
    explanation = program.explain(invocation.arch, invocation.a, invocation.b, shapes=invocation.shapes, gpu=gpu)
    if json:
        print_json({"ok": True, **explanation.to_json()})
    else:
        print_text(explanation.details() if verbose else str(explanation))


def _explain_code(code: str, json: bool) -> None:
    from evt.diagnostics import CODES, page

    if code not in CODES:
        number = int(code[1:]) if len(code) < _LONGEST_CODE else 0
        near = sorted(sorted(CODES, key=lambda known: (known[:3] != code[:3], abs(int(known[1:]) - number)))[:_NEAREST])
        close = [known for known in near if abs(int(known[1:]) - number) <= _SAME_KIND]
        kinds = (
            "E01 to E04 are about the program, E05 the target, E06 a call, E07 building, E08 running, E09 evt, "
            "E10 models; W04 are warnings about the program"
        )
        raise click.UsageError(
            f"There is no diagnostic {code}. "
            + (f"Similar codes: {', '.join(close)}." if close else f"Codes have four digits: {kinds}.")
        )
    text = page(code)
    if json:
        print_json({"ok": True, "code": code, "title": CODES[code].title, "page": text})
    elif use_color(sys.stdout):
        from rich.console import Console
        from rich.markdown import Markdown

        Console(force_terminal=True).print(Markdown(text))
    else:
        print_text(text.rstrip("\n"))
