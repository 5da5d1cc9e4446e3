"""samples/vllm_scaled_mm.py has the documented behaviour of vLLM's functions."""

from __future__ import annotations

import importlib.util
import itertools
import os
import subprocess
import sys
from typing import Any

import pytest
import torch

from evt.reference.compare import relative_error
from tests.support.records import SAMPLES

SCRIPT = SAMPLES / "vllm_scaled_mm.py"
M, N, K = 17, 48, 64


@pytest.fixture(scope="module")
def vllm() -> Any:
    spec = importlib.util.spec_from_file_location("vllm_scaled_mm", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def operands(dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    if dtype == torch.int8:
        a, b = (torch.randint(-128, 128, shape, dtype=dtype) for shape in ((M, K), (N, K)))
    else:
        a, b = (torch.randn(shape).to(dtype) for shape in ((M, K), (N, K)))
    return a, b.t()


def scales(kind: str, shape: tuple[int, int]) -> torch.Tensor:
    return torch.rand(shape) if kind == "vector" else torch.rand(1) if kind == "tensor" else torch.rand(())


@pytest.mark.parametrize("dtype", [torch.int8, torch.float8_e4m3fn], ids=str)
@pytest.mark.parametrize("out", [torch.float16, torch.bfloat16], ids=str)
def test_scales_of_tensors_tokens_and_channels(vllm: Any, dtype: torch.dtype, out: torch.dtype) -> None:
    a, b = operands(dtype)
    for of_a, of_b, biased in itertools.product(("vector", "tensor", "scalar"), ("vector", "tensor"), (False, True)):
        scale_a, scale_b = scales(of_a, (M, 1)) / 64, scales(of_b, (1, N)) / 64
        bias = torch.randn(N).to(out) if biased else None
        got = vllm.cutlass_scaled_mm(a, b, scale_a, scale_b, out, bias)
        assert (got.dtype, got.shape) == (out, (M, N))
        assert relative_error(got, vllm.reference(a, b, scale_a, scale_b, out, bias)) < 4e-3


@pytest.mark.parametrize("biased", [False, True])
def test_zero_points(vllm: Any, biased: bool) -> None:
    """The sums of b's columns include the zero point of a tensor; zero points of tokens multiply them."""
    a, b = operands(torch.int8)
    scale_a, scale_b, sums = torch.rand(M, 1) / 64, torch.rand(1, N) / 64, b.sum(0, dtype=torch.int32)
    bias = torch.randn(N).half() if biased else None
    azp = torch.randint(-9, 10, (M, 1), dtype=torch.int32)
    got = vllm.cutlass_scaled_mm_azp(a, b, scale_a, scale_b, torch.float16, sums, azp, bias)
    assert relative_error(got, vllm.reference(a, b, scale_a, scale_b, torch.float16, bias, azp)) < 1e-3
    got = vllm.cutlass_scaled_mm_azp(a, b, torch.tensor(0.01), scale_b, torch.float16, sums * 5, None, bias)
    want = vllm.reference(a, b, torch.tensor(0.01), scale_b, torch.float16, bias, torch.full((M,), 5))
    assert relative_error(got, want) < 1e-3


def test_what_vllm_refuses_is_refused(vllm: Any) -> None:
    a, b = operands(torch.int8)
    one, bias = torch.rand(1), torch.randn(N).half()
    for arguments in (
        (a[:, :24], b[:24], one, one, torch.float16),
        (a, b, one, one, torch.float32),
        (a, b, one, one, torch.bfloat16, bias),
        (a, b, one, one, torch.float16, bias[:-1]),
        (a, b, torch.rand(M, 2), one, torch.float16),
    ):
        with pytest.raises(ValueError, match=r"multiples|result|bias|scales"):
            vllm.cutlass_scaled_mm(*arguments)
    with pytest.raises(ValueError, match="azp_adj"):
        vllm.cutlass_scaled_mm_azp(a, b, one, one, torch.float16, torch.zeros(3, dtype=torch.int32))


def test_every_program_has_a_kernel(vllm: Any) -> None:
    import evt

    for kind, operand in (("scaled", "i8"), ("azp", "i8"), ("azp of tokens", "i8"), ("scaled", "e4m3")):
        for arch in ("sm89", "sm90"):
            assert evt.supports(vllm.program(kind, operand, "bf16"), arch, ((M, K), (K, N)))


def test_the_script_runs_without_a_gpu() -> None:
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run([sys.executable, str(SCRIPT)], capture_output=True, encoding="utf-8", env=environment)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("relative error") == 2
