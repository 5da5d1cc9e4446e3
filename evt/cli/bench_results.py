"""``evt bench diff`` and ``evt bench plot``: files of ``evt bench --json``, compared and drawn."""

from __future__ import annotations

import sys
from typing import Any

import click

from evt.cli.output import OutputPath, json_option, print_json, print_text, use_color, write
from evt.cli.sections import files


@click.command("diff", epilog="Example: evt bench diff old.json new.json --threshold 3")
@click.argument("old", shell_complete=files)
@click.argument("new", shell_complete=files)
@click.option(
    "--threshold",
    type=click.FloatRange(0, 1000),
    default=5.0,
    show_default=True,
    metavar="PERCENT",
    help="Report evt as slower if its time grew by more, and the quartiles do not overlap.",
)
@json_option
@click.pass_context
def diff(ctx: click.Context, old: str, new: str, threshold: float, json: bool) -> None:
    """Compare the times in two files of `evt bench --json`.

    Each row is a version of a case that both files have. `noise` marks changes whose quartiles overlap. The exit code
    is 1 if evt is slower in a case.
    """
    from evt.bench.changes import changes
    from evt.bench.result import EVT

    found = changes(_read(old), _read(new))
    if not found:
        raise click.ClickException("the files have no case in common")
    slower = [each for each in found if each.version == EVT and each.certain and each.ratio > 1 + threshold / 100]
    if json:
        rows = [{**each.to_json(), "slower": each in slower} for each in found]
        print_json({"ok": not slower, "changes": rows})
    else:
        _print(found, slower)
    ctx.exit(1 if slower else 0)


@click.command("plot", epilog="Example: evt bench plot bench.json -o bench.html")
@click.argument("file", shell_complete=files)
@click.option("-o", "--output", type=OutputPath(), required=True, help="Picture to write: .png, .svg or .html.")
@click.option(
    "--kind",
    type=click.Choice(["ratios", "roofline"]),
    help="Draw the ratios of times, or the roofline. [default: ratios; a page has both]",
)
def plot(file: str, output: str, kind: str | None) -> None:
    """Draw the times in a file of `evt bench --json`.

    `ratios` are bars of evt's time over each other version's. `roofline` shows the speed of each case below the limits
    of the GPU's memory and tensor cores. This needs matplotlib: pip install matplotlib.
    """
    from evt.bench.plot import FORMATS, KINDS, form_of, rendered

    form = form_of(output)
    if not form:
        raise click.UsageError(f"-o must end in {', '.join(f'.{each}' for each in FORMATS[:-1])} or .{FORMATS[-1]}.")
    document = _read(file)
    kinds = (kind,) if kind is not None else tuple(KINDS) if form == "html" else ("ratios",)
    try:
        write(output, rendered(document, _drawable(document, kinds), form))
    except ModuleNotFoundError as error:
        raise click.ClickException("plots need matplotlib: pip install matplotlib") from error
    except LookupError as error:
        raise click.ClickException(f"{file} has nothing to draw: {error.args[0]}") from error


def _drawable(document: dict[str, Any], kinds: tuple[str, ...]) -> tuple[str, ...]:
    """Return the kinds without the roofline of a document whose cases have no operations, if there are others."""
    from evt.bench.changes import times_of

    has_work = any(each.flops and each.bytes for each in times_of(document))
    return kinds if has_work or len(kinds) == 1 else tuple(kind for kind in kinds if kind != "roofline")


def _read(file: str) -> dict[str, Any]:
    from evt.bench.changes import UnreadableError, read_json

    try:
        return read_json(file)
    except UnreadableError as error:
        raise click.ClickException(str(error)) from error
    except OSError as error:
        raise click.ClickException(f"cannot read {file}: {error.strerror or error}") from error


def _print(found: list[Any], slower: list[Any]) -> None:
    """Print the changes as a table, the cases in which evt is slower in red."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from evt.diagnostics import visible

    color = use_color(sys.stdout)
    console = Console(force_terminal=color, no_color=not color, width=None if sys.stdout.isatty() else 240)
    table = Table(box=None, pad_edge=False)
    table.add_column("case", overflow="fold")
    table.add_column("version")
    for heading in ("old ms", "new ms", "new / old"):
        table.add_column(heading, justify="right")
    table.add_column("")
    for each in found:
        word = "slower" if each in slower else "" if each.certain else "noise"
        row = (Text(visible(each.case)), Text(visible(each.version)), f"{each.old:.4f}", f"{each.new:.4f}")
        table.add_row(*row, f"{each.ratio:.3f}", word, style="red" if each in slower else "")
    console.print(table)
    print_text(f"evt is slower in {len(slower)} of {len({each.case for each in found})} cases")
