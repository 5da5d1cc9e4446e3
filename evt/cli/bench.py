"""``evt bench``: measurements of evt and PyTorch, side by side on this machine's GPU."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from evt.cli.bench_results import diff, plot
from evt.cli.invocation import TYPES, Invocation, operation_option, takes_geometry, takes_settings, takes_sizes
from evt.cli.output import progress
from evt.cli.sections import Command, DefaultGroup, files, one_of

if TYPE_CHECKING:
    from evt.bench import Case

_FORMULA = "D = relu(alpha*acc + beta*C) + residual"
_OF_CONVOLUTIONS = "D = relu(acc + bias) + residual"
_SIZE, _HOST_SIZE = 4096, 256
#: The default sizes, for the help text.
_DEFAULTS = {"m": f"{_SIZE}; {_HOST_SIZE} with --host", "n": "as --m", "k": "as --m"}
#: Suites of convolutions, with their usual batch sizes.
NETWORK_BATCHES = {"resnet": 256, "unet": 2, "detector": 1, "depthwise": 32}

#: Suites of a model's projections.
_OF_PROJECTIONS = ("llm", "fp8")
#: Suites of whole models.
_OF_MODELS = ("models", "training")

_BASELINES = ("eager", "compile", "max-autotune", "mm")
_OF_ONE_CONVOLUTION = ("eager", "compile", "max-autotune", "cudnn", "conv")
#: Default baselines for suites of convolutions. max-autotune would take minutes per layer.
_OF_NETWORKS = ("eager", "compile", "cudnn", "conv")
#: Suites of whole models: the default baselines, and all baselines.
_OF_WHOLE_MODELS = ("eager", "compile")
_ALL_OF_MODELS = ("eager", "compile", "max-autotune", "evt-measured", "evt-max-autotune")
KNOWN = tuple(dict.fromkeys((*_BASELINES, *_OF_ONE_CONVOLUTION)))
_SUITES = ("gemm", "epilogue", *_OF_PROJECTIONS, *NETWORK_BATCHES, *_OF_MODELS)


def _new_file(ctx: click.Context, parameter: click.Parameter, path: str | None) -> str | None:
    """Return the file to write. Refuse a file that cannot be written, before the measurements begin."""
    if path is None:
        return None
    parent = os.path.dirname(os.path.abspath(path))
    if not path or os.path.isdir(path):
        raise click.BadParameter(f"cannot write {path!r}: it is a directory.", ctx, parameter)
    if not os.path.isdir(parent) or not os.access(parent, os.W_OK):
        raise click.BadParameter(f"cannot write {path!r}: {parent} is not a writable directory.", ctx, parameter)
    return path


def _names(ctx: click.Context, parameter: click.Parameter, given: str | None) -> tuple[str, ...] | None:
    if given is None:
        return None
    return tuple(dict.fromkeys(name.strip() for name in given.split(",") if name.strip()))


def _check_names(names: tuple[str, ...] | None, suite: str | None) -> None:
    known = _ALL_OF_MODELS if suite in _OF_MODELS else KNOWN
    for name in names or ():
        if name not in known:
            message = f"there is no baseline `{name}`. Baselines{f' of {suite}' if suite else ''}: {', '.join(known)}."
            raise click.BadParameter(message, param_hint="'--baselines'")


@click.group(
    "bench",
    cls=DefaultGroup,
    runs_alone=True,
    epilog="Example: evt bench 'D = gelu(acc + bias)' --m 4096 --n 4096 --k 1024 --json bench.json",
)
def command() -> None:
    """Time kernels and models against PyTorch.

    Subcommands compare and draw the times. `evt bench PROGRAM` means `evt bench run PROGRAM`.
    """


command.add_command(diff)
command.add_command(plot)


@command.command("run", cls=Command, epilog="Example: evt bench samples/bench/resnet50.toml --json resnet50.json")
@click.argument("program", required=False, shell_complete=files)
@operation_option
@click.option(
    "--dtype", metavar="TYPE", shell_complete=one_of(TYPES), help="Type of A and B. [default: the header's, else bf16]"
)
@functools.partial(takes_sizes, defaults=_DEFAULTS)  # type: ignore[arg-type]  # words are as good for the help
@click.option(
    "--suite",
    type=click.Choice(_SUITES),
    help="Fixed programs and sizes instead of PROGRAM. Convolutions use f16.",
)
@click.option(
    "--filter",
    "wanted",
    metavar="WORDS",
    help="Run the cases of a suite or a workload whose names contain these words.",
)
@click.option(
    "--batch",
    type=click.IntRange(1, 65535),
    help="Batch size of a suite of convolutions or models. "
    f"[default: {', '.join(f'{name} {count}' for name, count in NETWORK_BATCHES.items())}; each model's own]",
)
@click.option("--rounds", type=click.IntRange(1, 100_000), default=51, show_default=True, help="Number of samples.")
@click.option(
    "--baselines",
    metavar="LIST",
    callback=_names,
    shell_complete=one_of((*KNOWN, *(name for name in _ALL_OF_MODELS if name not in KNOWN))),
    help=f"Baselines to measure. [default: {','.join(_BASELINES)}; of a convolution {','.join(_OF_ONE_CONVOLUTION)}; "
    f"of networks {','.join(_OF_NETWORKS)}; of models {','.join(_OF_WHOLE_MODELS)}; of epilogue none]",
)
@click.option("--build-first", is_flag=True, help="Build the kernels of all models first, in parallel.")
@click.option(
    "--first-call", is_flag=True, help="Time first calls with empty caches, and in a second process, in seconds."
)
@click.option(
    "--seed", type=click.IntRange(0, 2**63 - 1), default=0, show_default=True, help="Seed of the random data."
)
@click.option(
    "--json",
    "json_file",
    metavar="FILE",
    callback=_new_file,
    shell_complete=files,
    help="Write all numbers to a file.",
)
@click.option("--host", is_flag=True, help="Measure the host time of a call instead of the GPU time.")
@takes_settings
@takes_geometry
@click.pass_context
def run(
    ctx: click.Context,
    program: str | None,
    op: str | None,
    dtype: str | None,
    sizes: Mapping[str, Any],
    suite: str | None,
    wanted: str | None,
    batch: int | None,
    rounds: int,
    baselines: tuple[str, ...] | None,
    build_first: bool,
    first_call: bool,
    seed: int,
    json_file: str | None,
    host: bool,
    settings: Mapping[str, Any],
) -> None:
    """Time a program or a workload against PyTorch on this GPU.

    A workload is a .toml file with programs, shapes and weights: `evt explain E0109` has an example. Without PROGRAM,
    measure D = relu(alpha*acc + beta*C) + residual, or D = relu(acc + bias) + residual for convolutions.

    Baselines: eager (the formula in PyTorch), compile and max-autotune (the formula under torch.compile, without and
    with mode="max-autotune-no-cudagraphs"), and mm (the bare matrix product, torch.mm with out=). Convolutions replace
    mm by conv (torch.nn.functional.conv2d and its variants) and add cudnn (cuDNN's fused convolution, if it supports
    the formula); both use cuDNN's benchmark mode. Every result is checked first. The times are medians over rounds that
    run all versions in shuffled order. Each launch starts with a flushed L2 cache, and host time is hidden. evt is
    timed twice, which shows the noise.

    The suite gemm checks evt's performance targets against torch.compile. The suite epilogue times several epilogues of
    one product and compares them with two references: the bare store of D, and a bound. The bound is the time of the
    bare store plus the time to copy the epilogue's other tensors. The suites llm and fp8 run the projections of Llama 3
    8B, and of 70B on eight GPUs, for 1 to 8192 tokens: with their epilogues, and in 8 bits with row and column scales.

    The suites resnet, unet, detector and depthwise run
    the convolutions of a network with three epilogues each: ResNet-50, Stable Diffusion's U-Net, an object detector,
    and the depthwise convolutions of EfficientNet and ConvNeXt.

    The suites models and training time whole models under eager PyTorch, torch.compile and backend="evt": inference,
    and a training step without the optimizer. They report the wall time, and the GPU's time in a CUDA graph. They have
    three more baselines: max-autotune, evt-measured (evt.tune) and evt-max-autotune. Each result is printed, and
    written with --json, as soon as it is measured. Separate the words of --filter by spaces or commas.

    With --first-call, these suites time the first call of each compiled model instead, in seconds: in a process with
    empty temporary caches, and in a second process with the caches of the first.

    The tensors of a convolution are channels_last. Without --a-shape and --b-shape it has batch size 2, 64 channels and
    a 3x3 kernel.

    The exit code is 1 if evt's kernel could not be measured, and 3 if its result was wrong.
    """
    from evt.program import Program
    from evt.request import problem_sizes, typed_graph
    from evt.workload import is_workload, read_workload

    _check_names(baselines, suite)
    if program in _SUITES:
        raise click.UsageError(f"`{program}` is a suite: add --suite before its name.")
    given = (program, op, *(value or None for value in sizes.values()))
    if suite is not None and (host or settings or any(value is not None for value in given)):
        raise click.UsageError("--suite has fixed programs, sizes and kernels.")
    if batch is not None and suite not in (*NETWORK_BATCHES, *_OF_MODELS):
        suites = ", ".join((*NETWORK_BATCHES, *_OF_MODELS))
        raise click.UsageError(f"--batch is for the suites {suites}; for other convolutions, use --a-shape.")
    workload = program if program is not None and is_workload(program) else None
    if workload is not None and (suite or host or settings or any(value is not None for value in (dtype, *given[1:]))):
        raise click.UsageError("A workload names its operations, types, sizes and keywords itself.")
    if wanted is not None and suite in (None, "epilogue") and workload is None:
        raise click.UsageError("--filter selects cases of a suite; the suite epilogue always runs all cases.")
    if first_call and (suite not in _OF_MODELS or build_first):
        message = "it excludes --build-first" if build_first else f"it is for the suites {' and '.join(_OF_MODELS)}"
        raise click.UsageError(f"--first-call begins with empty caches; {message}.")
    if suite in _OF_MODELS and _is_given(ctx, "seed"):
        raise click.UsageError(f"--seed is for random operands; models of the suite {suite} always have the same data.")
    if first_call and _is_given(ctx, "rounds"):
        raise click.UsageError("--first-call times one call, and takes no --rounds.")
    if first_call:
        ctx.exit(0 if _first_calls(wanted, dtype, json_file, baselines or (), suite == "training", batch) else 1)
    if suite in _OF_MODELS:
        complete = _models(
            *(wanted, dtype, rounds, json_file, _OF_WHOLE_MODELS if baselines is None else baselines),
            training=suite == "training",
            batch=batch,
            build_first=build_first,
        )
        ctx.exit(0 if complete else 1)
    if build_first:
        raise click.UsageError(f"--build-first is for the suites {' and '.join(_OF_MODELS)}.")
    measured = {"rounds": rounds, "seed": seed, "suite": suite or workload}
    if workload is not None:
        found = read_workload(workload)
        from evt.bench.suites import workload_cases

        names = _chosen((entry.title for entry in found.entries), wanted)
        cases = tuple(case for case in workload_cases(found) if case.name in names)
        ctx.exit(_run_cases(cases, baselines or _of_workload(cases), measured, json_file, summary=True))
    invocation = Invocation(_formula(op) if program is None else program, op, dtype, dtype, settings=settings, **sizes)
    known = invocation.program  # its diagnostics, before torch is imported
    if host and known.request.convolution is not None:
        raise click.UsageError("--host measures matrix products only.")
    if not isinstance(known, Program):
        raise click.UsageError("Grouped products have no benchmark yet; `evt run` times one.")
    rows = invocation.extents.get("m", _HOST_SIZE if host else _SIZE)
    (shapes,) = invocation.products_or(dict.fromkeys("mnk", rows)) or (None,)
    if suite is None and dtype is None and not known.request.dag.operands:
        dtype = "bf16"
    typed_graph(known.request, dtype, dtype)
    from evt.bench import Case, convolution_case
    from evt.bench import suite as suite_of
    from evt.bench.calls import shapes_of

    if suite is not None:
        cases = suite_of(suite, dtype, batch)
        names = _chosen((case.name for case in cases), wanted)
        cases = tuple(case for case in cases if case.name in names)
    elif known.request.convolution is not None:
        cases = (convolution_case(_title(invocation), known, shapes_of(known.request, shapes), dtype=dtype),)
    else:
        extents = problem_sizes(known.request, shapes)
        m, n, k, l = (extents[mode] for mode in "mnkl")  # noqa: E741
        cases = (Case(_title(invocation), known, m, n, k, l, dtype),)
    if baselines is None:
        baselines = _OF_ONE_CONVOLUTION if cases[0].product == "conv" else _BASELINES
        if suite in (*NETWORK_BATCHES, *_OF_PROJECTIONS):
            baselines = _of_workload(cases)
        elif suite == "epilogue":
            baselines = ()
    epilogues = suite == "epilogue"
    summary = suite in (*NETWORK_BATCHES, *_OF_PROJECTIONS)
    ctx.exit(
        _run_cases(
            cases, baselines, {**measured, **settings}, json_file, summary=summary, epilogues=epilogues, host=host
        )
    )


def _run_cases(
    cases: tuple[Case, ...],
    baselines: tuple[str, ...],
    measured: Mapping[str, Any],
    json_file: str | None,
    *,
    summary: bool = False,
    epilogues: bool = False,
    host: bool = False,
) -> int:
    """Measure cases, and print and write each result as soon as it is measured; return the exit code."""
    import torch

    from evt.bench import bench, bench_epilogues, bench_host, describe_machine, require_gpu
    from evt.bench.report import BenchReport
    from evt.diagnostics import Diagnostic
    from evt.errors import InternalError

    rounds, seed = measured["rounds"], measured["seed"]
    report = BenchReport(describe_machine(require_gpu()), {**measured, "baselines": baselines}, json_file)
    try:
        if host:
            progress("measuring host time")
            report.add_host(bench_host(cases[0], seed=seed))
            return 0
        if epilogues:
            for group in bench_epilogues(cases, rounds=rounds, seed=seed, progress=progress):
                report.add_epilogues(group)
        if not epilogues or baselines:
            try:
                for result in bench(cases, rounds=rounds, baselines=baselines, seed=seed, progress=progress):
                    report.add(result)
            finally:  # an interrupted run shows its results
                if summary:
                    report.add_summary()
    except torch.OutOfMemoryError as error:
        raise click.ClickException("not enough memory on the GPU for these sizes") from error
    except OSError as error:
        if json_file is None or error.filename is None:
            raise
        raise click.ClickException(f"cannot write {json_file}: {error.strerror or error}") from error
    if report.wrong:
        raise InternalError(Diagnostic("E0902", f"the kernel's result is wrong: {', '.join(report.wrong)}"))
    return 0 if report.complete else 1


def _of_workload(cases: tuple[Case, ...]) -> tuple[str, ...]:
    """Return the default baselines of a workload: cuDNN computes convolutions only."""
    convolutions = all(case.product == "conv" for case in cases)
    return _OF_NETWORKS if convolutions else ("eager", "compile", "mm")


def _is_given(ctx: click.Context, option: str) -> bool:
    return ctx.get_parameter_source(option) is ParameterSource.COMMANDLINE


def _models(
    wanted: str | None,
    dtype: str | None,
    rounds: int,
    json_file: str | None,
    baselines: tuple[str, ...],
    *,
    training: bool,
    batch: int | None,
    build_first: bool,
) -> bool:
    """Measure whole models; print and write each result as soon as it is measured.

    Return whether evt ran all models.
    """
    from evt.bench.compiled import BAR, EVT, VERSIONS, bench_models
    from evt.bench.document import write_json
    from evt.bench.machine import describe_machine, require_gpu
    from evt.bench.models import MODELS

    names, dtypes = _chosen(MODELS, wanted), _dtypes(dtype)
    versions = [version for version in VERSIONS if version == EVT or version in baselines]
    machine = describe_machine(require_gpu())
    done: list[Any] = []
    measured = bench_models(
        *(names, dtypes),
        training=training,
        batch=batch,
        versions=versions,
        rounds=rounds,
        build_first=build_first,
        progress=progress,
    )
    for result, version in measured:
        if not done or done[-1] is not result:
            done.append(result)
            click.echo(result.title)
        if version:
            click.echo(result.line(version))
        if version in ("", versions[-1]):
            click.echo(f"  {result.verdict}")
        if json_file is not None:
            write_json(json_file, {"machine": machine, "bar": BAR, "models": [each.to_json() for each in done]})
    if len(done) > 1:
        click.echo("\nin short")
        for result in done:
            click.echo(f"  {result.title:<36} {result.verdict}")
    return all(result.skipped or EVT in result.times for result in done)


def _first_calls(
    wanted: str | None,
    dtype: str | None,
    json_file: str | None,
    baselines: tuple[str, ...],
    training: bool,
    batch: int | None,
) -> bool:
    """Measure the first calls of models; return whether evt ran all of them."""
    from evt.bench.compiled import COMPILE, EAGER, EVT, VERSIONS
    from evt.bench.document import write_json
    from evt.bench.first_call import BARS, FirstCalls, first_calls
    from evt.bench.machine import describe_machine, require_gpu
    from evt.bench.models import MODELS

    names, dtypes = _chosen(MODELS, wanted), _dtypes(dtype)
    versions = [each for each in VERSIONS if each in (COMPILE, EVT) or (each in baselines and each != EAGER)]
    machine = describe_machine(require_gpu())
    done: list[FirstCalls] = []
    for result in first_calls(names, dtypes, training=training, batch=batch, versions=versions, progress=progress):
        done.append(result)
        click.echo(str(result))
        if json_file is not None:
            found = [each.to_json() for each in done]
            write_json(json_file, {"machine": machine, "bars": BARS, "first_calls": found})
    return all(len(result.seconds.get(EVT, {})) == len(BARS) for result in done)


def _dtypes(dtype: str | None) -> tuple[str, ...]:
    """Return the types of models; none for each model's usual type."""
    from evt.request.given import read_dtype

    dtypes = () if dtype is None else (read_dtype(dtype).torch,)
    if not {"float16", "bfloat16", "float32"}.issuperset(dtypes):
        raise click.UsageError(f"models are measured in f16, bf16 or f32, not {dtype}.")
    return dtypes


def _chosen(names: Iterable[str], wanted: str | None) -> tuple[str, ...]:
    """Return the names that contain at least one of the wanted words."""
    from evt.workload import chosen

    found = chosen(names, wanted)
    if not found:
        raise click.UsageError(f"no case of the suite has `{wanted}` in its name.")
    return found


def _formula(op: str | None) -> str:
    """Return the formula to measure without PROGRAM."""
    return _OF_CONVOLUTIONS if op is not None and op.startswith("conv") else _FORMULA


def _title(invocation: Invocation) -> str:
    from evt.diagnostics import visible

    name = invocation.source.name
    text = visible(" ".join(invocation.source.text.split()) if name.startswith("<") else os.path.basename(name))
    return text if len(text) <= 60 else f"{text[:57]}..."
