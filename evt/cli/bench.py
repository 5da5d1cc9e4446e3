"""``evt bench``: evt against PyTorch, measured side by side on this machine's GPU."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import click

from evt.cli.output import progress
from evt.cli.request import Request, operation_option, takes_settings

_FORMULA = "D = relu(alpha*acc + beta*C) + residual"
_EXTENT = click.IntRange(1, 2**31 - 1)
_SIZE, _HOST_SIZE = 4096, 256


_BASELINES = ("eager", "compile", "max-autotune", "mm")


def _new_file(ctx: click.Context, parameter: click.Parameter, path: str | None) -> str | None:
    """A file to write; what cannot be written is refused before the work begins."""
    if path is None:
        return None
    parent = os.path.dirname(os.path.abspath(path))
    if not path or os.path.isdir(path):
        raise click.BadParameter(f"cannot write {path!r}: it is a directory.", ctx, parameter)
    if not os.path.isdir(parent) or not os.access(parent, os.W_OK):
        raise click.BadParameter(f"cannot write {path!r}: {parent} is not a writable directory.", ctx, parameter)
    return path


def _names(ctx: click.Context, parameter: click.Parameter, given: str) -> tuple[str, ...]:
    names = [name.strip() for name in given.split(",") if name.strip()]
    for name in names:
        if name not in _BASELINES:
            known = ", ".join(_BASELINES)
            raise click.BadParameter(f"there is no baseline `{name}`. Baselines: {known}.", ctx, parameter)
    return tuple(dict.fromkeys(names))


@click.command("bench", epilog="Example: evt bench 'D = gelu(acc + bias)' --m 4096 --n 4096 --k 1024 --json bench.json")
@click.argument("program", required=False)
@operation_option
@click.option("--dtype", metavar="TYPE", help="Type of A and B. [default: the header's, else bf16]")
@click.option("--m", type=_EXTENT, help="Rows of D. [default: 4096; 256 with --host]")
@click.option("--n", type=_EXTENT, help="Columns of D. [default: as --m]")
@click.option("--k", type=_EXTENT, help="Length of the sums. [default: as --m]")
@click.option("--l", type=_EXTENT, help="Batches. [default: not batched]")
@click.option("--suite", type=click.Choice(["gemm", "epilogue"]), help="Fixed programs and sizes in place of PROGRAM.")
@click.option("--rounds", type=click.IntRange(1, 100_000), default=51, show_default=True, help="Samples.")
@click.option(
    "--baselines",
    metavar="LIST",
    default=",".join(_BASELINES),
    show_default=True,
    callback=_names,
    help="What to measure evt against.",
)
@click.option("--seed", type=click.IntRange(0, 2**63 - 1), default=0, show_default=True, help="Of the data.")
@click.option("--json", "json_file", metavar="FILE", callback=_new_file, help="Write all numbers to a file.")
@click.option("--host", is_flag=True, help="Measure the host time of one call, not the GPU's.")
@takes_settings
@click.pass_context
def command(
    ctx: click.Context,
    program: str | None,
    op: str | None,
    dtype: str | None,
    m: int | None,
    n: int | None,
    k: int | None,
    l: int | None,  # noqa: E741
    suite: str | None,
    rounds: int,
    baselines: tuple[str, ...],
    seed: int,
    json_file: str | None,
    host: bool,
    settings: Mapping[str, Any],
) -> None:
    """Time a program's kernel against PyTorch, side by side on this machine's GPU.

    Without PROGRAM, D = relu(alpha*acc + beta*C) + residual is measured.

    Baselines: eager (the formula in PyTorch), compile and max-autotune (the same through torch.compile, and
    with mode="max-autotune-no-cudagraphs"), mm (the bare matrix product, torch.mm with out=). Every version's
    answer is checked first. The times are medians of rounds that run all versions in shuffled order, with the
    L2 cache flushed before each launch and the host's time hidden; evt is timed twice, which shows the noise.

    The suite gemm holds evt's own bars against torch.compile. The suite epilogue times evt's epilogues of one
    product side by side, without baselines: against the bare store of D, and against the time of that and of moving
    the epilogue's other tensors as fast as a copy does.

    The exit code is 1 when evt's kernel could not be measured, and 3 when its answer was wrong.
    """
    given = (program, op, m, n, k, l)
    if suite is not None and (host or settings or any(value is not None for value in given)):
        raise click.UsageError("--suite brings its own programs, sizes and kernels.")
    request = Request(program or _FORMULA, op, dtype, dtype, settings=settings)
    of_convolution = op is not None and op.startswith("conv")
    if of_convolution or request.program.convolution is not None:
        raise click.UsageError("evt bench measures products of matrices; `evt tune` times a convolution's routes.")
    known = request.program  # its diagnostics, before torch is imported
    if l is not None and known.operation == "linear":
        raise click.UsageError("--l is for gemm; the rows of a linear map's batches count in --m.")
    if dtype is None and not known.dag.operands:
        dtype = "bf16"
    known.typed(dtype, dtype)
    try:
        import torch
    except ModuleNotFoundError as error:
        raise click.ClickException("evt bench needs PyTorch: pip install 'evt-compiler[torch]'") from error
    from evt.bench import Case, bench_epilogues, bench_host, describe_machine, require_gpu
    from evt.bench import bench as measure
    from evt.bench import suite as suite_of
    from evt.bench.report import Report
    from evt.diagnostics import Diagnostic
    from evt.errors import InternalError

    m = m or (_HOST_SIZE if host else _SIZE)
    cases: tuple[Case, ...] = (Case(_title(request), known, m, n or m, k or m, l or 1, dtype),)
    if suite is not None:
        cases = suite_of(suite, dtype)
    measured = {"rounds": rounds, "baselines": () if suite == "epilogue" else baselines, "seed": seed, "suite": suite}
    report = Report(describe_machine(require_gpu()), {**measured, **settings}, json_file)
    try:
        if host:
            progress("measuring host time")
            report.add_host(bench_host(cases[0], seed=seed))
            return
        if suite == "epilogue":
            for group in bench_epilogues(cases, rounds=rounds, seed=seed, progress=progress):
                report.add_epilogues(group)
        else:
            for result in measure(cases, rounds=rounds, baselines=baselines, seed=seed, progress=progress):
                report.add(result)
    except torch.OutOfMemoryError as error:
        raise click.ClickException("not enough memory on the GPU for these sizes") from error
    except OSError as error:
        if json_file is None or error.filename is None:
            raise
        raise click.ClickException(f"cannot write {json_file}: {error.strerror or error}") from error
    if report.wrong:
        raise InternalError(Diagnostic("E0902", f"the kernel's answer is wrong: {', '.join(report.wrong)}"))
    ctx.exit(0 if report.complete else 1)


def _title(request: Request) -> str:
    name = request.source.name
    text = " ".join(request.source.text.split()) if name.startswith("<") else os.path.basename(name)
    return text if len(text) <= 60 else f"{text[:57]}..."
