"""``evt tune``: timing of kernels on this machine's GPU or on a cluster, so that later calls take the fastest."""

from __future__ import annotations

import json as json_format
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from evt.cli.farm import workers
from evt.cli.invocation import Invocation, takes_program
from evt.cli.output import OutputPath, json_option, print_json, print_text, progress, write
from evt.cli.sections import DefaultGroup, SizedCommand, files, measured_gpus, measured_keys, routes

if TYPE_CHECKING:
    from evt.measured import Measurement
    from evt.tuning.space import Options

#: The default extents of a matrix product.
EXTENTS = {"m": 4096, "n": 4096, "k": 4096}
#: The version of the exported form, and the digits of a key that are printed.
_FORM, _DIGITS = 1, 12
_gpu_option = click.option(
    "--gpu", default="", metavar="NAME", shell_complete=measured_gpus, help="Only GPUs whose names contain this."
)


@click.group(
    "tune", cls=DefaultGroup, epilog="Example: evt tune 'D = relu(acc + bias)' --m 4096 --n 4096 --k 1024 --dtype bf16"
)
def command() -> None:
    """Time kernels, and list, share or remove the times.

    `evt tune PROGRAM` means `evt tune run PROGRAM`.
    """


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


@command.command("list", epilog="Example: evt tune list --gpu H200")
@_gpu_option
@json_option
def list_measured(gpu: str, json: bool) -> None:
    """List the measured problems.

    A line has the key, the GPU, the fastest kernel, the user and the time.
    """
    from evt.measured import Store

    found = Store().all(gpu=gpu)
    if json:
        print_json({"ok": True, "measurements": [_entry(*each) for each in found]})
        return
    for key, each in found:
        best = each.best()
        kernel = f"{best.ms:.4f} ms  {best.route} {best.config}".strip() if best else "no kernel"
        when = each.origin.when[:16].replace("T", " ")
        print_text(f"{key[:_DIGITS]}  {each.gpu}  {kernel}  {when} {each.origin.who}".rstrip())
        print_text(f"    {each.program}  {_sizes(each)}")
    print_text(f"{len(found)} {'measurement' if len(found) == 1 else 'measurements'}")


@command.command("show", epilog="Example: evt tune show 3f2a91")
@click.argument("key", shell_complete=measured_keys)
@json_option
def show(key: str, json: bool) -> None:
    """Show all times of some problems, beside the estimates.

    KEY is the beginning of the keys of problems, which `evt tune list` prints. The cost model estimates.
    """
    found = _matching(key)
    if json:
        print_json(
            {"ok": True, "measurements": [{**_entry(*each), "estimates_us": _estimates(each[1])} for each in found]}
        )
        return
    for name, each in found:
        origin = each.origin
        print_text(f"{name}\n{each.program}\n{each.gpu}, driver {origin.driver or 'unknown'}, {_sizes(each)}")
        print_text(f"measured by {origin.who or 'unknown'} at {origin.when or 'unknown'} with evt {origin.evt}")
        estimates = _estimates(each)
        for timing in each.timings:
            kernel = f"{timing.route} {timing.config}".strip()
            warm = f", warm {timing.warm_ms:.4f}" if timing.warm_ms is not None else ""
            expected = f", estimate {estimates[kernel] / 1e3:.4f}" if kernel in estimates else ""
            mark = "->" if timing == each.best() else "  "
            print_text(f"{mark} {kernel:<44} {timing.ms:.4f} ms{warm}{expected}, {timing.samples} samples")


@command.command("export", epilog="Example: evt tune export h200.json --gpu H200")
@click.argument("file", type=OutputPath())
@_gpu_option
@click.option("--key", default="", shell_complete=measured_keys, help="Only problems whose keys begin with this.")
@click.option("--anonymous", is_flag=True, help="Leave out the users and machines that measured.")
@json_option
def export(file: str, gpu: str, key: str, anonymous: bool, json: bool) -> None:
    """Write measurements to a JSON file.

    `evt tune import` reads it on other machines with such GPUs.
    """
    from evt.measured import Store
    from evt.measured.shipped import anonymous as without_user

    if json and file == "-":
        raise click.UsageError("`-` prints the measurements themselves, which are JSON: leave out --json.")
    found = [(name, without_user(each) if anonymous else each) for name, each in Store().all(key, gpu)]
    entries = [{"key": name, **each.to_json()} for name, each in found]
    write(
        file,
        json_format.dumps({"form": _FORM, "measurements": entries}, indent=1, allow_nan=False) + "\n",
        option="'FILE'",
    )
    if json:
        print_json({"ok": True, "exported": len(found)})
    elif file != "-":
        print_text(f"{file}: {len(found)} {'measurement' if len(found) == 1 else 'measurements'}")


@command.command("import", epilog="Example: evt tune import h200.json")
@click.argument("file", shell_complete=files)
@click.option("--replace", is_flag=True, help="Replace measurements of the same problem and GPU.")
@json_option
def import_measured(file: str, replace: bool, json: bool) -> None:
    """Read measurements from a file of `evt tune export`.

    Measurements that this machine has for a problem and GPU stay, unless --replace is given.
    """
    from evt.measured import Store

    store, entries = Store(), list(_read(file))
    known = set() if replace else {(key, each.gpu) for key, each in store.all()}
    new = [(key, each) for key, each in entries if (key, each.gpu) not in known]
    store.add_all(new)
    if json:
        print_json({"ok": True, "imported": len(new), "kept": len(entries) - len(new)})
    else:
        print_text(f"{len(new)} imported, {len(entries) - len(new)} kept as they were")


