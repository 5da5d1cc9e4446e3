"""The arguments of most commands: a PROGRAM, its target, types and sizes."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import click

from evt.cli.imports import import_all
from evt.cli.numbers import Dims, Extent, Numbers
from evt.cli.sections import CompleteItems, files, one_of, routes, targets

if TYPE_CHECKING:
    from evt.diagnostics import Source
    from evt.grouped import GroupedProgram
    from evt.program import Program
    from evt.request import Shapes

_Command = Callable[..., None]

DEFAULT_ARCH = "sm90"


@dataclass(frozen=True)
class Invocation:
    """A program and its target, as given on the command line. Nothing is read or checked before it is needed.

    ``settings`` are the given keywords of a Program. ``extents`` are the values of ``--m``, ``--n``, ``--k`` and
    ``--l``; for grouped products an extent may be a tuple, one for each group. ``a_shape`` and ``b_shape`` are the
    shapes of a convolution's operands.
    """

    text: str
    operation: str | None
    a: str | None
    b: str | None
    arch: str = DEFAULT_ARCH
    settings: Mapping[str, Any] = field(default_factory=dict)
    extents: Mapping[str, int | tuple[int, ...]] = field(default_factory=dict)
    a_shape: tuple[int, ...] | None = None
    b_shape: tuple[int, ...] | None = None

    @cached_property
    def source(self) -> Source:
        """The program's text. Raise ProgramError (E0105) if it cannot be read."""
        return read_source(self.text)

    @cached_property
    def program(self) -> Program | GroupedProgram:
        """The program. Raise EvtError, and click.UsageError for options that contradict its header."""
        from evt.ir.dtype import BY_NAME

        program: Program | GroupedProgram
        if self.operation == "grouped_gemm":
            from evt.grouped import GroupedProgram

            program = GroupedProgram(self.source, **self.settings)
        else:
            from evt.program import Program

            program = Program(self.source, "gemm" if self.operation is None else self.operation, **self.settings)
        if self.operation not in (None, program.request.operation):
            raise click.UsageError(f"The program's header says {program.request.operation}, not {self.operation}.")
        for operand, given in zip(program.request.dag.operands, (self.a, self.b), strict=False):
            if given is not None and BY_NAME.get(given) not in (None, operand.dtype):
                name = operand.name
                raise click.UsageError(f"The program's header says {name} is {operand.dtype}, not {given}.")
        return program

    @cached_property
    def shapes(self) -> Any:
        """The shapes of A and B, in PyTorch's order, as the program's methods take them; a list for grouped products.

        None without sizes. Raise click.UsageError for missing sizes, and for sizes that the operation does not have.
        """
        found = self.products_or(None)
        return list(found) if self.program.request.grouped and found else found[0] if found else None

    def products_or(self, defaults: Mapping[str, int | tuple[int, ...]] | None) -> tuple[Shapes, ...]:
        """Return the shapes of A and B of each product: one for each group, or () if no sizes are known.

        ``defaults`` are the extents of a matrix product that were not given.
        """
        request, given = self.program.request, dict(self.extents)
        if request.convolution is not None:
            if given:
                name = next(iter(given))
                raise click.UsageError(f"--{name} is for matrix products; give --a-shape and --b-shape.")
            if (self.a_shape is None) != (self.b_shape is None):
                raise click.UsageError("Give --a-shape and --b-shape together.")
            return () if self.a_shape is None or self.b_shape is None else ((self.a_shape, self.b_shape),)
        if self.a_shape is not None or self.b_shape is not None:
            raise click.UsageError("--a-shape and --b-shape are for convolutions; give --m, --n and --k.")
        if "l" in given and request.operation != "gemm":
            raise click.UsageError(_NO_BATCHES[request.operation])
        if not given and defaults is None:
            return ()
        sizes: dict[str, int | tuple[int, ...]] = {**(defaults or {}), **given}
        if missing := [f"--{mode}" for mode in "mnk" if mode not in sizes]:
            are = "is" if len(missing) == 1 else "are"
            raise click.UsageError(f"Give --m, --n and --k together; {' and '.join(missing)} {are} missing.")
        if request.grouped and "m" not in given:
            sizes["m"] = _GROUP_ROWS
        products = _products(sizes)
        if len(products) != 1 and not request.grouped:
            raise click.UsageError("An extent has several sizes only in groups; give --op grouped_gemm.")
        return tuple(_shapes(each, request.operand_modes) for each in products)


