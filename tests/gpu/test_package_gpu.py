"""Fused models as packages of AOTInductor on a GPU, run by a program of C++."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import evt
from tests.fx.training import Network
from tests.support.packages import Layers, run_in_cxx

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("ignore")]  # PyTorch's warning about a future removal


def test_a_program_of_cxx_runs_a_package(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = Layers().half().cuda()
    shapes = ({0: torch.export.Dim("m", min=2, max=4096)},)
    example = (torch.randn(64, 16, device="cuda").half(),)
    options = {"evt.rule": "always"}
    made = evt.package(model, example, tmp_path / "model", dynamic_shapes=shapes, options=options)
    assert [row.fused for row in made.report.rows] == [True, True]
    with torch.no_grad():
        want = float(model(torch.ones(11, 16, device="cuda").half())[0].double().sum())
    *shape, total = run_in_cxx(made, tmp_path, 11, 16, device="cuda").split()
    assert shape == ["11", "x", "16"]
    assert float(total) == pytest.approx(want, rel=2e-3)


def test_a_residual_network_for_several_batches(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = Network(64).eval().half().cuda().to(memory_format=torch.channels_last)

    def images(count: int) -> torch.Tensor:
        return torch.randn(count, 3, 56, 56, device="cuda").half().to(memory_format=torch.channels_last)

    shapes = ({0: torch.export.Dim("count", min=1, max=64)},)
    options = {"evt.rule": "always"}
    made = evt.package(model, (images(4),), tmp_path / "model", dynamic_shapes=shapes, options=options)
    assert len(made.report.fused) == len(made.report.rows) == 7, made.report
    for count in (1, 4, 7):
        with torch.no_grad():
            ones = torch.ones(count, 3, 56, 56, device="cuda").half().to(memory_format=torch.channels_last)
            want = float(model(ones).double().sum())
        *shape, total = run_in_cxx(made, tmp_path, count, 3, 56, 56, device="cuda").split()
        assert shape == [str(count), "x", "10"]
        assert float(total) == pytest.approx(want, rel=2e-2, abs=0.05 * count)
