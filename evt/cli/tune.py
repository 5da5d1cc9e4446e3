"""``evt tune``: timing of kernels on this machine's GPU or on a cluster, so that later calls take the fastest."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING

import click

from evt.cli.farm import workers
from evt.cli.invocation import Invocation, takes_program
from evt.cli.output import json_option, print_json, print_text, progress
from evt.cli.sections import DefaultGroup, SizedCommand, routes
from evt.cli.tune_results import COMMANDS

if TYPE_CHECKING:
    from evt.tuning.space import Options

#: The default extents of a matrix product.
EXTENTS = {"m": 4096, "n": 4096, "k": 4096}


@click.group(
    "tune", cls=DefaultGroup, epilog="Example: evt tune 'D = relu(acc + bias)' --m 4096 --n 4096 --k 1024 --dtype bf16"
)
def command() -> None:
    """Time kernels, and list, share or remove the times.

    `evt tune PROGRAM` means `evt tune run PROGRAM`.
    """


for each in COMMANDS:
    command.add_command(each)


@command.command("run", cls=SizedCommand, epilog="Example: evt tune samples/bench/llama8b.toml --wide")
@takes_program(arch=False, route=False, defaults=EXTENTS)
@click.option("--rounds", type=click.IntRange(1, 100_000), default=31, show_default=True, help="Number of samples.")
@click.option(
    "--seed", type=click.IntRange(0, 2**63 - 1), default=0, show_default=True, help="Seed of the random data."
)
@click.option(
    "--wide", is_flag=True, help="Search all tiles, clusters and pipeline stages, as far as the cost model is hopeful."
)
@click.option(
    "--most", type=click.IntRange(1, 1000), default=24, show_default=True, help="Configurations to build with --wide."
)
@click.option(
    "--route", metavar="NAME", shell_complete=routes, help="Tune only this route, or this kind of routes: own, evt, ..."
)
@click.option("--again", is_flag=True, help="Measure kernels of a workload again that were measured before.")
@click.option("--filter", "wanted", metavar="WORDS", help="Tune the problems whose titles contain these words.")
@click.option(
    "--scheduler", metavar="ADDRESS", help="Tune a workload on the workers of a Dask cluster: tcp://host:8786."
)
@click.option("--gpus", type=click.IntRange(1, 64), help="Tune a workload on several GPUs of this machine.")
@json_option
@click.pass_context
def run(
    ctx: click.Context,
    invocation: Invocation,
    rounds: int,
    seed: int,
    wide: bool,
    most: int,
    route: str | None,
    again: bool,
    wanted: str | None,
    scheduler: str | None,
    gpus: int | None,
    json: bool,
) -> None:
    """Time the kernels of a program or a workload, and keep the times.

    The times are taken on random tensors on this machine's GPU. Later calls of the program with equal types,
    layouts and sizes take the fastest kernel on such a GPU. `evt explain` shows the times. The times are medians of
    interleaved rounds; the L2 cache is flushed before each launch, and the fastest kernels are also timed without a
    flush. Slow kernels are stopped early. A kernel whose outputs differ from the first kernel's is left out. The
    tensors of a convolution are channels_last. Without --a-shape and --b-shape it has batch size 2, 64 channels and a
    3x3 kernel. Each group of grouped_gemm has its own size, as in --m 128,64,0. The times also apply to calls with
    similar numbers of groups and rows.

    A workload is a .toml file with programs and shapes: `evt explain E0109` has an example. An interrupted run goes on
    where it ended. With --scheduler or --gpus, workers of Dask build and time the kernels, and a worker that dies is
    replaced; this needs the extra `farm`.

    The exit code is 1 if a problem has no kernel that could be timed.
    """
    from evt.workload import is_workload

    if is_workload(invocation.text):
        effort = partial(_options, rounds, wide, most, route, again=again)
        ctx.exit(_run_workload(invocation, seed, effort, wanted, scheduler, gpus, json))
    if again or wanted or scheduler or gpus:
        raise click.UsageError("--again, --filter, --scheduler and --gpus are for workloads.")
    from evt.request import problem_sizes, typed_graph

    request = invocation.program.request
    given = invocation.products_or(EXTENTS)
    for shapes in given:
        problem_sizes(request, shapes)
    dag = typed_graph(request, invocation.a, invocation.b)  # reports its diagnostics before torch is imported
    import torch

    from evt.bench import require_gpu
    from evt.bench.calls import call_sizes, held_buffers, random_call, shapes_of
    from evt.cli.trial import check_memory
    from evt.tuning.grouped import tune_groups
    from evt.tuning.tune import tune

    device = require_gpu()
    products = given or (shapes_of(request, None),)
    check_memory(request, dag, products, device)
    generator = torch.Generator(device).manual_seed(seed)
    calls = [random_call(request.member if request.grouped else request, dag, shapes, generator) for shapes in products]
    options = _options(rounds, wide, most, route, again=True)
    try:
        if request.grouped:
            a, b = ([operands[place] for operands, _ in calls] for place in range(2))
            groups = {name: [inputs[name] for _, inputs in calls] for name in calls[0][1]}
            found = tune_groups(request, a, b, groups, options=options, progress=progress)
        else:
            (((x, y), inputs),) = calls
            held = held_buffers(dag, call_sizes(request, products[0]), device)
            found = tune(request, x, y, inputs | held, options=options, progress=progress)
    except torch.OutOfMemoryError as error:
        raise click.ClickException("not enough memory on the GPU for these sizes") from error
    if json:
        print_json(found.to_json())
    else:
        print_text(str(found))
    ctx.exit(0 if found.chosen else 1)


def _run_workload(
    invocation: Invocation,
    seed: int,
    effort: Callable[[], Options],
    wanted: str | None,
    scheduler: str | None,
    gpus: int | None,
    json: bool,
) -> int:
    """Tune a workload, and print each result as it comes; return the exit code."""
    refuse_program_options(invocation)
    if scheduler is not None and gpus is not None:
        raise click.UsageError("--gpus is for this machine, and --scheduler for a cluster: give one of them.")
    from evt.workload import chosen, read_workload

    workload = read_workload(invocation.text)
    names = chosen((entry.title for entry in workload.entries), wanted)
    if not names:
        raise click.UsageError(f"no problem of the workload has `{wanted}` in its title.")
    done = []
    with ExitStack() as stack:
        farmed, here = scheduler is not None or gpus is not None, 0 if scheduler is not None else gpus or 1
        client, gpu = stack.enter_context(workers(scheduler, here)) if farmed else (None, None)
        from evt.farm import summarise, tasks_of  # while workers start

        tasks, options = [task for task in tasks_of(workload) if task.title in names], effort()
        if client is None:
            from evt.bench import require_gpu
            from evt.farm import GpuMachine, run_tasks

            results = run_tasks(tasks, GpuMachine(require_gpu().index or 0, seed), options, progress=progress)
        else:
            from evt.farm.cluster import gpu_machine, run_on_cluster

            make = partial(gpu_machine, seed)
            results = run_on_cluster(tasks, client, options, make=make, progress=progress, here=here, gpu=gpu)
        for task, tuning in results:
            done.append((task, tuning))
            if not json:
                print_text(f"{task.title}\n{tuning}\n")
    summary = summarise(done)
    if json:
        rows = [{"title": task.title, "weight": task.weight, **tuning.to_json()} for task, tuning in done]
        print_json({"ok": all(tuning.chosen for _, tuning in done), "problems": rows, "summary": summary.to_json()})
    else:
        print_text(str(summary))
    return 0 if all(tuning.chosen for _, tuning in done) else 1


def refuse_program_options(invocation: Invocation) -> None:
    """Raise click.UsageError for options of a program beside a workload, which has its own."""
    given = (invocation.operation, invocation.a, invocation.b, invocation.a_shape, invocation.b_shape)
    if any(each is not None for each in given) or invocation.extents or invocation.settings:
        raise click.UsageError("A workload names its operations, types, sizes and keywords itself.")


def _options(rounds: int, wide: bool, most: int, route: str | None, *, again: bool) -> Options:
    from evt.tuning.space import Options

    return Options(rounds, wide, most, again, route)
