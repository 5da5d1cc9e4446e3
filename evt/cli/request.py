"""What most commands are asked for: a PROGRAM, and what it is compiled for."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from evt.diagnostics import Source
    from evt.program import Program

_Command = Callable[..., None]

DEFAULT_ARCH = "sm90"


@dataclass(frozen=True)
class Request:
    """A program and what it is compiled for, as given; nothing is read or checked before it is asked for."""

    text: str
    operation: str | None
    a: str | None
    b: str | None
    arch: str = DEFAULT_ARCH
    route: str | None = None
    config: str | None = None

    @cached_property
    def source(self) -> Source:
        """The program's text. Raises ProgramError (E0105) when it cannot be read."""
        return read_source(self.text)

    @cached_property
    def program(self) -> Program:
        """The program. Raises EvtError, and click.UsageError for options that its header contradicts."""
        from evt.ir.dtype import BY_NAME
        from evt.program import Program

        program = Program(self.source, self.operation or "gemm", route=self.route, config=self.config)
        if self.operation not in (None, program.operation):
            raise click.UsageError(f"The program's header says {program.operation}, not {self.operation}.")
        for operand, given in zip(program.dag.operands, (self.a, self.b), strict=False):
            if given is not None and BY_NAME.get(given) not in (None, operand.dtype):
                name = operand.name
                raise click.UsageError(f"The program's header says {name} is {operand.dtype}, not {given}.")
        return program


operation_option = click.option(
    "--op", metavar="gemm|linear", help="The operation. [default: the program's header, else gemm]"
)
dtype_option = click.option(
    "--dtype", metavar="TYPE", help="Type of A and B: f16, bf16, tf32, f32. [default: the header's, else f16]"
)
_OPERANDS = (
    click.option("--a", metavar="TYPE", help="Type of A alone."),
    click.option("--b", metavar="TYPE", help="Type of B alone."),
)
_ARCH = click.option(
    "--arch", metavar="NAME", default=DEFAULT_ARCH, show_default=True, help="Target: sm80, sm86, sm89, sm90."
)
_ROUTE = (
    click.option("--route", metavar="NAME", help="A route of `evt explain`, instead of the best one."),
    click.option("--config", metavar="NAME", help="One of the route's configurations."),
)


def takes_program(*, arch: bool = True, route: bool = True) -> Callable[[_Command], _Command]:
    """PROGRAM and the options of a :class:`Request`, which the command gets as ``request``."""
    parameters = [click.argument("program"), operation_option, dtype_option, *_OPERANDS]
    parameters += [_ARCH] * arch + [*_ROUTE] * route

    def decorate(command: _Command) -> _Command:
        @functools.wraps(command)
        def decorated(program: str, op: str | None, dtype: str | None, **rest: Any) -> None:
            a, b = (rest.pop(name) or dtype for name in ("a", "b"))
            target = {name: rest.pop(name) for name in ("arch", "route", "config") if name in rest}
            command(Request(program, op, a, b, **target), **rest)

        for parameter in reversed(parameters):
            decorated = parameter(decorated)
        return decorated

    return decorate


def is_file(text: str) -> bool:
    """Whether PROGRAM names a file: one that exists, ends in .evt, or has a path's separator and no ``=``."""
    if "\n" in text or "\0" in text:
        return False
    return os.path.exists(text) or text.endswith(".evt") or (os.sep in text and "=" not in text)


def read_source(text: str) -> Source:
    """The text of PROGRAM. Raises ProgramError (E0105) when it cannot be read."""
    from evt.language.load import decode, read_program

    if text == "-":
        return decode(_read_stdin(), "<stdin>")
    if is_file(text):
        return read_program(text)
    return decode(text.encode("utf-8", "surrogateescape"), "<formula>")


def _read_stdin() -> bytes:
    from evt.diagnostics import Diagnostic
    from evt.errors import ProgramError
    from evt.language.load import MAX_BYTES

    try:
        return b"" if sys.stdin is None else sys.stdin.buffer.read(MAX_BYTES + 1)
    except OSError as error:
        message = f"cannot read standard input: {error.strerror or error}"
        raise ProgramError(Diagnostic("E0105", message)) from error
