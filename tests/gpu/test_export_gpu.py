"""Exported packages on a GPU: an extension with a convolution and a scaled fp8 product, and a CMake project."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch

import evt
from tests.support.exports import CONVOLUTION, SCALED, built_by_cmake, imported, installed, own_tests, run

pytestmark = pytest.mark.gpu
NAME = "evt_gpu_ops"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if torch.cuda.get_device_capability()[0] != 9:
        pytest.skip("the kernels are for sm90")
    return tmp_path_factory.mktemp("exports")


@pytest.fixture(scope="module")
def target(folder: Path) -> Path:
    """Build the convolution for sm80 and sm90, in one extension."""
    made = installed(folder, NAME, CONVOLUTION, "--arch", "sm80,sm90", "--padding", "1", jobs=4)
    imported(made, NAME)
    return made


@pytest.fixture(scope="module")
def scaled(tmp_path_factory: pytest.TempPathFactory, folder: Path) -> Path:
    other = tmp_path_factory.mktemp("scaled")
    made = installed(other, "evt_gpu_scaled", SCALED, "--arch", "sm90")
    imported(made, "evt_gpu_scaled")
    return other


def test_the_extensions_own_tests(folder: Path, target: Path) -> None:
    assert own_tests(folder, target).startswith("5 passed")


def test_the_products_own_tests(scaled: Path) -> None:
    assert own_tests(scaled, scaled / "site").startswith("5 passed")


def poisoned() -> None:
    """Leave NaN where the allocator will put the next tensors."""
    for size in (2**16, 2**20, 2**24):
        torch.full((size,), torch.nan, device="cuda", dtype=torch.float16)


@pytest.mark.parametrize("memory_format", [torch.channels_last, torch.contiguous_format])
@pytest.mark.parametrize(
    "sizes", [(2, 64, 56, 56, 64, 3), (3, 24, 13, 7, 40, 3), (1, 8, 5, 9, 8, 1), (1, 16, 1, 1, 8, 3)]
)
def test_the_convolution(target: Path, sizes: tuple[int, ...], memory_format: torch.memory_format) -> None:
    n, c, h, w, k, r = sizes
    generator = torch.Generator("cuda").manual_seed(h)
    x, weight, bias, residual = (
        torch.randn(shape, generator=generator, device="cuda").half()
        for shape in ((n, c, h, w), (k, c, r, r), (k,), (n, k, h + 3 - r, w + 3 - r))
    )
    weight = weight / (c * r * r) ** 0.5
    x, weight = x.to(memory_format=memory_format), weight.to(memory_format=memory_format)
    exact = torch.nn.functional.conv2d(x.double(), weight.double(), bias.double(), padding=1).relu() + residual.double()
    poisoned()
    for given in (residual, residual.to(memory_format=torch.channels_last)):
        result = torch.ops.evt_gpu_ops.conv_relu_add(x, weight, bias=bias, residual=given)
        if h > 1:  # else the strides of a dimension of one element are anyone's choice
            assert result.stride() == torch.nn.functional.conv2d(x, weight, padding=1).stride()
        assert (result.double() - exact).norm() <= 1e-3 * exact.norm()


@pytest.mark.parametrize(("m", "n", "k"), [(333, 384, 144), (1, 16, 16), (129, 272, 1040)])
def test_the_scaled_product(scaled: Path, m: int, n: int, k: int) -> None:
    generator = torch.Generator("cuda").manual_seed(m)
    a = torch.randn(m, k, generator=generator, device="cuda").to(torch.float8_e4m3fn)
    b = (torch.randn(n, k, generator=generator, device="cuda") / k**0.5).to(torch.float8_e4m3fn).t()
    bias = torch.randn(n, generator=generator, device="cuda").bfloat16()
    exact = 0.5 * 3.0 * (a.double() @ b.double()) + bias.double()
    operator = torch.ops.evt_gpu_scaled.scaled
    numbers = {"scale_a": 0.5, "scale_b": 3.0}
    tensors = {name: torch.tensor(value, device="cuda") for name, value in numbers.items()}
    poisoned()
    results = [operator(a, b, bias=bias, **given) for given in (numbers, tensors)]
    assert torch.equal(*results)
    assert (results[0].double() - exact).norm() <= 1e-2 * exact.norm()


def test_streams_graphs_and_compile(scaled: Path) -> None:
    a = torch.randn(64, 128, device="cuda").to(torch.float8_e4m3fn)
    b = torch.randn(96, 128, device="cuda").to(torch.float8_e4m3fn).t()
    scale, bias = torch.ones((), device="cuda"), torch.zeros(96, device="cuda", dtype=torch.bfloat16)

    def call() -> torch.Tensor:
        return torch.ops.evt_gpu_scaled.scaled(a, b, scale_a=scale, scale_b=scale, bias=bias)

    exact = call()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):  # on another stream, which the operator has to find
        captured = call()
    bias.fill_(1)
    graph.replay()
    torch.testing.assert_close(captured, exact + 1, atol=0.25, rtol=1e-2)
    torch.testing.assert_close(torch.compile(call, fullgraph=True)(), captured, atol=0, rtol=0)


def test_refusals(target: Path) -> None:
    x, weight = (torch.randn(shape, device="cuda").half() for shape in ((1, 3, 8, 8), (8, 3, 3, 3)))
    given = {"bias": torch.zeros(8, device="cuda").half(), "residual": torch.zeros(1, 8, 8, 8, device="cuda").half()}
    with pytest.raises(RuntimeError, match="conv_relu_add_sm90: `A` has to be aligned to 16 bytes"):
        torch.ops.evt_gpu_ops.conv_relu_add(x, weight, **given)
    with pytest.raises(RuntimeError, match="`bias` is on cpu, A is on cuda:0"):
        torch.ops.evt_gpu_ops.conv_relu_add(x, weight, **{**given, "bias": given["bias"].cpu()})


@pytest.mark.skipif(shutil.which("cmake") is None, reason="there is no cmake")
def test_a_cmake_project(tmp_path: Path, folder: Path) -> None:
    """Its test runs, and a result that is off would fail it."""
    build = built_by_cmake(tmp_path, "evt_gpu_kernels", SCALED, "--arch", "sm90")
    printed = run("ctest", "--test-dir", build, "--verbose")
    assert "100% tests passed" in printed
    assert "Skipped" not in printed
    assert "relative error" in printed


def test_it_computes_what_evt_does(target: Path) -> None:
    x, weight = (
        evt.channels_last(torch.randn(shape, device="cuda").half()) for shape in ((2, 32, 9, 7), (48, 32, 3, 3))
    )
    bias, residual = (
        torch.randn(48, device="cuda").half(),
        evt.channels_last(torch.randn(2, 48, 9, 7, device="cuda").half()),
    )
    exact = evt.load(CONVOLUTION, padding=1).reference(x, weight, bias=bias, residual=residual, float64=True)
    result = torch.ops.evt_gpu_ops.conv_relu_add(x, weight, bias=bias, residual=residual)
    assert (result.double() - exact).norm() <= 1e-3 * exact.norm()
