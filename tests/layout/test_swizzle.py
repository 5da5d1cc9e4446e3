"""Layouts: the interval that is spanned, and swizzles."""

from __future__ import annotations

import contextlib
import itertools

import pytest

from evt.layout import (
    ComposedLayout,
    Layout,
    LayoutError,
    Swizzle,
    compose,
    is_contiguous,
    is_injective,
    left_inverse,
    naive_cosize_fault,
    right_inverse,
    zipped_divide,
)
from tests.support.layout_laws import values
from tests.support.layouts import random_layouts

# Cosize


def test_cosize_is_the_interval_that_is_spanned() -> None:
    for layout, _ in random_layouts(2000, seed=3):
        indices = values(layout)
        assert layout.bounds == (min(indices), max(indices))
        assert layout.cosize == max(indices) - min(indices) + 1
        assert bool(naive_cosize_fault(layout)) == (layout.naive_cosize != layout.cosize)
        assert is_injective(layout) == (len(set(indices)) == len(indices))
        assert is_contiguous(layout) == (sorted(indices) == list(range(min(indices), max(indices) + 1)))


def test_cosize_through_a_swizzle() -> None:
    for layout, rng in random_layouts(2000, seed=4):
        bits, base = rng.randrange(4), rng.randrange(4)
        swizzle = Swizzle(bits, base, rng.choice((-1, 1)) * rng.randrange(max(bits, 1), bits + 3))
        swizzled = ComposedLayout(swizzle, rng.choice((0, 0, 5, -7, 64)), layout)
        indices = values(swizzled)
        assert swizzled.bounds == (min(indices), max(indices))
        assert bool(naive_cosize_fault(swizzled)) == (swizzled.naive_cosize != swizzled.cosize)
        assert is_injective(swizzled) == (len(set(indices)) == len(indices))
        assert is_contiguous(swizzled) == (sorted(indices) == list(range(min(indices), max(indices) + 1)))


def test_the_naive_cosize_fails_for_negative_strides() -> None:
    """``cosize(A) = A(size(A) - 1) + 1`` takes the last coordinate for the farthest.

    In (4,8):(-1,4) it is not: indices go from A(3, 0) = -3 to A(0, 7) = 28. CuTe's C++ says 32, the interval; the
    formula, and pycute, 26.
    """
    layout = Layout((4, 8), (-1, 4))
    assert (layout.bounds, layout.cosize, layout.naive_cosize) == ((-3, 28), 32, 26)
    assert "the stride -1 of the extent 4 is negative" in naive_cosize_fault(layout)
    assert naive_cosize_fault(Layout((4, 8), (8, 1))) == ""  # not monotone, and right all the same


def test_the_naive_cosize_fails_under_a_swizzle() -> None:
    """The swizzle moves the last of the 320 indices, 319, to 287: the formula says 288.

    They fill five blocks of 64, which Sw<3,3,3> permutes each in itself, so that the cosize is the inner layout's,
    320, as CuTe's C++ has it. pycute says 512, which is the size of the swizzle's own pattern.
    """
    swizzled = compose(Swizzle(3, 3, 3), Layout((8, 40), (40, 1)))
    assert str(swizzled) == "Sw<3,3,3> o 0 o (8,40):(40,1)"
    assert (swizzled.cosize, swizzled.naive_cosize) == (320, 288)
    assert "moves the last index, 319, to 287" in naive_cosize_fault(swizzled)
    assert is_contiguous(swizzled)


def test_a_swizzle_can_leave_the_interval_of_its_layout() -> None:
    """288 indices end inside a block of 64; the swizzle carries 256..287 to 288..319.

    CuTe's C++ takes the cosize of the inner layout, 288, and 32 elements lie beyond.
    """
    swizzled = compose(Swizzle(3, 3, 3), Layout((8, 36), (36, 1)))
    assert (swizzled.layout.cosize, swizzled.cosize, swizzled.bounds) == (288, 320, (0, 319))
    assert not is_contiguous(swizzled)
    assert is_injective(swizzled)
    rows = compose(Swizzle(3, 3, 3), Layout((4, 73), (73, 1)))
    assert (rows.layout.cosize, rows.cosize, rows.naive_cosize) == (292, 320, 260)
    assert "moves the last index, 291, to 259" in naive_cosize_fault(rows)
    assert "they become 0 to 319" in naive_cosize_fault(rows)


