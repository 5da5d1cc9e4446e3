"""Results as tables (rich) and as JSON."""

from __future__ import annotations

import json
import math
import os
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from evt.bench.case import Case
from evt.bench.result import COMPILE, EVT, MM, CaseResult, HostResult, Summary

#: Of the JSON's layout.
FORMAT = 1
_PIPE_WIDTH = 240


class Report:
    """Prints results as they come, and writes all so far to a file: a run cut short leaves its numbers."""

    def __init__(self, machine: Mapping[str, Any], settings: Mapping[str, Any], file: str | Path | None = None) -> None:
        self.machine = machine
        self.settings = settings
        self.file = file
        self.results: list[CaseResult] = []
        self.host: HostResult | None = None
        # A pipe has no width of its own: nothing is folded there.
        self.console = Console() if sys.stdout.isatty() else Console(width=_PIPE_WIDTH)
        print_machine(self.console, machine)

    def add(self, result: CaseResult) -> None:
        print_case(self.console, result)
        self.results.append(result)
        self._save()

    def add_host(self, result: HostResult) -> None:
        print_host(self.console, result)
        self.host = result
        self._save()

    def _save(self) -> None:
        if self.file is not None:
            document = to_json(self.results, self.machine, host=self.host, settings=self.settings)
            write_json(self.file, document)


def print_case(console: Console, result: CaseResult) -> None:
    """One case as a table, with what is worth knowing below."""
    table = _table(_title(result.case))
    table.add_column("version")
    for heading in ("ms", "spread", "/ compile", "/ mm", "error"):
        table.add_column(heading, justify="right")
    table.add_column("")
    for row in result.rows:
        table.add_row(
            row.version,
            f"{row.time.median:.4f}" if row.time else "-",
            f"{row.time.spread:.1%}" if row.time else "-",
            _ratio(result.ratio(row.version, COMPILE)),
            _ratio(result.ratio(row.version, MM)),
            f"{row.error:.1e}" if row.error is not None else "-",
            Text(f"failed: {row.failure}" if row.failure else ""),
            style="red" if row.failure else "bold" if row.version == EVT else "",
        )
    console.print(table)
    for line in notes(result):
        console.print(f"  {line}", highlight=False, markup=False, soft_wrap=True)
    console.print()


def notes(result: CaseResult) -> list[str]:
    """The lines below a table."""
    lines = []
    if result.tflops is not None and result.gbytes_per_s is not None:
        counted = " + ".join(f"{name} {_size(size)}" for name, size in result.bytes.items())
        lines.append(f"evt: {result.tflops:.0f} TFLOP/s, {result.gbytes_per_s:.0f} GB/s")
        lines.append(f"bytes counted: {counted} = {_size(sum(result.bytes.values()))}")
    if result.noise is not None:
        lines.append(f"noise: the same kernel twice differs by {result.noise:.1%}")
    if result.exposed:
        lines.append(f"{result.exposed} samples thrown away: the GPU was waiting for the host")
    ratio = result.ratio(EVT, COMPILE)
    if ratio is not None and result.case.bar is not None:
        verdict = "kept" if result.within_bar else "missed"
        lines.append(f"bar: at most {result.case.bar:.2f} of torch.compile's time: {ratio:.3f}, {verdict}")
    return lines


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


def to_json(
    results: Iterable[CaseResult],
    machine: Mapping[str, Any],
    *,
    host: HostResult | None = None,
    settings: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Everything that was measured; times of cases in ms, of the host in us."""
    return {
        "format": FORMAT,
        "when": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "machine": dict(machine),
        "settings": dict(settings or {}),
        "cases": [_case_json(result) for result in results],
        "host": None
        if host is None
        else {
            **_problem_json(host.case),
            "calls": {name: _time_json(time, "us") for name, time in host.calls.items()},
            "ratios_to_mm_out": {name: host.ratio(name, "mm out=") for name in host.calls},
        },
    }


def write_json(path: str | Path, document: Mapping[str, Any]) -> None:
    """Write a file as a whole or not at all. Raises OSError."""
    path = Path(path)
    text = json.dumps(_finite(document), indent=2, allow_nan=False) + "\n"
    handle, name = tempfile.mkstemp(dir=path.absolute().parent, prefix=f".{path.name}.", suffix=".tmp")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        mask = os.umask(0)
        os.umask(mask)
        os.chmod(name, 0o666 & ~mask)  # mkstemp's files are private
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise


def _table(title: str) -> Table:
    return Table(title=Text(title), title_justify="left", title_style="bold", box=None, pad_edge=False)


def _case_json(result: CaseResult) -> dict[str, Any]:
    return {
        **_problem_json(result.case),
        "flops": result.case.flops,
        "bytes": dict(result.bytes),
        "versions": {
            row.version: {
                "time": _time_json(row.time, "ms") if row.time else None,
                "relative_error": row.error,
                "failure": row.failure or None,
                "ratio_to_compile": result.ratio(row.version, COMPILE),
                "ratio_to_mm": result.ratio(row.version, MM),
            }
            for row in result.rows
        },
        "tflops": result.tflops,
        "gbytes_per_s": result.gbytes_per_s,
        "noise": result.noise,
        "exposed_samples": result.exposed,
        "bar": result.case.bar,
        "within_bar": result.within_bar,
    }


def _problem_json(case: Case) -> dict[str, Any]:
    return {
        "name": case.name,
        "program": case.program.source.text,
        "operation": case.program.operation,
        "dtype": str(case.dag.operands[0].dtype),
        **case.sizes,
    }


def _time_json(time: Summary, unit: str) -> dict[str, Any]:
    return {
        f"median_{unit}": time.median,
        f"quartile_low_{unit}": time.low,
        f"quartile_high_{unit}": time.high,
        "samples": time.samples,
    }


def _finite(value: Any) -> Any:
    """JSON has no NaN and no infinity: they become null."""
    if isinstance(value, Mapping):
        return {key: _finite(each) for key, each in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _title(case: Case) -> str:
    batch = f", l={case.l}" if case.batched else ""
    dtype = case.dag.operands[0].dtype
    return f"{case.name} ({case.program.operation} {dtype}, m={case.m}, n={case.n}, k={case.k}{batch})"


def _ratio(ratio: float | None) -> str:
    return f"{ratio:.3f}" if ratio is not None else "-"


def _size(size: int) -> str:
    return f"{size / 1e6:.1f} MB" if size >= 100_000 else f"{size / 1e3:.1f} kB"
