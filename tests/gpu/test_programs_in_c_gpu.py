"""A program in C that has two emitted kernels in it, one of CUTLASS 2.x and one of 3.x, against the reference."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
import torch

import evt
from tests.support.linking import FIRST, SECOND, TWO_KERNELS, objects, program

pytestmark = pytest.mark.gpu

SIZES = (250, 120, 72)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    major, minor = torch.cuda.get_device_capability()
    if major != 9:
        pytest.skip("the kernels are for sm90")
    folder = tmp_path_factory.mktemp("programs")
    first = evt.gemm(FIRST, route="evt-2x").plan(f"sm{major}{minor}", "f16", "f16")
    second = evt.gemm(SECOND, route="evt-3x").plan(f"sm{major}{minor}", "f16", "f16")
    assert (first.generation, second.generation) == ("2.x", "3.x")
    return program(TWO_KERNELS, objects({"first": first, "second": second}, folder, jobs=2), folder)


@pytest.mark.parametrize(("m", "n", "k"), [SIZES, (1, 8, 8), (129, 264, 136)])
def test_its_results_are_the_references(made: Path, tmp_path: Path, m: int, n: int, k: int) -> None:
    generator = torch.Generator().manual_seed(m)

    def saved(name: str, *shape: int) -> torch.Tensor:
        tensor = torch.randn(*shape, generator=generator).to(torch.float16)
        (tmp_path / name).write_bytes(tensor.numpy().tobytes())
        return tensor

    a, b = saved("A", m, k), saved("B", k, n)
    bias, residual = saved("bias", n), saved("residual", m, n)
    done = subprocess.run([made, *map(str, (m, n, k)), tmp_path], capture_output=True, encoding="utf-8")
    assert done.returncode == 0, done.stderr

    def loaded(name: str, dtype: torch.dtype, *shape: int) -> torch.Tensor:
        return torch.frombuffer(bytearray((tmp_path / name).read_bytes()), dtype=dtype).view(*shape)

    d, e = (loaded(name, torch.float16, m, n + 8) for name in ("D", "E"))
    assert d[:, n:].isnan().all()  # nothing is written between the rows
    assert e[:, n:].isnan().all()
    first = evt.gemm(FIRST).reference(a, b, bias=bias, float64=True)
    second = evt.gemm(SECOND).reference(a, b, alpha=0.5, residual=residual, float64=True)
    for found, expected in ((d[:, :n], first), (e[:, :n], second.D), (loaded("s", torch.float32, m), second.s)):
        assert (found.double() - expected).norm() / expected.norm() < 1e-3
