"""Several devices, several threads, and graph capture."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

import evt
from evt.ir.dtype import F16
from evt.reference.compare import relative_error, tolerance

pytestmark = pytest.mark.gpu

FORMULA = "D = relu(acc + bias)"


def problem(device: int, seed: int = 0):
    generator = torch.Generator(f"cuda:{device}").manual_seed(seed)

    def random(*shape):
        return torch.randn(shape, device=f"cuda:{device}", generator=generator).half()

    return random(200, 136), random(136, 264), random(264)


def check(got, a, b, bias) -> None:
    want = torch.relu(a.double() @ b.double() + bias.double())
    assert got.device == a.device
    assert relative_error(got, want) < tolerance(F16)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_each_device_runs_its_own_launches() -> None:
    op = evt.gemm(FORMULA)
    for device in (0, 1, 0):
        a, b, bias = problem(device)
        torch.cuda.set_device(0)  # the current device may be another than the tensors'
        check(op(a, b, bias=bias), a, b, bias)
        assert torch.cuda.current_device() == 0
    a, b, bias = problem(1)
    with torch.cuda.device(1), torch.cuda.stream(torch.cuda.Stream(1)):
        check(op(a, b, bias=bias), a, b, bias)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_tensors_on_two_devices_are_refused() -> None:
    a, b, _ = problem(0)
    _, _, bias = problem(1)
    with pytest.raises(evt.ArgumentError, match="E0605"):
        evt.gemm(FORMULA)(a, b, bias=bias)


def test_threads_share_a_program() -> None:
    op = evt.gemm(FORMULA)

    def work(seed: int) -> None:
        a, b, bias = problem(0, seed)
        with torch.cuda.stream(torch.cuda.Stream()):
            torch.cuda.current_stream().wait_stream(torch.cuda.default_stream())
            for _ in range(50):
                got = op(a, b, bias=bias)
            check(got, a, b, bias)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))


def test_capture_after_one_call() -> None:
    op = evt.gemm(FORMULA)
    a, b, bias = problem(0)
    op(a, b, bias=bias)  # builds and loads
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        got = op(a, b, bias=bias)
    a.copy_(problem(0, 1)[0])
    graph.replay()
    torch.cuda.synchronize()
    check(got, a, b, bias)
