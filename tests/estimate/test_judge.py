"""The comparison of estimates with measurements, over kernels whose times are made up."""

from __future__ import annotations

import json
from typing import Any

import evt
from evt.farm.task import Task
from evt.measured import Measurement, Timing
from evt.request import problem_sizes
from tests.estimate.judge import judge, ranked, rows_of


def entries(factor: float) -> list[dict[str, Any]]:
    """Return exported measurements that take ``factor`` times the estimates."""
    op, found = evt.linear("D = relu(acc + bias)"), []
    for m in (64, 256, 1024, 4096, 8192):
        shapes = (m, 1024), (2048, 1024)
        task = Task("", op.request, "f16", "f16", shapes)
        every = op.estimates(shapes, "h200", "f16", "f16")
        timings = tuple(Timing(each.route, each.config, each.us * factor / 1e3) for each in every)
        sizes = problem_sizes(op.request, shapes)
        made = Measurement("NVIDIA H200", "sm90", "D", sizes, timings, task.call)
        found.append({"key": f"problem {m}", **made.to_json()})
    read: list[dict[str, Any]] = json.loads(json.dumps(found))
    return read


def test_true_estimates_have_no_error() -> None:
    rows = list(rows_of(entries(1.0)))
    assert len(rows) > 100
    assert max(row.error for row in rows) < 1e-9
    right, count = ranked(rows)
    assert right == count > 1000


def test_a_factor_is_found_and_its_effect_is_shown() -> None:
    text = judge(entries(1.25))
    (whole,) = (line.split() for line in text.splitlines() if line.startswith("all "))
    assert whole[2:] == ["20.0%", "20.0%", "1.250", "20.0%", "0.0%"]
    assert "halo-3x halo_shared" not in text  # schedules of one kernel count together
    assert "stock-3x pingpong" in text


def test_measurements_without_a_call_do_not_count() -> None:
    found = entries(1.0)
    assert judge([{**each, "call": ""} for each in found]) == "no measured kernel has an estimate"
    assert judge([{**each, "gpu": "a GPU"} for each in found]) == "no measured kernel has an estimate"
