"""``evt emit``: the C++ of a program."""

from __future__ import annotations

import click

from evt.cli.output import output_option, write
from evt.cli.request import Request, takes_program


@click.command("emit", epilog="Example: evt emit 'D = relu(acc + bias)' --arch sm80 -o kernel.cu")
@takes_program()
@output_option("Write the C++ there instead of printing it.")
def command(request: Request, output: str | None) -> None:
    """Print the C++ of a program's kernel.

    The result is one self-contained file. Its tensors are packed and aligned to 16 bytes, or as far as the given sizes
    allow; it starts with the nvcc command that compiles it.
    """
    write(output, request.program.emit(request.arch, request.a, request.b, shapes=request.shapes))
