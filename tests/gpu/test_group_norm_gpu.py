"""The kernel of group norms, against float64 and beside eager's errors."""

from __future__ import annotations

import random

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from evt.runtime import group_norm as module
from evt.runtime.group_norm import group_norm, is_available, kernel_for

pytestmark = pytest.mark.gpu
#: [images, channels, height, width] and the groups.
SHAPES = [
    ((1, 16, 1, 1), 2),
    ((2, 48, 9, 7), 4),
    ((3, 40, 37, 41), 4),
    ((2, 320, 64, 64), 32),
    ((1, 96, 131, 67), 12),
    ((5, 72, 12, 13), 8),
    ((2, 1280, 16, 16), 32),
    ((1, 2048, 3, 5), 1),
    ((1, 256, 130, 130), 32),
    ((17, 512, 16, 16), 32),
]


@pytest.fixture(autouse=True)
def _hopper() -> None:
    if not is_available(torch.device("cuda")):
        pytest.skip("the kernel needs an sm90 GPU and NVRTC")


def image(shape: tuple[int, ...], dtype: torch.dtype, mean: float = 0.0) -> Tensor:
    """Return an image whose first pixel is far from the others."""
    x = torch.randn(shape, device="cuda")
    x[:, :, 0, 0] *= 100
    return (x + mean).to(dtype).to(memory_format=torch.channels_last)


def vectors(channels: int, dtype: torch.dtype | None = torch.float16) -> list[Tensor | None]:
    return [None if dtype is None else torch.randn(channels, device="cuda").to(dtype) for _ in range(2)]


def check(x: Tensor, given: list[Tensor | None], groups: int, silu: bool) -> None:
    """Compare a norm with float64, in memory that nobody wrote."""
    gain, shift = given
    poison = torch.full(x.shape, torch.nan, device="cuda", dtype=x.dtype)
    del poison
    found = group_norm(x, gain, shift, groups, 1e-6, silu)
    wide_gain, wide_shift = (each if each is None else each.double() for each in given)
    exact = functional.group_norm(x.double(), groups, wide_gain, wide_shift, 1e-6)
    exact = functional.silu(exact) if silu else exact
    assert found.dtype == x.dtype
    assert found.is_contiguous(memory_format=torch.channels_last)
    rounded = exact.to(x.dtype).double()
    errors = [float((each - exact).norm() / exact.norm()) for each in (found.double(), rounded)]
    assert errors[0] <= 1.1 * errors[1] + 1e-6


@pytest.mark.parametrize("silu", [True, False])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("shape", "groups"), SHAPES, ids=str)
def test_values(shape: tuple[int, ...], groups: int, dtype: torch.dtype, silu: bool) -> None:
    assert kernel_for(shape, dtype, dtype, groups, silu) is not None
    for mean, kind in ((0.0, dtype), (30.0, torch.float32), (1000.0, None)):
        check(image(shape, dtype, mean), vectors(shape[1], kind), groups, silu)


def test_images_that_are_views() -> None:
    whole = image((2, 64, 40, 40), torch.float16)
    for x in (whole[:, 16:48], whole[:, :, 3:33, 5:29], whole.contiguous(), whole[:, 4:36], whole[1:]):
        check(x, [None, vectors(x.shape[1])[1]], 4, True)


def test_infinite_elements_give_no_numbers_in_their_group() -> None:
    x = image((2, 32, 16, 16), torch.bfloat16)
    x[0, 9, 4, 4] = torch.inf
    found = group_norm(x, None, None, 4, 1e-6, False).isnan()
    assert found[0, 8:16].all()
    assert not found[0, :8].any()
    assert not found[0, 16:].any()
    assert not found[1].any()


def test_small_images_take_the_cluster_of_large_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """Some CTAs of a cluster then have fewer pixels than others, or none."""
    draw = random.Random(0)
    kernel = kernel_for((1, 320, 64, 64), torch.float16, torch.float16, 32, True)
    assert kernel is not None
    assert kernel.ctas == 8
    monkeypatch.setattr(module, "kernel_for", lambda *_: kernel)
    check(image((1, 320, 64, 64), torch.float16), vectors(320), 32, True)
    for _ in range(20):
        x = image((draw.randint(1, 3), 320, draw.randint(1, 9), draw.randint(1, 9)), torch.float16)
        check(x, vectors(320), 32, True)
    check(image((2, 320, 64, 64), torch.float16), vectors(320), 32, True)


def test_launches_beside_copies_have_equal_bits() -> None:
    """More CTAs than the GPU has SMs, after and before kernels on the same stream."""
    side, copied = torch.cuda.Stream(), torch.empty(2, 1 << 26, device="cuda", dtype=torch.uint8)
    for shape, groups in SHAPES[3:9]:
        x = image((3 * shape[0], *shape[1:]), torch.bfloat16)
        wanted, wrong = group_norm(x, None, None, groups, 1e-6, True), torch.zeros((), device="cuda")
        for launch in range(1000):
            if launch % 8 == 0:
                with torch.cuda.stream(side):
                    copied[0].copy_(copied[1])
            found = group_norm(x, None, None, groups, 1e-6, True)
            wrong += (found.view(torch.int16) != wanted.view(torch.int16)).any()
            again = group_norm(found, None, None, groups, 1e-6, True)  # reads the result of the launch before it
            if launch == 0:
                second = again
            wrong += (again.view(torch.int16) != second.view(torch.int16)).any()
        assert wrong == 0
