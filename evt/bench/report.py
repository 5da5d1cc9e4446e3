"""Results as tables."""

from __future__ import annotations

import statistics
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from evt.bench.case import Case
from evt.bench.document import to_json, write_json
from evt.bench.result import AGAIN, COMPILE, EVT, CaseResult, EpilogueResult, HostResult

_PIPE_WIDTH = 240


class BenchReport:
    """A printer of results, which writes all results so far to a file, so that an interrupted run keeps its numbers."""

    def __init__(self, machine: Mapping[str, Any], settings: Mapping[str, Any], file: str | Path | None = None) -> None:
        self.machine = machine
        self.settings = settings
        self.file = file
        self.results: list[CaseResult] = []
        self.epilogues: list[EpilogueResult] = []
        self.host: HostResult | None = None
        # A pipe has no width: lines are not wrapped there.
        self.console = Console() if sys.stdout.isatty() else Console(width=_PIPE_WIDTH)
        print_machine(self.console, machine)

    def add(self, result: CaseResult) -> None:
        print_case(self.console, result)
        self.results.append(result)
        self._save()

    def add_summary(self) -> None:
        """Print all results so far in one table."""
        print_summary(self.console, self.results)

    def add_epilogues(self, result: EpilogueResult) -> None:
        print_epilogues(self.console, result)
        self.epilogues.append(result)
        self._save()

    def add_host(self, result: HostResult) -> None:
        print_host(self.console, result)
        self.host = result
        self._save()

    @property
    def wrong(self) -> list[str]:
        """The cases for which evt's kernels gave wrong results."""
        cases = [result.case.name for result in self.results if result.wrong]
        return cases + [name for result in self.epilogues for name in result.wrong]

    @property
    def complete(self) -> bool:
        """True if every kernel of evt was timed."""
        epilogues = all(row.time is not None for result in self.epilogues for row in result.rows)
        return epilogues and all(result.ms(EVT) is not None for result in self.results)

    def _save(self) -> None:
        if self.file is not None:
            document = to_json(
                self.results, self.machine, epilogues=self.epilogues, host=self.host, settings=self.settings
            )
            write_json(self.file, document)


def print_case(console: Console, result: CaseResult) -> None:
    """Print one case as a table, with notes below."""
    product = result.case.product
    table = _table(_title(result.case))
    table.add_column("version")
    for heading in ("ms", "spread", "/ compile", f"/ {product}", "error"):
        table.add_column(heading, justify="right")
    table.add_column("")
    for row in result.rows:
        table.add_row(
            row.version,
            _ms(row.time.median if row.time else None),
            f"{row.time.spread:.1%}" if row.time else "-",
            _ratio(result.ratio(row.version, COMPILE)),
            _ratio(result.ratio(row.version, product)),
            f"{row.error:.1e}" if row.error is not None else "-",
            Text(f"failed: {row.failure}" if row.failure else ""),
            style="red" if row.failure else "bold" if row.version == EVT else "",
        )
    console.print(table)
    for line in notes(result):
        console.print(f"  {line}", highlight=False, markup=False, soft_wrap=True)
    console.print()


def notes(result: CaseResult) -> list[str]:
    """Return the lines below a table."""
    lines = []
    if result.kernel is not None and result.case.shapes is not None:
        lines.append(f"kernel: {' '.join(result.kernel)}")
    if result.tflops is not None and result.gbytes_per_s is not None:
        counted = " + ".join(f"{name} {_size(size)}" for name, size in result.bytes.items())
        lines.append(f"evt: {result.tflops:.0f} TFLOP/s, {result.gbytes_per_s:.0f} GB/s")
        lines.append(f"bytes counted: {counted} = {_size(sum(result.bytes.values()))}")
    if result.noise is not None:
        lines.append(f"noise: the same kernel twice differs by {result.noise:.1%}")
    if result.exposed:
        lines.append(f"{result.exposed} samples discarded: the GPU was waiting for the host")
    ratio = result.ratio(EVT, COMPILE)
    if ratio is not None and result.case.bar is not None:
        verdict = "kept" if result.within_bar else "missed"
        lines.append(f"bar: at most {result.case.bar:.2f} of torch.compile's time: {ratio:.3f}, {verdict}")
    return lines


def print_summary(console: Console, results: Sequence[CaseResult]) -> None:
    """Print a line for each case, with its times in ms, and the geometric mean of the ratios to the best contender."""
    if not results:
        return
    versions = [row.version for row in max((result.rows for result in results), key=len) if row.version != AGAIN]
    table = _table("summary")
    table.add_column("case")
    for heading in (*(f"{name} ms" for name in versions), f"{EVT} / best"):
        table.add_column(heading, justify="right")
    table.add_column("best")
    table.add_column("kernel")
    ratios = []
    for result in results:
        row = result.row(EVT)
        failure = row.failure if row else ""
        best = result.contender
        ratio = result.ratio(EVT, best) if best is not None else None
        ratios += [ratio] if ratio is not None else []
        table.add_row(
            result.case.name,
            *(_ms(result.ms(name)) for name in versions),
            _ratio(ratio),
            best or "-",
            Text(f"failed: {failure}" if failure else " ".join(result.kernel or ("-",))),
            style="red" if failure else "",
        )
    console.print(table)
    if ratios:
        mean, worst = statistics.geometric_mean(ratios), max(ratios)
        console.print(f"evt / best contender: geometric mean {mean:.3f} over {len(ratios)} cases, at most {worst:.3f}")
    for line in _weighted(results):
        console.print(line)
    console.print()


