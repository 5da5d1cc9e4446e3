"""Tuning on a GPU: routes are timed, the fastest is kept, and calls take it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

import evt
from evt.cli import main
from evt.ir.dtype import F16
from evt.measured import Store
from evt.plan import survey
from evt.reference.compare import limit, relative_error
from evt.request import packed_problem
from evt.tuning.candidates import names_of
from evt.tuning.space import Options
from evt.tuning.tune import tune

pytestmark = pytest.mark.gpu


def half(*shape: int):
    generator = torch.Generator("cuda").manual_seed(len(shape))
    return torch.randn(shape, device="cuda", generator=generator).half()


def case(name: str):
    if name == "gemm":
        return evt.gemm("D = relu(acc + bias)"), half(264, 136), half(136, 200), {"bias": half(200)}
    x, weight = evt.channels_last(half(2, 64, 14, 14)), evt.channels_last(half(64, 64, 3, 3))
    return evt.conv2d("D = relu(acc + bias)", padding=1), x, weight, {"bias": half(64)}


@pytest.mark.parametrize("name", ["gemm", "conv2d"])
def test_tune(name: str) -> None:
    op, a, b, inputs = case(name)
    want = op(a, b, **inputs)
    found = op.tune(a, b, **inputs)
    try:
        assert found.chosen is not None, found
        assert not [row for row in found.rows if row.failure], found
        times = [row.ms for row in found.rows]
        assert found.chosen.ms <= min(times) * 1.02
        assert len({row.route for row in found.rows}) > 1
        bound_kernels = dict(op._caller._kernels)
        got = op(a, b, **inputs)
        taken = (found.chosen.route, found.chosen.config)
        assert [key[-1] for key in op._caller._kernels if key not in bound_kernels] == [taken]
        assert relative_error(got, want) < 2 * limit([F16])  # of two kernels
        target = found.target
        explained = op.explain(target, "f16", "f16", shapes=(a.shape, b.shape))
        assert (explained.chosen_by, explained.gpus) == ("measurement", (torch.cuda.get_device_name(),))
        assert [route.name for route in explained.routes if route.chosen] == [found.chosen.route]
    finally:
        Store().clear()  # other tests share the cache


def test_a_wide_search() -> None:
    """Kernels of the search space are built, agree with the first kernel, and serve later calls."""
    op, a, b, inputs = case("gemm")
    try:
        found = tune(op.request, a, b, inputs, options=Options(rounds=9, wide=True, most=6))
        usual = {config for _, config in names_of(survey(packed_problem(op.request, found.target, "f16", "f16")))}
        new = [row for row in found.rows if row.config not in usual]
        assert len(new) == 6, found
        assert not [row for row in new if row.failure], found
        assert found.chosen is not None
        assert all(row.samples <= 9 for row in found.rows)
        assert min(row.warm_ms for row in found.rows if row.warm_ms is not None) < 2 * found.chosen.ms
        fresh = evt.gemm("D = relu(acc + bias)")
        assert relative_error(fresh(a, b, **inputs), op.reference(a, b, **inputs)) < limit([F16])
        again = tune(op.request, a, b, inputs, options=Options(rounds=9, wide=True, most=6, again=False))
        assert again.measured == 0
    finally:
        Store().clear()


def test_a_model_is_tuned() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.GELU(), torch.nn.Linear(512, 256)).cuda().half()
    x = half(512, 256)
    try:
        with torch.no_grad():
            found = evt.tune(model, (x,), rounds=5, options={"evt.rule": "always"})
            assert found
            assert all(each.chosen is not None for each in found)
            compiled = torch.compile(model, backend="evt", options={"evt.rule": "always"})
            assert relative_error(compiled(x), model(x)) < 4 * limit([F16])
            assert not [each for each in evt.tune(model, (x,), options={"evt.rule": "always"}) if each.measured]
    finally:
        Store().clear()


def test_a_workload(tmp_path: Path) -> None:
    path = tmp_path / "w.toml"
    shapes = "[{m = [16, 256], n = 512, k = 256}]"
    path.write_text(
        f'dtype = "bf16"\n[[program]]\nformula = "D = relu(acc + bias)"\noperation = "linear"\nshapes = {shapes}\n'
    )
    try:
        result = CliRunner().invoke(main, ["tune", str(path), "--rounds", "5", "--json"])
        found = json.loads(result.stdout)
        assert (result.exit_code, found["summary"]["problems"]) == (0, 2), result.output
        assert found["summary"]["measured"] > 4
        again = json.loads(CliRunner().invoke(main, ["tune", str(path), "--rounds", "5", "--json"]).stdout)
        assert again["summary"]["measured"] == 0
        listed = json.loads(CliRunner().invoke(main, ["tune", "list", "--json"]).stdout)["measurements"]
        assert {each["gpu"] for each in listed} == {torch.cuda.get_device_name()}
        assert all(each["origin"]["driver"] and each["origin"]["who"] for each in listed)
        op, a, b = evt.linear("D = relu(acc + bias)"), half(16, 256).bfloat16(), half(512, 256).bfloat16()
        explained = op.explain(listed[0]["target"], "bf16", "bf16", shapes=(a.shape, b.shape))
        assert explained.chosen_by == "measurement"  # a call of packed tensors has the key of a workload
    finally:
        Store().clear()


def test_the_command() -> None:
    arguments = ["tune", "D = relu(acc)", "--m", "256", "--n", "128", "--k", "64", "--rounds", "5", "--json"]
    try:
        result = CliRunner().invoke(main, arguments)
        found = json.loads(result.stdout)
        assert (result.exit_code, found["ok"]) == (0, True), result.output
        assert {row["route"] for row in found["rows"]}
        assert len(Store()) == 1
    finally:
        Store().clear()
