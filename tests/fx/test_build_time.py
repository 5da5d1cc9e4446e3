"""Kernels of graphs that nvcc would compile for a minute: an own kernel takes their place if it is almost as fast."""

from __future__ import annotations

import math

import pytest
import torch
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from evt.fx import kernels
from evt.fx.build import RegionProgram
from evt.fx.kernels import PROCESSORS, bound_example, kernel_of
from evt.fx.regions import find_regions
from evt.plan.speed import duration

#: Images, channels, filters, pixels of a side and taps of a side; CUTLASS's kernel is the fastest by the estimate.
CASES = [
    (32, 72, 72, 14, 3),
    (32, 72, 144, 14, 3),
    (64, 96, 96, 9, 3),
    (256, 256, 640, 16, 3),
    (64, 1280, 1280, 32, 3),
    (256, 640, 1280, 40, 3),
]


def region(images: int, channels: int, filters: int, side: int, taps: int) -> RegionProgram:
    """Return the region of a convolution to which two images are added."""
    with FakeTensorMode():
        x = torch.empty(images, channels, side, side, dtype=torch.float16).contiguous(memory_format=torch.channels_last)
        w = torch.empty(filters, channels, taps, taps, dtype=x.dtype).contiguous(memory_format=torch.channels_last)
        y = torch.empty(images, filters, side, side, dtype=x.dtype).contiguous(memory_format=torch.channels_last)
        graph = make_fx(lambda x, w, y, z: torch.conv2d(x, w, padding=taps // 2) + y + z)(x, w, y, y.clone()).graph
    (outcome,) = find_regions(graph, ("cpu",)).outcomes
    assert outcome.fused is not None
    return outcome.fused


@pytest.mark.parametrize("case", CASES)
def test_an_own_kernel_takes_the_place_of_one_that_is_hardly_faster(
    case: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    fused = region(*case)
    sizes = bound_example(fused).sizes
    taken = kernel_of(fused, "sm90", PROCESSORS)
    monkeypatch.setattr(kernels, "_MOST_LONGER", -math.inf)
    best = kernel_of(fused, "sm90", PROCESSORS)
    monkeypatch.setattr(kernels, "_MOST_LONGER", math.inf)
    own = kernel_of(fused, "sm90", PROCESSORS)
    assert (best.family, own.family) != ("own", best.family)
    longer = 1.1 * duration(own, sizes, PROCESSORS).total - duration(best, sizes, PROCESSORS).total
    assert taken == (own if longer <= 10 else best)


def test_both_kinds_are_taken() -> None:
    families = {kernel_of(region(*case), "sm90", PROCESSORS).family for case in (CASES[0], CASES[-1])}
    assert len(families) == 2
