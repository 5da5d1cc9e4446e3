"""The operator of group norms on the CPU, where PyTorch computes it, and the images that have a kernel."""

from __future__ import annotations

import re

import pytest
import torch
from torch.nn import functional

from evt.errors import ArgumentError
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


IMAGE, VECTOR = torch.ones(2, 16, 3, 3).half(), torch.ones(16)


@pytest.mark.parametrize("device", ["cpu", "meta"])
@pytest.mark.parametrize(
    ("image", "gain", "groups", "said"),
    [
        (IMAGE, VECTOR, 0, "E0604]: 0 groups do not divide the 16 channels"),
        (IMAGE, None, -2, "E0604]: -2 groups"),
        (IMAGE, None, 3, "E0604]: 3 groups"),
        (IMAGE[0], None, 2, "E0604]: `image` has 3 dimensions"),
        (IMAGE[None], None, 2, "E0604]: `image` has 5 dimensions"),
        (IMAGE.int(), None, 2, "E0603]: `image` is torch.int32"),
        (IMAGE.to(torch.float8_e5m2), None, 2, "E0603]: `image` is torch.float8_e5m2"),
        (IMAGE, VECTOR[:8], 2, "E0604]: `gain` has the shape [8]; expected [16]"),
        (IMAGE, VECTOR[:, None], 2, "E0604]: `gain` has the shape [16, 1]"),
        (IMAGE, VECTOR.bool(), 2, "E0603]: `gain` is torch.bool"),
    ],
)
def test_arguments_that_do_not_fit(
    image: torch.Tensor, gain: torch.Tensor | None, groups: int, said: str, device: str
) -> None:
    moved = [each if each is None else each.to(device) for each in (image, gain)]
    with pytest.raises(ArgumentError, match=re.escape(said)):
        torch.ops.evt.group_norm(moved[0], moved[1], None, groups, 1e-5, False)


def test_vectors_of_another_device_and_sparse_images() -> None:
    with pytest.raises(ArgumentError, match=r"E0605\]: `shift` is on meta, `image` is on cpu"):
        torch.ops.evt.group_norm(IMAGE, None, VECTOR.to("meta"), 2, 1e-5, False)
    with pytest.raises(ArgumentError, match="`image`"):
        torch.ops.evt.group_norm(IMAGE.to_sparse(), None, None, 2, 1e-5, False)


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
