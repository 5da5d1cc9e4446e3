"""The operator of group norms on the CPU, where PyTorch computes it, and the images that have a kernel."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from evt.runtime.group_norm import group_norm, kernel_for, source_of


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("silu", [True, False])
def test_values_are_rounded_once(dtype: torch.dtype, silu: bool) -> None:
    torch.manual_seed(0)
    x = (torch.randn(2, 24, 5, 7) * 2 + 3).to(dtype)
    gain, shift = torch.randn(24), torch.randn(24)
    exact = functional.group_norm(x.double(), 3, gain.double(), shift.double(), 1e-3)
    exact = functional.silu(exact) if silu else exact
    for image in (x, x.to(memory_format=torch.channels_last)):
        found = group_norm(image, gain, shift, 3, 1e-3, silu)
        assert found.is_contiguous(memory_format=torch.channels_last)
        least = torch.finfo(torch.promote_types(dtype, torch.float32)).eps
        torch.testing.assert_close(found, exact.to(dtype), rtol=torch.finfo(dtype).eps, atol=64 * least)


def test_the_operator_is_one_of_pytorchs() -> None:
    x = torch.randn(2, 16, 3, 3).half()
    arguments = (x, torch.randn(16), None, 2, 1e-5, True)
    checked = ("test_schema", "test_faketensor")
    assert set(torch.library.opcheck(torch.ops.evt.group_norm, arguments, test_utils=checked).values()) == {"SUCCESS"}


@pytest.mark.parametrize(
    ("shape", "dtype", "gain", "groups"),
    [
        ((1, 32, 9, 9), torch.float32, None, 4),
        ((1, 32, 9, 9), torch.float16, torch.bfloat16, 4),
        ((1, 32, 9, 9), torch.float16, torch.float16, 8),
        ((0, 32, 9, 9), torch.float16, None, 4),
        ((1, 32, 0, 9), torch.float16, None, 4),
        ((1, 16, 2**16, 2**12), torch.float16, None, 1),
        ((2**16, 16, 1, 1), torch.float16, None, 1),
    ],
)
def test_images_without_a_kernel(
    shape: tuple[int, ...], dtype: torch.dtype, gain: torch.dtype | None, groups: int
) -> None:
    assert kernel_for((1, 32, 9, 9), torch.float16, torch.float32, 4, True) is not None
    assert kernel_for(shape, dtype, gain, groups, True) is None


def test_a_source_stands_alone() -> None:
    """NVRTC compiles it; equal norms share it, and the sizes of images are no part of it."""
    kernels = [kernel_for((1, 512, side, 64), torch.bfloat16, torch.float32, 32, False) for side in (60, 64)]
    first, second = (source_of(each) for each in kernels if each is not None)
    assert first == second
    assert first.alone
    assert '#include "evt/' not in first.text
    assert "Kernel<Element, Gain, 16, 16, 8, 256, false>" in first.text
