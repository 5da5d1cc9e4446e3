"""The halo kernel whose input threads copy in words: pixels of other sizes than multiples of 16 bytes."""

from __future__ import annotations

import pytest

import evt
from evt.emission import emit
from evt.plan import Plan, survey
from evt.plan.cards import find_card
from evt.plan.plan import HaloConvolution, Image
from evt.plan.speed import fastest
from evt.request import packed_problem, problem_sizes

ROUTE = "conv-halo-words-3x"


def planned(channels: int, filters: int = 48, groups: int = 1, taps: int = 3) -> Plan:
    op = evt.conv2d("D = relu(acc + bias)", padding=taps // 2, groups=groups, route=ROUTE)
    shapes = (2, channels, 28, 28), (filters, channels // groups, taps, taps)
    return op.plan("sm90", "f16", "f16", shapes=shapes)


@pytest.mark.parametrize(
    ("channels", "groups", "block", "elements"),
    [(30, 1, 32, 2), (36, 1, 48, 4), (33, 1, 48, 1), (5, 1, 16, 1), (100, 1, 64, 4), (60, 6, 64, 2), (204, 2, 64, 2)],
)
def test_words_are_as_wide_as_pixels_are_aligned(channels: int, groups: int, block: int, elements: int) -> None:
    """An odd number of channels has words of two elements, which hold parts of two pixels."""
    made = planned(channels, groups=groups)
    assert isinstance(made.mainloop, HaloConvolution)
    assert isinstance(made.mainloop.a, Image)
    assert (made.config.tile[2], made.mainloop.a.alignment) == (block, elements)
    assert f"WordsMainloop<Mma, {block}, {made.mainloop.b.alignment}, {elements}>" in emit(made)


@pytest.mark.parametrize(
    ("channels", "filters", "taps", "taken"),
    [
        (30, 64, 3, True),
        (100, 32, 3, True),
        (30, 64, 1, False),  # a product of matrices
        (6, 64, 3, False),
        (33, 64, 3, False),
        (30, 30, 3, True),
    ],
)
def test_the_default(channels: int, filters: int, taps: int, taken: bool) -> None:
    shapes = (2, channels, 28, 28), (filters, channels, taps, taps)
    made = evt.conv2d("D = relu(acc + bias)", padding=taps // 2).plan("sm90", "f16", "f16", shapes=shapes)
    assert (made.route == ROUTE) == taken


@pytest.mark.parametrize("groups", [4, 8, 16])
@pytest.mark.parametrize("channels", [2, 6, 12, 14, 17, 20, 25, 30, 44])
@pytest.mark.parametrize("filters", [10, 24, 36, 48, 50])
def test_channels_of_a_group_that_tma_cannot_load(groups: int, channels: int, filters: int) -> None:
    """A call has a kernel for groups whose channels begin within 16 bytes, though pixels are aligned."""
    shapes = (2, groups * channels, 28, 28), (groups * filters, channels, 3, 3)
    made = evt.conv2d("D = relu(acc + bias)", padding=1, groups=groups).plan("sm90", "f16", "f16", shapes=shapes)
    assert made.route in (ROUTE, "conv-halo-groups-3x")


@pytest.mark.parametrize(
    ("images", "channels", "side", "stride", "route"),
    [(32, 100, 112, 2, "conv-halo-copied-3x"), (32, 36, 28, 2, ROUTE)],
)
def test_copies_are_built_beside_words(images: int, channels: int, side: int, stride: int, route: str) -> None:
    """Words of four boxes take longer than aligned copies: 100 channels took 224 us, and 210 by copies, on an H100."""
    op = evt.conv2d("D = relu(acc + bias)", padding=1, stride=stride)
    shapes = (images, channels, side, side), (channels, channels, 3, 3)
    plans = survey(packed_problem(op.request, "sm90", "f16", "f16", shapes)).defaults
    best = plans[fastest(plans, problem_sizes(op.request, shapes), find_card("sm90"))]
    assert (plans[0].route, best.route) == (ROUTE, route)


@pytest.mark.parametrize(
    ("channels", "groups", "taps", "reason"),
    [
        (65, 1, 3, "65 channels of a group are no whole words of 4 bytes"),
        (195, 3, 3, "65 channels of a group are no whole words of 4 bytes"),
        (300, 1, 3, "do not fit in shared memory"),
        (64, 1, 3, "`A` is aligned to 16 bytes"),
    ],
)
def test_refusals(channels: int, groups: int, taps: int, reason: str) -> None:
    with pytest.raises(evt.TargetError, match=reason):
        planned(channels, groups=groups, filters=42, taps=taps)


def test_odd_groups_that_share_a_tile_are_odd_in_number() -> None:
    """The channels of a tile may begin within a word only if their number is odd."""
    with pytest.raises(evt.TargetError, match="a tile has an even number of groups with an odd number of channels"):
        planned(10, groups=2)
    assert planned(18, groups=2).route == planned(15, groups=3).route == ROUTE
