"""Results as JSON: ``to_json(results, machine) -> document``, ``write_json(path, document)``."""

from __future__ import annotations

import json
import math
import os
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from evt.bench.case import Case
from evt.bench.result import COMPILE, CaseResult, EpilogueResult, HostResult, Summary
from evt.version import JSON_SCHEMA

#: The version of the document's layout.
FORMAT = 1


def to_json(
    results: Iterable[CaseResult],
    machine: Mapping[str, Any],
    *,
    epilogues: Iterable[EpilogueResult] = (),
    host: HostResult | None = None,
    settings: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Return all measurements; times of cases in ms, of the host in us."""
    return {
        "format": FORMAT,
        "when": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "machine": dict(machine),
        "settings": dict(settings or {}),
        "cases": [_case_json(result) for result in results],
        "epilogues": [_epilogues_json(result) for result in epilogues],
        "host": None
        if host is None
        else {
            **_problem_json(host.case),
            "calls": {name: _time_json(time, "us") for name, time in host.calls.items()},
            "ratios_to_mm_out": {name: host.ratio(name, "mm out=") for name in host.calls},
        },
    }


def write_json(path: str | Path, document: Mapping[str, Any]) -> None:
    """Write a file completely or not at all. Raise OSError."""
    path = Path(path)
    text = json.dumps(_finite({"schema": JSON_SCHEMA, **document}), indent=2, allow_nan=False) + "\n"
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


def _case_json(result: CaseResult) -> dict[str, Any]:
    return {
        **_problem_json(result.case),
        "weight": result.case.weight,
        "flops": result.case.flops,
        "bytes": dict(result.bytes),
        "versions": {
            row.version: {
                "time": _time_json(row.time, "ms") if row.time else None,
                "relative_error": row.error,
                "failure": row.failure or None,
                "ratio_to_compile": result.ratio(row.version, COMPILE),
                f"ratio_to_{result.case.product}": result.ratio(row.version, result.case.product),
            }
            for row in result.rows
        },
        "contender": result.contender,
        "kernel": dict(zip(("route", "config"), result.kernel, strict=True)) if result.kernel else None,
        "tflops": result.tflops,
        "gbytes_per_s": result.gbytes_per_s,
        "noise": result.noise,
        "exposed_samples": result.exposed,
        "bar": result.case.bar,
        "within_bar": result.within_bar,
    }


def _epilogues_json(result: EpilogueResult) -> dict[str, Any]:
    programs = {case.name: case.program.request.source.text for case in result.cases}
    shared = _problem_json(result.cases[0])
    return {
        **{key: value for key, value in shared.items() if key not in ("name", "program")},
        "bare": result.bare,
        "copy_gbytes_per_s": result.gbytes_per_s,
        "noise": result.noise,
        "exposed_samples": result.exposed,
        "epilogues": {
            row.version: {
                "program": programs.get(row.version, programs[result.bare]),
                "time": _time_json(row.time, "ms") if row.time else None,
                "relative_error": row.error,
                "failure": row.failure or None,
                "ratio_to_bare": result.ratio(row.version),
                "extra_bytes": result.extra_bytes(row.version),
                "bound_ms": result.bound(row.version),
                "ratio_to_bound": result.over_bound(row.version),
            }
            for row in result.rows
        },
    }


def _problem_json(case: Case) -> dict[str, Any]:
    return {
        "name": case.name,
        "program": case.program.request.source.text,
        "operation": case.program.request.operation,
        "dtype": str(case.dag.operands[0].dtype),
        **case.sizes,
        **_convolution_json(case),
    }


def _convolution_json(case: Case) -> dict[str, Any]:
    """Return the shapes and the geometry of a convolution."""
    if case.problem is None or case.shapes is None:
        return {}
    geometry = case.problem.geometry
    a, b = case.shapes
    return {
        "a_shape": list(a),
        "b_shape": list(b),
        "stride": list(geometry.stride),
        "padding": [list(pair) for pair in case.problem.pads],
        "dilation": list(geometry.dilation),
        "groups": geometry.groups,
    }


def _time_json(time: Summary, unit: str) -> dict[str, Any]:
    return {
        f"median_{unit}": time.median,
        f"quartile_low_{unit}": time.low,
        f"quartile_high_{unit}": time.high,
        "samples": time.samples,
    }


def _finite(value: Any) -> Any:
    """Return a value with null for NaN and infinities, which JSON lacks."""
    if isinstance(value, Mapping):
        return {key: _finite(each) for key, each in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
