"""``evt build``: compilation of a program's kernel to a shared library."""

from __future__ import annotations

import shlex
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from evt.cli.interface import header_beside, header_option, name_option
from evt.cli.invocation import Invocation, takes_program
from evt.cli.output import json_option, output_option, print_json, print_text, write
from evt.cli.sections import Command

if TYPE_CHECKING:
    from evt.compilation import BuildEvent


@click.command("build", cls=Command, epilog="Example: evt build 'D = relu(acc + bias)' --arch sm80 -o kernel.so")
@takes_program()
@output_option("The library to write.")
@name_option
@header_option("Write the C header to this file. [default: X.h next to the library X.so]")
@click.option(
    "--print-command",
    is_flag=True,
    help="Print the nvcc command that compiles an emitted file X.cu; build nothing.",
)
@click.option("-v", "--verbose", is_flag=True, help="Print each step of the build, and the seconds of each phase.")
@json_option
def command(
    invocation: Invocation,
    output: str | None,
    name: str | None,
    header: str | None,
    print_command: bool,
    verbose: bool,
    json: bool,
) -> None:
    """Compile a program's kernel to a shared library with a C header.

    The library has a plain C interface and does not link libcuda. A kernel that was built before comes from the cache.
    """
    if print_command:
        nvcc = _nvcc_command(invocation, output or "kernel.so")
        print_json({"ok": True, "command": nvcc}) if json else print_text(nvcc)
        return
    if output is None:
        raise click.UsageError("Missing option '-o'.")
    if json and output == "-":
        raise click.UsageError("--json prints to standard output; write the library to a file.")
    from evt.compilation import build_and_use, source_of
    from evt.compilation.progress import Times
    from evt.diagnostics import visible
    from evt.emission import emitted

    header = header or header_beside(output)
    plan = invocation.program.plan(invocation.arch, invocation.a, invocation.b, shapes=invocation.shapes)
    started = time.monotonic()
    events: list[BuildEvent] = []
    times = Times()

    def hear(event: BuildEvent) -> None:
        events.append(event)
        times(event)

    kernel = emitted(plan, name)
    source = source_of(kernel, plan)
    (library,) = build_and_use([source], lambda _, path: path.read_bytes(), verbose=verbose, on_event=hear)
    if verbose and str(times):
        click.echo(f"evt: {times}", err=True)
    write(output, library, executable=True, beside=None if header is None else (header, kernel.header))
    seconds = time.monotonic() - started
    cached = all(event.kind == "hit" for event in events)
    if json:
        facts = {"cached": cached, "seconds": round(seconds, 3), "name": kernel.name}
        print_json({"ok": True, "library": output, "header": header, **facts})
    elif output != "-":
        made = "from the cache" if cached else f"built in {seconds:.1f} s"
        declared = "" if header is None else f"; {visible(header)} declares {kernel.name}_run"
        print_text(f"{visible(output)}: {made}{declared}")


def _nvcc_command(invocation: Invocation, library: str) -> str:
    """Return one nvcc command for the emitted text, which is self-contained."""
    from dataclasses import replace

    from evt.compilation import find_toolchain
    from evt.compilation.source import FLAGS

    target = invocation.program.plan(invocation.arch, invocation.a, invocation.b, shapes=invocation.shapes).target
    tools = replace(find_toolchain(), evt_include=None)
    gencode = f"-gencode=arch={target.virtual},code={target.gencode}"
    libraries = (f"-L{path}" for path in tools.cuda_lib)
    words = (str(tools.nvcc), *FLAGS, *tools.include_flags, gencode, *libraries, "-shared")
    return shlex.join((*words, str(Path(library).with_suffix(".cu")), "-o", library))
