"""The halo kernel over aligned copies of the operands: channels that are no multiples of 16 bytes."""

from __future__ import annotations

from typing import Any

import pytest

import evt
from evt.emission import emit
from evt.plan import Plan
from evt.plan.plan import HaloConvolution, PaddedCopy

ROUTE = "conv-halo-copied-3x"


def planned(channels: int, filters: int = 48, taps: int = 3, images: int = 2, side: int = 28, **settings: Any) -> Plan:
    op = evt.conv2d("D = relu(acc + bias)", padding=taps // 2, **settings)
    shapes = (images, channels, side, side), (filters, channels // settings.get("groups", 1), taps, taps)
    return op.plan("sm90", "f16", "f16", shapes=shapes)


@pytest.mark.parametrize("channels", [50, 51, 100, 129])
def test_operands_are_copied(channels: int) -> None:
    """Pixels begin at multiples of 16 bytes, and the copies of both operands are made by one kernel before."""
    made = planned(channels, route=ROUTE)
    assert isinstance(made.mainloop, HaloConvolution)
    assert [(copy.name, copy.vector) for copy in made.copies] == [("A", 8), ("B", 8)]
    assert all(isinstance(each, PaddedCopy) for each in (made.mainloop.a, made.mainloop.b))
    assert f"evt::PadJob<ElementA, 8, {channels & -channels}> padded_A;" in emit(made)


def test_wide_filters_take_copies() -> None:
    """CUTLASS loads words of 4 bytes: 50 channels and 5x5 taps took 4.3 of the fastest library's time on an H100."""
    made = planned(50, 50, taps=5, images=32, side=112)
    assert made.route == ROUTE


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"channels": 64}, "TMA can load A and B"),
        ({"channels": 60, "groups": 2, "filters": 64}, "the operation is not a fprop without groups"),
    ],
)
def test_refusals(settings: dict[str, Any], reason: str) -> None:
    with pytest.raises(evt.TargetError, match=reason):
        planned(**settings, route=ROUTE)