def test_a_swizzle_is_an_involution_within_its_period() -> None:
    for bits, base, shift in itertools.product(range(4), range(4), range(-5, 6)):
        if abs(shift) < bits:
            continue
        swizzle = Swizzle(bits, base, shift)
        images = [swizzle(index) for index in range(1 << 11)]
        assert [swizzle(image) for image in images] == list(range(1 << 11))
        assert {index // swizzle.period - image // swizzle.period for index, image in enumerate(images)} == {0}
        assert all(swizzle(index) == index for index in range(1 << base))


def test_what_a_swizzle_does_to_bits() -> None:
    assert Swizzle(3, 4, 3)(0b101_010_1111) == 0b101_111_1111
    assert Swizzle(2, 1, -3)(0b00_0_10_1) == 0b10_0_10_1
    with pytest.raises(LayoutError, match="too many to examine"):
        _ = ComposedLayout(Swizzle(1, 24, 1), 0, Layout(8)).cosize


def test_swizzles_compose() -> None:
    done = 0
    for a, b in itertools.product(all_swizzles(), repeat=2):
        with contextlib.suppress(LayoutError):
            both = compose(a, b)
            assert all(both(index) == a(b(index)) for index in range(1 << 8)), f"{a} o {b}"
            over = compose(a, ComposedLayout(b, 5, Layout((4, 8), (8, 1))))
            assert values(over) == [both(5 + index) for index in values(over.layout)]
            done += 1
    assert done > 100
    with pytest.raises(LayoutError, match="the shifts differ"):
        compose(Swizzle(1, 0, 3), Swizzle(1, 0, 2))
    with pytest.raises(LayoutError, match="xor the bits 0b1010000 into the bits 0b101"):
        compose(Swizzle(1, 0, 4), Swizzle(1, 2, 4))
    assert compose(Swizzle(2, 1, 3), Swizzle(2, 1, 3)) == Swizzle(0, 0, 0)


def all_swizzles() -> list[Swizzle]:
    every = itertools.product((0, 1, 2, 3), (0, 1, 2), (-3, -2, -1, 1, 2, 3))
    return [Swizzle(bits, base, shift) for bits, base, shift in every if abs(shift) >= bits]


def test_a_layout_carries_a_swizzle() -> None:
    """As CuTe's, where it moves bits; a swizzle of rows and columns turns round with them."""
    assert str(compose(Layout((8, 8), (8, 1)), Swizzle(3, 0, 3))) == "Sw<3,0,-3> o 0 o (8,8):(8,1)"
    done = 0
    for layout, rng in random_layouts(1500, seed=16):
        swizzle = rng.choice(all_swizzles())
        with contextlib.suppress(LayoutError):
            carried = compose(layout, swizzle)
            assert values(carried) == [layout(swizzle(place)) for place in range(layout.size)], f"{layout} o {swizzle}"
            done += 1
    assert done > 150
    assert str(compose(Layout((6, 8)), Swizzle(1, 0, 1))) == "Sw<1,0,1> o 0 o (6,8):(1,6)"  # it is 48:1
    with pytest.raises(LayoutError, match=r"\(8,8\):\(8,1\) does not carry Sw<2,3,4> through") as caught:
        compose(Layout((8, 8), (8, 1)), Swizzle(2, 3, 4))
    assert "note: CuTe = Sw<2,0,4> o 0 o (8,8):(8,1), which is 17 at 2, not 16" in str(caught.value)
    with pytest.raises(LayoutError, match="would xor the bits 0b1010 into the bits 0b10"):
        compose(Layout((6, 8), (1, 8)), Swizzle(1, 1, 2))


def test_a_swizzled_layout_composes_from_both_sides() -> None:
    square = Layout((4, 4), (4, 1))
    swizzled = compose(Swizzle(1, 0, 2), square)
    assert str(compose(square, swizzled)) == "Sw<1,0,-2> o 0 o (4,4):(1,4)"
    assert str(compose(swizzled, Swizzle(1, 0, -2))) == "Sw<0,0,0> o 0 o (4,4):(4,1)"
    offset = ComposedLayout(Swizzle(1, 0, 1), 2, Layout(8))
    for left, right in ((Layout(8), offset), (offset, Swizzle(1, 0, 1)), (swizzled, Swizzle(1, 0, 2))):
        with pytest.raises(LayoutError, match="E0674"):
            compose(left, right)


# The algebra


def test_inverses_through_a_swizzle() -> None:
    tile = compose(Swizzle(3, 3, 3), Layout((8, 64), (64, 1)))
    for inverse in (right_inverse(tile), left_inverse(tile)):
        assert str(inverse) == "Sw<3,0,-6> o 0 o (64,8):(8,1)"
        assert [tile(inverse(index)) for index in range(512)] == list(range(512))
    with pytest.raises(LayoutError, match="does not carry Sw<2,3,4> through"):
        right_inverse(compose(Swizzle(2, 3, 4), Layout((8, 8), (8, 1))))
    with pytest.raises(LayoutError, match="the offset 8 between swizzle and layout"):
        left_inverse(ComposedLayout(Swizzle(3, 3, 3), 8, Layout(512)))


def test_divide_and_product_under_a_swizzle() -> None:
    swizzled = ComposedLayout(Swizzle(3, 3, 3), 0, Layout((8, 64), (64, 1)))
    divided = swizzled.within(zipped_divide, (4, 8))
    assert str(divided) == "Sw<3,3,3> o 0 o ((4,8),(2,8)):((64,1),(256,8))"
    assert all(divided((i, j), (0, 0)) == swizzled(i, j) for i in range(4) for j in range(8))