def _weighted(results: Sequence[CaseResult]) -> list[str]:
    """Return the weighted time of evt relative to each version, over the cases that both ran; none without weights."""
    if len({result.case.weight for result in results}) == 1:
        return []
    lines = []
    for version in dict.fromkeys(row.version for result in results for row in result.rows):
        pairs = [(result.case.weight, result.ms(EVT), result.ms(version)) for result in results]
        both = [(weight, ours, theirs) for weight, ours, theirs in pairs if ours is not None and theirs is not None]
        if version not in (EVT, AGAIN) and both:
            ours, theirs = (sum(each[0] * (each[place] or 0.0) for each in both) for place in (1, 2))
            count = f"{len(both)} of {len(results)} cases"
            lines.append(f"weighted time: evt {ours:.4f} ms, {version} {theirs:.4f} ms: {ours / theirs:.3f}, {count}")
    return lines


def print_epilogues(console: Console, result: EpilogueResult) -> None:
    """Print the epilogues of one product as a table."""
    table = _table(f"epilogues of {_problem(result.cases[0])}")
    table.add_column("epilogue")
    for heading in ("ms", "spread", "/ bare", "extra", "bound ms", "/ bound", "error"):
        table.add_column(heading, justify="right")
    table.add_column("")
    for row in result.rows:
        name = row.version
        extra, bound = result.extra_bytes(name), result.bound(name)
        table.add_row(
            f"{result.bare} again" if name == AGAIN else name,
            _ms(row.time.median if row.time else None),
            f"{row.time.spread:.1%}" if row.time else "-",
            _ratio(result.ratio(name)),
            _size(extra) if extra is not None else "-",
            f"{bound:.4f}" if bound is not None else "-",
            _ratio(result.over_bound(name)),
            f"{row.error:.1e}" if row.error is not None else "-",
            Text(f"failed: {row.failure}" if row.failure else ""),
            style="red" if row.failure else "",
        )
    console.print(table)
    lines = []
    if result.gbytes_per_s is not None:
        lines.append(f"bound: the bare store, and the extra bytes at the {result.gbytes_per_s:.0f} GB/s of a copy")
    if result.noise is not None:
        lines.append(f"noise: the same kernel twice differs by {result.noise:.1%}")
    if result.exposed:
        lines.append(f"{result.exposed} samples discarded: the GPU was waiting for the host")
    for line in lines:
        console.print(f"  {line}", highlight=False, markup=False, soft_wrap=True)
    console.print()


def print_host(console: Console, result: HostResult) -> None:
    table = _table(f"host time of one call: {_title(result.case)}")
    table.add_column("call")
    for heading in ("us", "spread", "/ mm", "/ mm out="):
        table.add_column(heading, justify="right")
    for name, time in result.calls.items():
        ratios = (f"{result.ratio(name, base):.2f}" for base in ("mm", "mm out="))
        table.add_row(name, f"{time.median:.2f}", f"{time.spread:.1%}", *ratios)
    console.print(table)
    console.print()


def print_machine(console: Console, machine: Mapping[str, Any]) -> None:
    versions = machine["versions"]
    gpu = machine["gpu"] or {}
    words = [gpu.get("name", "no GPU"), f"driver {gpu.get('driver')}"]
    words += [f"{name} {versions[name]}" for name in ("torch", "triton", "nvcc", "cutlass", "evt")]
    console.print(", ".join(words), highlight=False, markup=False, soft_wrap=True)
    console.print()


def _table(title: str) -> Table:
    return Table(title=Text(title), title_justify="left", title_style="bold", box=None, pad_edge=False)


def _title(case: Case) -> str:
    return f"{case.name} ({_problem(case)})"


def _problem(case: Case) -> str:
    batch = f", l={case.l}" if case.batched else ""
    dtype = " x ".join(dict.fromkeys(str(operand.dtype) for operand in case.dag.operands))
    sizes = f"m={case.m}, n={case.n}, k={case.k}{batch}"
    if case.shapes is not None:
        a, b = ("x".join(map(str, shape)) for shape in case.shapes)
        sizes = ", ".join([f"A {a}", f"B {b}", *_geometry(case), sizes])
    return f"{case.program.request.operation} {dtype}, {sizes}"


def _geometry(case: Case) -> list[str]:
    """Return the unusual parts of a convolution's geometry, as text."""
    if case.problem is None:
        return []
    geometry, pads = case.problem.geometry, case.problem.pads
    paddings = tuple(before if before == after else f"{before}:{after}" for before, after in pads)
    rows = (
        ("stride", geometry.stride, 1),
        ("padding", paddings, 0),
        ("dilation", geometry.dilation, 1),
        ("groups", (geometry.groups,), 1),
    )
    words = []
    for name, numbers, usual in rows:
        alike = len(set(numbers)) == 1
        if not alike or numbers[0] != usual:
            words.append(f"{name} {'x'.join(map(str, numbers[:1] if alike else numbers))}")
    return words


def _ms(time: float | None) -> str:
    return f"{time:.4f}" if time is not None else "-"


def _ratio(ratio: float | None) -> str:
    return f"{ratio:.3f}" if ratio is not None else "-"


def _size(size: int) -> str:
    return f"{size / 1e6:.1f} MB" if size >= 100_000 else f"{size / 1e3:.1f} kB"
