"""``evt build``: a program's kernel as a shared library."""

from __future__ import annotations

import shlex
import sys
import time
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

import click

from evt.cli.output import output_option, print_text, write
from evt.cli.request import Request, takes_program

if TYPE_CHECKING:
    from evt.build import BuildEvent


@click.command("build", epilog="Example: evt build 'D = relu(acc + bias)' --arch sm80 -o kernel.so")
@takes_program()
@output_option("The library to write.")
@click.option(
    "--print-command",
    is_flag=True,
    help="Build nothing; print the nvcc command that compiles an emitted file X.cu.",
)
@click.option("-v", "--verbose", is_flag=True, help="Print each step of the build.")
def command(request: Request, output: str | None, print_command: bool, verbose: bool) -> None:
    """Compile a program's kernel to a shared library.

    The library has a plain C interface, `evt_run` and `evt_schema`, and does not link libcuda. A kernel that was built
    before comes from the cache.
    """
    if print_command:
        print_text(_nvcc_command(request, output or "kernel.so"))
        return
    if output is None:
        raise click.UsageError("Missing option '-o'.")
    from evt.build import KernelSource, build_and_use
    from evt.diagnostics import visible
    from evt.emission import emit

    plan = request.program.plan(request.arch, request.a, request.b, shapes=request.shapes)
    started = time.monotonic()
    with _waiting(f"building for {plan.target.name}"):
        events: list[BuildEvent] = []
        source = KernelSource(emit(plan), plan.target.gencode)
        (library,) = build_and_use([source], lambda _, path: path.read_bytes(), verbose=verbose, on_event=events.append)
    write(output, library, executable=True)
    seconds = time.monotonic() - started
    cached = all(event.kind == "hit" for event in events)
    if output != "-":
        print_text(f"{visible(output)}: {'from the cache' if cached else f'built in {seconds:.1f} s'}")


def _waiting(text: str) -> AbstractContextManager[object]:
    """Return a spinner on a terminal: nvcc takes most of a minute."""
    if sys.stderr is None or not sys.stderr.isatty():
        return nullcontext()
    from rich.console import Console

    return Console(stderr=True).status(text)


def _nvcc_command(request: Request, library: str) -> str:
    """Return one nvcc command for the emitted text, which needs none of our headers."""
    from dataclasses import replace

    from evt.build import find_toolchain
    from evt.build.source import FLAGS

    target = request.program.plan(request.arch, request.a, request.b, shapes=request.shapes).target
    tools = replace(find_toolchain(), evt_include=None)
    gencode = f"-gencode=arch={target.virtual},code={target.gencode}"
    libraries = (f"-L{path}" for path in tools.cuda_lib)
    words = (str(tools.nvcc), *FLAGS, *tools.include_flags, gencode, *libraries, "-shared")
    return shlex.join((*words, str(Path(library).with_suffix(".cu")), "-o", library))