#: The reason that an operation has no --l.
_NO_BATCHES = {
    "linear": "--l is for gemm; --m counts the rows of all batches of a linear map.",
    "grouped_gemm": "--l is for gemm; give several sizes for groups, as in --m 128,64.",
}
#: The rows of each group without --m.
_GROUP_ROWS = (300, 128, 77, 1)


def _products(sizes: Mapping[str, int | tuple[int, ...]]) -> list[dict[str, int]]:
    """Return the extents of each product. A single extent applies to all products.

    Raise click.UsageError for different numbers of extents.
    """
    several = {mode: each for mode, each in sizes.items() if isinstance(each, tuple)}
    counts = {mode: len(each) for mode, each in several.items()}
    if len(set(counts.values())) > 1:
        found = " and ".join(f"{count} of --{mode}" for mode, count in counts.items())
        raise click.UsageError(f"There are {found}; give one size for each group, or one for all.")
    count = next(iter(counts.values()), 1)
    return [
        {mode: each[number] if isinstance(each, tuple) else each for mode, each in sizes.items()}
        for number in range(count)
    ]


def _shapes(sizes: Mapping[str, int], modes: tuple[tuple[str, ...], tuple[str, ...]]) -> Shapes:
    """Return the shapes of A and B of a matrix product."""
    batch = [sizes["l"]] if "l" in sizes else []
    a, b = ([*batch, *(sizes[mode] for mode in each)] for each in modes)
    return a, b


def _operations(ctx: click.Context, parameter: click.Parameter, text: str) -> list[str]:
    """Complete the name of an operation."""
    from evt.ir.lower import OPERATIONS

    return one_of((*OPERATIONS, "grouped_gemm"))(ctx, parameter, text)


_READING = (
    click.option(
        "--op",
        metavar="OPERATION",
        shell_complete=_operations,
        help="The operation: gemm, linear, grouped_gemm, conv1d to conv3d; for a convolution's gradients conv2d_dgrad, "
        "conv2d_wgrad. [default: the header's, else gemm]",
    ),
    click.option(
        "--import",
        "imports",
        metavar="MODULE|FILE.py",
        multiple=True,
        shell_complete=files,
        expose_value=False,
        is_eager=True,
        callback=import_all,
        help="Import a module first; its evt.function calls add functions. May be given several times.",
    ),
)
TYPES = ("f16", "bf16", "f32", "tf32", "f64", "e4m3", "e5m2", "i8", "u8")
_type = functools.partial(click.option, metavar="TYPE", shell_complete=one_of(TYPES))
_OPERANDS = (
    _type("--dtype", help=f"Type of A and B: {', '.join(TYPES)}. [default: the header's, else f16]"),
    _type("--a", help="Type of A, overrides --dtype."),
    _type("--b", help="Type of B, overrides --dtype."),
)
#: The names of evt.plan.TARGETS, which is slow to import.
TARGET_NAMES = "sm80, sm86, sm89, sm90, sm100, sm103, sm120"
#: The forms of a target's name, for help texts.
TARGET_HELP = f"{TARGET_NAMES}; a GPU, such as h100, a100 or rtx4090; or native, this machine's GPU"
_ARCH = click.option(
    "--arch",
    metavar="NAME",
    default=DEFAULT_ARCH,
    show_default=True,
    shell_complete=targets,
    help=f"Target: {TARGET_HELP}.",
)


