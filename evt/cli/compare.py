"""``evt compare``: estimates of formulas, routes or configurations, side by side, without a GPU."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import click

from evt.cli.invocation import Invocation, takes_program
from evt.cli.output import json_option, print_json, print_text, use_color
from evt.cli.sections import SizedCommand, files

if TYPE_CHECKING:
    from evt.estimate import Estimate

#: The default extents of a matrix product.
_EXTENTS = {"m": 4096, "n": 4096, "k": 4096}
#: Columns of the longest bar.
_BAR = 40
_TITLE = 48


@click.command(
    "compare",
    cls=SizedCommand,
    epilog="Example: evt compare 'D = relu(acc + bias)' 'D = gelu(acc + bias)' --m 4096 --n 4096 --k 768 --arch h200",
)
@takes_program(defaults=_EXTENTS)
@click.argument("others", nargs=-1, metavar="[PROGRAM]...", shell_complete=files)
@click.option(
    "--each",
    type=click.Choice(["formula", "route", "config"]),
    default="formula",
    show_default=True,
    help="Compare formulas, the routes of each formula, or the configurations of each route.",
)
@click.option("--most", type=click.IntRange(1), default=20, show_default=True, help="Print this many, the fastest.")
@json_option
def command(invocation: Invocation, others: Sequence[str], each: str, most: int, json: bool) -> None:
    """Rank formulas, routes or configurations by estimated time.

    No GPU is needed. The bars show the time. The last column names the resource that bounds the kernel: tensor cores,
    memory, L2, shared memory, the epilogue's instructions, the launch, or SMs that idle in the last wave. --arch names
    the GPU. H100 and H200 have fitted constants; other GPUs have the rates of their data sheets. `evt tune` measures.
    """
    found: list[tuple[str, Estimate]] = []
    for text in (invocation.text, *others):
        found += _ranked(replace(invocation, text=text), each)
    found.sort(key=lambda pair: pair[1].us)
    if json:
        rows = [{"program": title, **estimate.to_json()} for title, estimate in found[:most]]
        print_json({"ok": True, "estimates": rows, "omitted": len(found) - len(rows)})
        return
    _print(found[:most])
    print_text(f"sizes: {_sizes(invocation)}")
    if len(found) > most:
        print_text(f"{len(found) - most} slower ones are not shown; --most shows more")


def _ranked(invocation: Invocation, each: str) -> Iterable[tuple[str, Estimate]]:
    """Return the estimates of a program: of its kernel, of each route's fastest kernel, or of every kernel."""
    from evt.program import Program

    program = invocation.program
    if not isinstance(program, Program):
        raise click.UsageError("Grouped products have no estimate; `evt tune` times their kernels.")
    given = invocation.products_or(_EXTENTS)
    if not given:
        raise click.UsageError("Give --a-shape and --b-shape.")
    arguments = given[0], invocation.arch, invocation.a, invocation.b
    title = " ".join(invocation.source.text.split())
    if each == "formula":
        return [(title, program.estimate(*arguments))]
    every = program.estimates(*arguments)
    if each == "config":
        return [(title, estimate) for estimate in every]
    fastest: dict[str, Estimate] = {}
    for estimate in every:
        fastest.setdefault(estimate.route, estimate)
    return [(title, estimate) for estimate in fastest.values()]


def _sizes(invocation: Invocation) -> str:
    """Return the sizes that all programs have, defaults included."""
    if invocation.program.request.convolution is not None:
        (a, b), *_ = invocation.products_or(None)
        return f"A {list(a)}, B {list(b)}"
    return " ".join(f"{mode}={size}" for mode, size in {**_EXTENTS, **invocation.extents}.items())


def _print(found: Sequence[tuple[str, Estimate]]) -> None:
    """Print a table with bars, and the origin of its constants."""
    import sys

    from rich.bar import Bar
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from evt.diagnostics import visible

    color = use_color(sys.stdout)
    console = Console(force_terminal=color, no_color=not color, width=None if sys.stdout.isatty() else 200)
    table = Table(box=None, pad_edge=False)
    alike = len({title for title, _ in found}) == 1
    for heading in (*(() if alike else ("program",)), "route", "configuration"):
        table.add_column(heading, overflow="fold")
    for heading in ("us", "ratio"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("", width=_BAR)
    table.add_column("bound by")
    longest, shortest = max(each.us for _, each in found), found[0][1].us
    for title, each in found:
        shown = visible(title if len(title) <= _TITLE else f"{title[: _TITLE - 3]}...")
        names = (Text(each.route), Text(each.config))
        bar = Bar(longest, 0, each.us, width=_BAR)
        first = names if alike else (Text(shown), *names)
        table.add_row(*first, f"{each.us:.1f}", f"{each.us / shortest:.2f}", bar, each.bound)
    console.print(table)
    card = found[0][1]
    console.print(f"estimates for {card.card.name}: {card.source}", highlight=False)
