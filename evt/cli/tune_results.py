"""``evt tune list``, ``show``, ``export``, ``import``, ``fit`` and ``forget``: the kept measurements."""

from __future__ import annotations

import json as json_format
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import click

from evt.cli.output import OutputPath, json_option, print_json, print_text, write
from evt.cli.sections import files, measured_gpus, measured_keys

if TYPE_CHECKING:
    from evt.measured import Measurement

#: The version of the exported form, and the digits of a key that are printed.
_FORM, _DIGITS = 1, 12
_gpu_option = click.option(
    "--gpu", default="", metavar="NAME", shell_complete=measured_gpus, help="Only GPUs whose names contain this."
)


@click.command("list", epilog="Example: evt tune list --gpu H200")
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
    print_text(f"{_counted(len(found))}")


@click.command("show", epilog="Example: evt tune show 3f2a91")
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


@click.command("export", epilog="Example: evt tune export h200.json --gpu H200")
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
        print_text(f"{file}: {_counted(len(found))}")


@click.command("import", epilog="Example: evt tune import h200.json")
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


@click.command("fit", epilog="Example: evt tune fit --keep")
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


@click.command("forget", epilog="Example: evt tune forget 3f2a91")
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
        print_text(f"{_counted(count)} removed")


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


def _counted(count: int) -> str:
    return f"{count} {'measurement' if count == 1 else 'measurements'}"


COMMANDS = (list_measured, show, export, import_measured, fit_cards, forget)
