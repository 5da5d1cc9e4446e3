"""Calls out of compiled code on a GPU: results, other addresses, streams, devices and graphs, and the host's time."""

from __future__ import annotations

import statistics
from typing import Any

import pytest
import torch

import evt
from evt.bench.host import host_samples
from evt.fx.kernels import build_all
from evt.ir.dtype import F16, F32
from evt.reference.compare import distance
from evt.runtime.arguments import bind
from evt.runtime.kernels import device_target, plan_kernels
from evt.runtime.operator import write_program
from evt.runtime.plans import kernel_sources
from evt.runtime.site import Site

pytestmark = pytest.mark.gpu
M, N, K = 133, 72, 48
#: One with bias, activation and residual; one with a final reduction, which takes memory to work in.
PLAIN = "in bias[n], residual[m, n]; D = gelu(acc + bias) + residual"
SUMS = "in bias[n]; out D, E: f32[m]; D = acc + bias; E = sum[n](D*D)"


def random(*shape: int, device: str = "cuda", shift: int = 0) -> torch.Tensor:
    generator = torch.Generator(device).manual_seed(sum(shape))
    count = shift + torch.Size(shape).numel()
    return torch.randn(count, device=device, generator=generator).half()[shift:].view(shape)


class Calls:
    """A program's site, and its tensors; results are poisoned before each call."""

    def __init__(self, text: str, device: str = "cuda", shift: int = 0) -> None:
        self.program = evt.gemm(text)
        self.inputs = {"bias": random(N, device=device, shift=shift), "residual": random(M, N, device=device)}
        self.inputs = {name: self.inputs[name] for name in self.program.inputs}
        self.a, self.b = random(M, K, device=device), random(K, N, device=device)
        self.site = Site(write_program(self.program.request))
        shapes = [((M,), torch.float32) if name == "E" else ((M, N), torch.float16) for name in self.program.outputs]
        self.results = [torch.empty(shape, dtype=dtype, device=device) for shape, dtype in shapes]

    def sources(self) -> list[Any]:
        bound = bind(self.program.request, self.a, self.b, self.inputs, {})
        return kernel_sources(plan_kernels(self.program.request, bound, device_target(bound.index)))

    def launch(self) -> None:
        self.site[()](self.a, self.b, *self.results, *self.inputs.values())

    def poison(self) -> None:
        for each in self.results:
            each.fill_(float("nan"))

    def check(self) -> None:
        found = self.program.reference(self.a, self.b, **self.inputs, float64=True)
        wanted = [found] if len(self.results) == 1 else list(found)
        for output, got, want in zip(self.program.request.dag.outputs, self.results, wanted, strict=True):
            assert distance(got, want, F32 if output.name == "E" else F16) <= 1

    def run(self) -> None:
        self.poison()
        self.launch()
        self.check()


@pytest.fixture(scope="module", autouse=True)
def _built() -> None:
    build_all(
        [
            source
            for each in (Calls(PLAIN), Calls(SUMS), Calls(PLAIN, shift=1), Calls(PLAIN))
            for source in each.sources()
        ]
    )


@pytest.fixture(params=[PLAIN, SUMS], ids=["plain", "sums"])
def calls(request: pytest.FixtureRequest) -> Calls:
    return Calls(request.param)


def test_other_addresses(calls: Calls) -> None:
    for _ in range(3):
        calls.run()
        calls.a, calls.b = calls.a.neg().contiguous(), calls.b.clone()
        calls.results = [torch.empty_like(each) for each in calls.results]


def test_an_input_that_loses_its_alignment() -> None:
    calls, shifted = Calls(PLAIN), Calls(PLAIN, shift=1)
    aligned = dict(calls.inputs)
    for inputs in (aligned, shifted.inputs, aligned, shifted.inputs):
        calls.inputs = inputs
        calls.run()


def test_another_stream(calls: Calls) -> None:
    calls.run()
    stream = torch.cuda.Stream()
    torch.cuda.synchronize()
    late = calls.a * 2
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        calls.poison()
        torch.cuda._sleep(20_000_000)
        calls.a.copy_(late)  # behind the pause on this stream: a launch on another one reads the old values
        calls.launch()
    stream.synchronize()
    calls.check()


def test_a_captured_launch(calls: Calls) -> None:
    calls.run()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        calls.launch()
    for factor in (2.0, -1.0):
        calls.a.mul_(factor)
        calls.poison()
        graph.replay()
        torch.cuda.synchronize()
        calls.check()


def test_another_device() -> None:
    if torch.cuda.device_count() < 2:
        pytest.skip("this machine has one GPU")
    first, second = Calls(PLAIN), Calls(PLAIN, device="cuda:1")
    for _ in range(2):
        second.run()
        first.run()
    assert torch.cuda.current_device() == 0


def test_the_hosts_time() -> None:
    """The host time of a call with five tensors is at most that of Inductor's addmm into a buffer, with four."""
    from torch._inductor.select_algorithm import extern_kernels

    made = Calls(PLAIN)
    addmm: Any = extern_kernels.addmm
    bias, out = made.inputs["bias"], torch.empty(M, N, dtype=torch.float16, device="cuda")
    made.run()
    samples = host_samples(
        {"site": made.launch, "addmm": lambda: addmm(bias, made.a, made.b, alpha=1, beta=1, out=out)},
        11,
        torch.cuda.synchronize,
    )
    site, library = (statistics.median(samples[name]) for name in ("site", "addmm"))
    print(f"site {site:.2f} us, addmm(out=) {library:.2f} us")
    assert site <= 1.1 * library