def _configurations(ctx: click.Context, parameter: click.Parameter, text: str) -> list[str]:
    """Complete the name of a configuration of the routes that the program can take."""
    from evt.errors import EvtError
    from evt.request import packed_problem, surveyed

    given = ctx.params
    settings = {name: given[name] for name in ("route", *_GEOMETRY) if given.get(name) is not None}
    a, b = (given.get(name) or given.get("dtype") for name in ("a", "b"))
    program = given.get("program") or next(iter(ctx.args), "")  # click leaves it there if the line ends in an option
    asked = Invocation(program, given.get("op"), a, b, settings=settings)
    try:
        request = asked.program.request
        found = surveyed(request, packed_problem(request, given.get("arch") or DEFAULT_ARCH, a, b))
    except (EvtError, click.UsageError):
        return []
    names = {config.name: None for each in found.asked if each.applies for config in each.configs}
    return [name for name in names if name.startswith(text)]


_ROUTE = (
    click.option(
        "--route",
        metavar="NAME",
        shell_complete=routes,
        help="Use this route of `evt explain`, or a kind of route (stock, evt, ...). [default: the best]",
    ),
    click.option(
        "--config", metavar="NAME", shell_complete=_configurations, help="Use this configuration of the route."
    ),
)
_NUMERICS = (
    click.option(
        "--numerics",
        type=click.Choice(["precise", "eager", "match_eager"]),
        help="eager: round as eager PyTorch does; match_eager is an alias. [default: precise]",
    ),
    click.option("--batch-invariant", is_flag=True, help="Let no bit of a row depend on the number of rows."),
    click.option(
        "--relaxed", is_flag=True, help="Allow rewrites that are exact for real numbers but not in floating point."
    ),
    click.option("--fast-math", is_flag=True, help="Allow the hardware's approximate functions."),
    click.option(
        "--accumulate",
        type=click.Choice(["precise", "fast"]),
        help="fast: tensor cores add products of 8-bit floats, with fewer bits than f32. [default: precise]",
    ),
    click.option(
        "--deterministic/--no-deterministic",
        default=None,
        help="Make reductions bitwise reproducible, or use atomics. [default: deterministic]",
    ),
)


_GEOMETRY = {
    "stride": click.option("--stride", type=Numbers(), metavar="S|S,S", help="Stride of a convolution. [default: 1]"),
    "padding": click.option(
        "--padding",
        type=Numbers(words=("same", "valid"), pairs=True),
        metavar="P|P,P|same|valid",
        help="Padding of a convolution; before:after pairs, as in 0:1,2:1, pad each side differently. [default: 0]",
    ),
    "dilation": click.option(
        "--dilation", type=Numbers(), metavar="D|D,D", help="Dilation of a convolution. [default: 1]"
    ),
    "groups": click.option("--groups", type=Numbers(), metavar="G", help="Groups of a convolution. [default: 1]"),
    "output_padding": click.option(
        "--output-padding",
        type=Numbers(),
        metavar="P|P,P",
        help="Extra size of a strided dgrad's result, as in PyTorch.",
    ),
    "kernel_size": click.option(
        "--kernel-size", type=Numbers(), metavar="R|R,S", help="Spatial size of the weight that a wgrad computes."
    ),
}
_EXTENT = Extent()
_SHAPES = (
    click.option(
        "--a-shape",
        type=Dims(),
        metavar="N,C,H,W",
        help="Shape of a convolution's A in PyTorch's order: the input, or the output's gradient for dgrad and wgrad.",
    ),
    click.option(
        "--b-shape",
        type=Dims(),
        metavar="K,C,R,S",
        help="Shape of a convolution's B: the weight, or for a wgrad the input.",
    ),
)


def takes_geometry(command: _Command) -> _Command:
    """Add ``--stride`` and the other options of a convolution. The given ones are among the command's ``settings``."""

    @functools.wraps(command)
    def decorated(*arguments: Any, settings: Mapping[str, Any], **rest: Any) -> None:
        options = {name: rest.pop(name) for name in _GEOMETRY}
        given = {name: value for name, value in options.items() if value is not None}
        command(*arguments, settings={**settings, **given}, **rest)

    return _add(decorated, tuple(_GEOMETRY.values()))