@command.command("fit", epilog="Example: evt tune fit --keep")
@click.argument("files", nargs=-1, metavar="[FILE]...", shell_complete=files)
@_gpu_option
@click.option("--keep", is_flag=True, help="Let calls and estimates on this machine use the constants.")
@json_option
def fit_cards(files: tuple[str, ...], gpu: str, keep: bool, json: bool) -> None:
    """Fit the constants of cards to measurements.

    Files of `evt tune export` replace the measurements of this machine. Each kind of kernels has a factor of its start
    and of its work. The rate of the memory is fitted too. A third of the problems is held out. The table has the
    relative errors before and after. Run `evt tune samples/bench/calibration.toml --route own` first.
    """
    from dataclasses import replace

    from evt.farm.fit import fit, judged, rows_of
    from evt.measured import Store, keep_fit
    from evt.plan.cards import find_card

    measured = [each for file in files for each in _read(file)] if files else Store().all(gpu=gpu)
    found = []
    for name, rows in rows_of((key, each) for key, each in measured if gpu in each.gpu).items():
        card, latest = find_card(name), max(each.origin.when for _, each in measured)[:10] or "an unknown date"
        made = fit(rows, card, f"fitted to {len(rows)} kernels on {name}, {latest}")
        found.append((made, judged(rows, card), judged(rows, replace(card, measured=made))))
        if keep:
            keep_fit(card, made)
    if not found:
        raise click.UsageError("no measurement has an estimate: run `evt tune samples/bench/calibration.toml` first.")
    if json:
        print_json(
            {
                "ok": True,
                "cards": [
                    {"fit": made.to_json(), "before": before.to_json(), "after": after.to_json()}
                    for made, before, after in found
                ],
            }
        )
        return
    for made, before, after in found:
        print_text(f"before: {before}\n\nafter: {after}\n\n{json_format.dumps(made.to_json(), indent=1)}")


@command.command("forget", epilog="Example: evt tune forget 3f2a91")
@click.argument("key", required=False, shell_complete=measured_keys)
@_gpu_option
@click.option("--all", "everything", is_flag=True, help="Forget all measurements.")
@json_option
def forget(key: str | None, gpu: str, everything: bool, json: bool) -> None:
    """Remove measurements: by KEY, by --gpu, or --all.

    KEY is the beginning of the keys of problems, which `evt tune list` prints.
    """
    from evt.measured import Store

    if key is None and not gpu and not everything:
        raise click.UsageError("Give KEY, --gpu or --all.")
    if key is not None and everything:
        raise click.UsageError("Give either KEY or --all.")
    found = _matching(key, gpu) if key is not None else Store().all(gpu=gpu)
    count = Store().forget((name, each.gpu) for name, each in found)
    if json:
        print_json({"ok": True, "forgotten": count})
    else:
        print_text(f"{count} {'measurement' if count == 1 else 'measurements'} removed")


def refuse_program_options(invocation: Invocation) -> None:
    """Raise click.UsageError for options of a program beside a workload, which has its own."""
    given = (invocation.operation, invocation.a, invocation.b, invocation.a_shape, invocation.b_shape)
    if any(each is not None for each in given) or invocation.extents or invocation.settings:
        raise click.UsageError("A workload names its operations, types, sizes and keywords itself.")


def _options(rounds: int, wide: bool, most: int, route: str | None, *, again: bool) -> Options:
    from evt.tuning.space import Options

    return Options(rounds, wide, most, again, route)


def _matching(key: str, gpu: str = "") -> list[tuple[str, Measurement]]:
    """Return the measurements whose keys begin with a text. Raise click.UsageError if there are none."""
    from evt.measured import Store

    found = Store().all(key, gpu)
    if not found:
        raise click.UsageError(f"no measured problem has a key that begins with `{key}`; `evt tune list` lists them.")
    return found


def _estimates(measurement: Measurement) -> dict[str, float]:
    """Return the estimates of a measurement's kernels in us; none if its call or its GPU is unknown."""
    from evt.errors import EvtError
    from evt.estimate import estimate_kernels
    from evt.farm.task import Task

    if not measurement.call:
        return {}
    try:
        task = Task.read(measurement.call)
        found = estimate_kernels(task.request, task.shapes, measurement.gpu, task.a, task.b)
    except (EvtError, ValueError, LookupError, TypeError):  # another version's call, or an unknown GPU
        return {}
    return {f"{each.route} {each.config}": each.us for each in found}


def _entry(key: str, measurement: Measurement) -> dict[str, Any]:
    best = measurement.best()
    taken = None if best is None else {"route": best.route, "config": best.config, "ms": best.ms}
    return {"key": key, "best": taken, **measurement.to_json()}


def _sizes(measurement: Measurement) -> str:
    shown = ("m", "n", "k", "l", "groups", "mean_m", "mean_n", "mean_k")
    return " ".join(f"{mode}={measurement.sizes[mode]}" for mode in shown if mode in measurement.sizes)


def _read(file: str) -> Iterable[tuple[str, Measurement]]:
    """Yield the measurements of an exported file. Raise click.ClickException for another file."""
    from evt.measured import keyed
    from evt.storage.reading import read_file

    try:
        match json_format.loads(read_file(file)):
            case {"form": int(form)} if form > _FORM:
                raise click.ClickException(f"{file}: a newer version of evt wrote it, in form {form}")
            case {"form": int(), "measurements": list(entries)}:
                return list(map(keyed, entries))
        raise ValueError("it has no list of measurements")
    except OSError as error:
        raise click.ClickException(f"cannot read {file}: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise click.ClickException(f"{file} is no file of `evt tune export`: {error}") from error
