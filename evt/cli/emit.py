"""``evt emit``: the C++ of a program."""

from __future__ import annotations

import click

from evt.cli.interface import header_option, name_option
from evt.cli.invocation import Invocation, takes_program
from evt.cli.output import json_option, json_text, output_option, write
from evt.cli.sections import Command


@click.command("emit", cls=Command, epilog="Example: evt emit 'D = relu(acc + bias)' --arch sm80 -o kernel.cu")
@takes_program()
@output_option("Write the C++ to this file instead of printing it.")
@name_option
@header_option("Write a C header that declares the kernel's functions to this file.")
@json_option
def command(invocation: Invocation, output: str | None, name: str | None, header: str | None, json: bool) -> None:
    """Print the C++ of a program's kernel.

    The result is one self-contained file. Its tensors are packed and aligned to 16 bytes, or less if the given sizes
    require it. The first lines explain how to compile and call it.
    """
    from evt.emission import emitted

    plan = invocation.program.plan(invocation.arch, invocation.a, invocation.b, shapes=invocation.shapes)
    found = emitted(plan, name)
    text = found.text
    if json:
        facts = {"target": plan.target.name, "route": plan.route, "config": plan.config.name, "name": found.name}
        text = json_text({"ok": True, **facts, "text": found.text, "header": found.header}) + "\n"
    write(output, text, beside=None if header is None else (header, found.header))
