"""What most commands are asked for: a PROGRAM, and what it is compiled for."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
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
    """A program and what it is compiled for, as given; nothing is read or checked before it is asked for.

    ``settings`` are those keywords of a Program that were given.
    """

    text: str
    operation: str | None
    a: str | None
    b: str | None
    arch: str = DEFAULT_ARCH
    settings: Mapping[str, Any] = field(default_factory=dict)

    @cached_property
    def source(self) -> Source:
        """The program's text. Raises ProgramError (E0105) when it cannot be read."""
        return read_source(self.text)

    @cached_property
    def program(self) -> Program:
        """The program. Raises EvtError, and click.UsageError for options that its header contradicts."""
        from evt.ir.dtype import BY_NAME
        from evt.program import Program

        program = Program(self.source, self.operation or "gemm", **self.settings)
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
_TYPES = "f16, bf16, f32, tf32, f64, e4m3, e5m2, i8, u8"
_OPERANDS = (
    click.option("--dtype", metavar="TYPE", help=f"Type of A and B: {_TYPES}. [default: the header's, else f16]"),
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
_NUMERICS = (
    click.option(
        "--numerics",
        type=click.Choice(["precise", "match_eager"]),
        help="match_eager: round where eager PyTorch does. [default: precise]",
    ),
    click.option("--relaxed", is_flag=True, help="Allow algebra that does not hold for every float."),
    click.option("--fast-math", is_flag=True, help="Allow the hardware's approximations of functions."),
    click.option(
        "--deterministic/--no-deterministic",
        default=None,
        help="Reductions with the same bits every time, or by atomics. [default: the same bits]",
    ),
)


def takes_operands(command: _Command) -> _Command:
    """``--dtype``, ``--a`` and ``--b``: the command gets ``a`` and ``b``."""

    @functools.wraps(command)
    def decorated(*arguments: Any, dtype: str | None, a: str | None, b: str | None, **rest: Any) -> None:
        command(*arguments, a=a or dtype, b=b or dtype, **rest)

    return _add(decorated, _OPERANDS)


def takes_settings(command: _Command, *, route: bool = True) -> _Command:
    """The options for the keywords of a Program: the command gets those that were given, as ``settings``."""
    names = ["numerics", "relaxed", "fast_math", "deterministic", *["route", "config"] * route]

    @functools.wraps(command)
    def decorated(*arguments: Any, **rest: Any) -> None:
        options = {name: rest.pop(name) for name in names}
        given = {name: value for name, value in options.items() if value is not None}
        given = {name: value for name, value in given.items() if value or name == "deterministic" or value == ""}
        command(*arguments, settings=given, **rest)

    return _add(decorated, (*(_ROUTE if route else ()), *_NUMERICS))


def _add(command: _Command, options: Sequence[Callable[[_Command], _Command]]) -> _Command:
    for option in reversed(options):
        command = option(command)
    return command


def takes_program(*, arch: bool = True, route: bool = True) -> Callable[[_Command], _Command]:
    """PROGRAM and the options of a :class:`Request`, which the command gets as ``request``."""

    def decorate(command: _Command) -> _Command:
        @functools.wraps(command)
        def decorated(
            program: str, op: str | None, a: str | None, b: str | None, settings: Mapping[str, Any], **rest: Any
        ) -> None:
            target = {"arch": rest.pop("arch")} if arch else {}
            command(Request(program, op, a, b, settings=settings, **target), **rest)

        with_settings = takes_settings(decorated, route=route)
        with_operands = takes_operands(_add(with_settings, (_ARCH,) * arch))
        return _add(with_operands, (click.argument("program"), operation_option))

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
