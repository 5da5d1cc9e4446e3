"""The kernel of a group norm: clusters that keep the GPU busy, and the images that they can keep."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest

from evt.plan.group_norm import VECTOR, GroupNorm, kernel_of


def planned(images: int, channels: int, pixels: int, groups: int) -> GroupNorm | None:
    return kernel_of(images, channels, pixels, groups, element="f16", gain="f16", is_silu=True)


@pytest.mark.parametrize("seed", range(200))
def test_a_cluster_has_whole_groups_and_vectors(seed: int) -> None:
    draw = random.Random(seed)
    groups = draw.choice([1, 2, 3, 8, 32])
    images, channels, pixels = draw.randint(1, 4), groups * draw.randint(8, 48), draw.randint(1, 20_000)
    kernel = planned(images, channels, pixels, groups)
    wide = max(math.lcm(channels // groups, VECTOR), 16)
    if kernel is None:
        largest = GroupNorm("f16", "f16", channels // groups, wide, 8, True)
        assert channels % wide or wide > VECTOR * 256 or largest.shared_bytes(pixels) > 72 * 1024
        return
    assert kernel.slice % kernel.of_group == kernel.slice % VECTOR == channels % kernel.slice == 0
    assert kernel.shared_bytes(pixels) <= 72 * 1024
    assert kernel.ctas in (1, 2, 4, 8)
    if kernel.ctas > 1:  # fewer CTAs would leave SMs idle, or have much to keep
        fewer = replace(kernel, ctas=kernel.ctas // 2)
        assert images * channels // kernel.slice * fewer.ctas < 99 or fewer.shared_bytes(pixels) > 24 * 1024


def test_vectors_of_more_than_two_groups_have_no_kernel() -> None:
    assert planned(1, 7 * 8, 64, 8) is None
    assert planned(1, 8 * 8, 64, 8) is not None
    assert planned(1, 9 * 4, 64, 4) is None  # the channels are no whole vectors of whole groups
