"""The launcher of cubins and the compiled launcher agree about contiguous outputs: see test_launchers_nvcc.py."""

from __future__ import annotations

from pathlib import Path

import torch

import evt
from evt.ir.convolution import Convolution
from evt.plan import find_target
from evt.runtime.arguments import bind
from evt.runtime.kernels import plan_kernels
from evt.runtime.planar import with_planes
from tests.nvcc.test_launchers_nvcc import compare, fake, pytestmark
from tests.support.calls import arguments, of_convolution

__all__ = ["fake", "pytestmark"]
SM90 = find_target("sm90")


def test_planes(fake: Path, tmp_path: Path) -> None:
    """The rows of the matrix from an image to the next are the elements of an image of D."""
    op, convolution = evt.conv2d("D = relu(acc + bias)", padding=1), Convolution.of("conv2d", {"padding": 1})
    x, w = torch.empty(8, 1, 28, 30).half(), torch.empty(40, 1, 3, 3).half()
    bound = bind(op.request, x, w, {"bias": torch.empty(40).half()}, {})
    plan = plan_kernels(op.request, with_planes(op.request, bound, SM90, False, fresh=True), SM90)[0]
    sizes = ((8, 1, 28, 30), (1, 1, 5, 300), (130, 1, 7, 9))
    calls = [arguments(plan, of_convolution(plan, convolution, each, (40, 1, 3, 3))) for each in sizes]
    compare(plan, calls, fake, tmp_path)
