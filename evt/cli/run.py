"""``evt run``: a run of a program on random inputs, compared with the oracle."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from evt.cli.invocation import Invocation, takes_program
from evt.cli.output import json_option, print_json, print_text, progress
from evt.cli.sections import SizedCommand

if TYPE_CHECKING:
    from evt.cli.trial import Trial

#: The default extents of a matrix product.
EXTENTS = {"m": 512, "n": 256, "k": 384}


@click.command(
    "run", cls=SizedCommand, epilog="Example: evt run 'D = relu(acc + bias)' --m 1024 --n 512 --k 768 --dtype bf16"
)
@takes_program(arch=False, defaults=EXTENTS)
@click.option(
    "--seed", type=click.IntRange(0, 2**63 - 1), default=0, show_default=True, help="Seed of the random values."
)
@click.option(
    "--device",
    type=click.Choice(["auto", "cpu", "cuda"]),
    default="auto",
    show_default=True,
    help="cuda: the compiled kernel. cpu: the reference. auto: cuda if there is a GPU.",
)
@json_option
@click.pass_context
def command(
    ctx: click.Context,
    invocation: Invocation,
    seed: int,
    device: str,
    json: bool,
) -> None:
    """Run a program on random inputs, and check the result.

    The outputs are compared with the reference.

    Tensors are normally distributed, with B scaled so that the accumulator has variance 1; integers are small; bits are
    random. Inputs with defaults use them. Other scalars are in [0.5, 1.5), integer ones in [1, 1000). Outputs are
    prefilled with NaN, or with a bit pattern for types without NaN. Index inputs are random permutations.

    Without a GPU the CPU reference runs, and the output says so. The tensors of a convolution are channels_last.
    Without --a-shape and --b-shape it has 2 images, 64 channels and 3x3 filters.

    Each group of grouped_gemm has its own size, as in --m 128,64,0. Without --m there are four groups.

    The exit code is 1 if an output differs from the f64 reference by more than the tolerance. The tolerance has two
    terms: twice the error of an f32 computation with a kernel's roundings, and 4 sqrt(k) 2^-24 for the order of
    summation. An accumulator with that error may fall on the other side of a cast or a comparison. Elements of bits,
    integers and 8-bit floats are compared one by one. Results that depend on integers only must be equal.
    """
    from evt.request import problem_sizes, typed_graph

    program = invocation.program
    shapes = invocation.products_or(EXTENTS)
    for each in shapes:
        problem_sizes(program.request, each)
    typed_graph(program.request, invocation.a, invocation.b)  # reports its diagnostics before torch is imported
    import torch

    from evt.bench.calls import shapes_of
    from evt.cli.trial import run_trial

    progress("running; the first time on a GPU the kernel is compiled")
    try:
        given = shapes or [shapes_of(program.request, None)]
        trial = run_trial(program, invocation.a, invocation.b, given, device, seed)
    except torch.OutOfMemoryError as error:
        raise click.ClickException("not enough memory on the GPU for these sizes") from error
    except RuntimeError as error:
        if not re.search("can't allocate memory|not enough memory", str(error)):
            raise
        raise click.ClickException("not enough memory for these sizes") from error
    if json:
        print_json(trial.to_json())
    else:
        _print(trial)
    ctx.exit(0 if trial.ok else 1)


def _print(trial: Trial) -> None:
    from evt.ir.convolution import CONVOLUTIONS

    how = f"the kernel, on {trial.gpu}" if trial.gpu else "the reference, on the CPU: no kernel was run"
    print_text(f"{trial.operation} by {how}")
    sizes = " ".join(f"{mode}={_extent(size)}" for mode, size in trial.sizes.items())
    a, b = (f"[{', '.join(map(str, shape))}]" for shape in (trial.a_shape, trial.b_shape))
    a, b = (a, b) if trial.operation in CONVOLUTIONS else ("", "")
    print_text(f"{sizes}, A {trial.a}{a}, B {trial.b}{b}")
    if trial.warning:
        click.echo(f"warning: {trial.warning}", err=True)
    for scalar, value in trial.scalars.items():
        print_text(f"{scalar} = {value:g}")
    for result in trial.outputs:
        shape = ", ".join(map(str, result.shape))
        verdict = "ok" if result.ok else "WRONG"
        error = f"relative error {result.relative_error:.2e}, bound {result.bound:.2e}"
        what = "are not finite"
        if result.unequal is not None:
            count = math.prod(result.shape) * (8 if result.dtype == "b1" else 1)
            error = f"{result.unequal} of {count} elements differ, {result.allowed} allowed"
            what = "are more than a step off"
        verdict += f": {result.unexpected} elements {what}" if result.unexpected else ""
        print_text(f"{result.name}: {result.dtype}[{shape}]  {error}  {verdict}")
    times = f"median of {trial.repetitions}; the first call took {_time(trial.first_seconds)}"
    print_text(f"time {_time(trial.seconds)} ({times})")


def _extent(size: int | Sequence[int]) -> str:
    """Return an extent as text: one number for each group, or a single number if they are equal."""
    if isinstance(size, int):
        return str(size)
    return ",".join(map(str, size if len(set(size)) > 1 else size[:1]))


def _time(seconds: float) -> str:
    for unit, scale in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= scale:
            return f"{seconds / scale:.2f} {unit}"
    return f"{seconds * 1e6:.1f} us"
