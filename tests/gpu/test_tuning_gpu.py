"""Tuning on a GPU: routes are timed, the fastest is kept, and calls take it."""

from __future__ import annotations

import json

import pytest
import torch
from click.testing import CliRunner

import evt
from evt.cli import main
from evt.ir.dtype import F16
from evt.measured import Store
from evt.reference.compare import limit, relative_error

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
