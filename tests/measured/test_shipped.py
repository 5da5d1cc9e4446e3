"""Measurements that ship with evt."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from evt.measured import Measurement, Origin, Store, may_be_measured, measurements, problem_key
from evt.measured import shipped as shipped_module
from evt.request import packed_problem, problem_sizes
from tests.support.measurements import CALLS, GPU, measurement

pytestmark = pytest.mark.usefixtures("own_cache")


def test_tables_serve_gpus_that_were_not_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program, a, b, _ = CALLS["gemm"]
    request, shapes = program.request, (a.shape, b.shape)
    problem, sizes = packed_problem(request, "sm90", "f16", "f16", shapes), problem_sizes(request, shapes)
    entries = [
        {"key": problem_key(problem, sizes), **measurement(("evt-2x", "c", ms), gpu=gpu).to_json()}
        for gpu, ms in ((GPU, 1.0), ("NVIDIA H100", 2.0))
    ]
    assert measurements(problem, sizes) == ()
    (tmp_path / "h.json").write_text(json.dumps({"form": 1, "measurements": entries}))
    monkeypatch.setattr(shipped_module, "TABLES", tmp_path)
    assert may_be_measured()
    assert [each.timings[0].ms for each in measurements(problem, sizes, GPU)] == [1.0]
    Store().add(problem_key(problem, sizes), measurement(("evt-2x", "c", 0.5)))
    assert {each.gpu: each.timings[0].ms for each in measurements(problem, sizes)} == {GPU: 0.5, "NVIDIA H100": 2.0}
    assert program.explain(shapes=shapes, gpu="NVIDIA H100").gpus == ("NVIDIA H100",)
    for arch, gpus in (("h100", ("NVIDIA H100",)), ("sm90", (GPU, "NVIDIA H100")), ("gh200", ())):
        assert program.explain(arch, shapes=shapes).gpus == gpus


def test_tables_of_evt_can_be_read() -> None:
    for path in shipped_module.TABLES.glob("*.json"):
        for entry in json.loads(path.read_text())["measurements"]:
            assert Measurement.from_json(entry).origin.who == ""


def test_an_anonymous_measurement_keeps_the_rest() -> None:
    named = replace(measurement(), origin=Origin("somebody@here", "2026", "580", "0.3"))
    assert shipped_module.anonymous(named).origin == Origin("", "2026", "580", "0.3")