def takes_sizes(command: _Command, defaults: Mapping[str, int] | None = None) -> _Command:
    """Add ``--m``, ``--n``, ``--k``, ``--l``, ``--a-shape`` and ``--b-shape``. The command gets ``sizes`` of an
    Invocation.

    ``defaults`` are the sizes that the command fills in, for the help text.
    """
    extents = {
        "m": "Rows of D; for groups, one size or one for each, as in 128,64.",
        "n": "Columns of D, in the same form.",
        "k": "Contraction dimension, in the same form.",
        "l": "Number of batches.",
    }

    @functools.wraps(command)
    def decorated(*arguments: Any, **rest: Any) -> None:
        options = {mode: rest.pop(mode) for mode in extents}
        given = {mode: value for mode, value in options.items() if value is not None}
        sizes = {"extents": given, "a_shape": rest.pop("a_shape"), "b_shape": rest.pop("b_shape")}
        command(*arguments, sizes=sizes, **rest)

    options = []
    for mode, text in extents.items():
        default = defaults.get(mode, "not batched") if defaults is not None else None
        with_default = f"{text} [default: {default}]" if default else text
        options.append(click.option(f"--{mode}", type=_EXTENT, metavar="SIZE", help=with_default))
    return _add(decorated, (*options, *_SHAPES))


def operation_option(command: _Command) -> _Command:
    """Add the options for reading programs: ``--op``, which the command gets as ``op``, and ``--import``."""
    return _add(command, _READING)


def takes_operands(command: _Command) -> _Command:
    """Add ``--dtype``, ``--a`` and ``--b``: the command gets ``a`` and ``b``."""

    @functools.wraps(command)
    def decorated(*arguments: Any, dtype: str | None, a: str | None, b: str | None, **rest: Any) -> None:
        command(*arguments, a=dtype if a is None else a, b=dtype if b is None else b, **rest)

    return _add(decorated, _OPERANDS)


def takes_settings(command: _Command, *, route: bool = True) -> _Command:
    """Add the options for the keywords of a Program. The command gets the given ones as ``settings``."""
    names = ["numerics", "accumulate", "relaxed", "fast_math", "deterministic", "batch_invariant"]
    names += ["route", "config"] * route

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


def takes_program(
    *,
    arch: bool = True,
    route: bool = True,
    sizes: bool = True,
    defaults: Mapping[str, int] | None = None,
    complete: CompleteItems = files,
) -> Callable[[_Command], _Command]:
    """Add PROGRAM and the options of an :class:`Invocation`, which the command gets as ``invocation``.

    ``defaults`` are the extents that the command uses if none are given. ``complete`` completes PROGRAM.
    """

    def decorate(command: _Command) -> _Command:
        @functools.wraps(command)
        def decorated(
            program: str, op: str | None, a: str | None, b: str | None, settings: Mapping[str, Any], **rest: Any
        ) -> None:
            target = {"arch": rest.pop("arch")} if arch else {}
            given = rest.pop("sizes") if sizes else {}
            command(Invocation(program, op, a, b, settings=settings, **target, **given), **rest)

        with_sizes = takes_sizes(decorated, defaults) if sizes else decorated
        with_settings = takes_settings(takes_geometry(with_sizes), route=route)
        with_operands = takes_operands(_add(with_settings, (_ARCH,) * arch))
        return _add(with_operands, (click.argument("program", shell_complete=complete), operation_option))

    return decorate


def is_file(text: str) -> bool:
    """Return whether PROGRAM names a file: it exists, ends in .evt, or has a path separator and no ``=``."""
    if "\n" in text or "\0" in text:
        return False
    return os.path.exists(text) or text.endswith(".evt") or (os.sep in text and "=" not in text)


def read_source(text: str) -> Source:
    """Return the text of PROGRAM. Raise ProgramError (E0105) if it cannot be read."""
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
