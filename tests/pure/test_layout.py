"""Layouts: each operation against its definition, by enumeration over random nested layouts.

The tests draw 20,000 random layouts in all (and as many partners for them), always the same.
"""

from __future__ import annotations

import contextlib
import itertools
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from math import prod

import pytest

import evt
from evt.layout import (
    ComposedLayout,
    IntTuple,
    Layout,
    LayoutError,
    Swizzle,
    blocked_product,
    coalesce,
    complement,
    compose,
    concatenate,
    filtered,
    flat_divide,
    flat_product,
    is_contiguous,
    is_injective,
    left_inverse,
    logical_divide,
    logical_product,
    naive_cosize_fault,
    parse,
    raked_product,
    right_inverse,
    tiled_divide,
    tiled_product,
    zipped_divide,
    zipped_product,
)
from evt.layout.tree import congruent, leaves

EXTENTS = (1, 2, 2, 3, 4, 4, 5, 6, 8)
LARGEST = 96


def random_shape(rng: random.Random, depth: int = 2) -> IntTuple:
    if not depth or rng.random() < 0.4:
        return rng.choice(EXTENTS)
    return tuple(random_shape(rng, depth - 1) for _ in range(rng.choice((1, 2, 2, 3))))


def random_layout(rng: random.Random, negative: bool = False) -> Layout:
    """Compact in a random order, padded, broadcast, or with any strides."""
    while True:
        shape = random_shape(rng)
        extents = leaves(shape)
        if prod(extents) <= LARGEST:
            break
    if rng.random() < 0.7:
        order = list(range(len(extents)))
        if rng.random() < 0.6:
            rng.shuffle(order)
        flat, step = [0] * len(extents), 1
        for place in order:
            step *= rng.choice((1, 1, 1, 2, 3)) if rng.random() < 0.4 else 1
            flat[place] = step if rng.random() < 0.95 else 0
            step *= extents[place]
    else:
        flat = [rng.choice((0, 1, 1, 2, 3, 4, 6, 8, 12, 16, 20)) for _ in extents]
    if negative:
        flat = [-stride if rng.random() < 0.3 else stride for stride in flat]
    strides = iter(flat)
    return Layout(shape, like(shape, strides))


def like(shape: IntTuple, values: Iterator[int]) -> IntTuple:
    return tuple(like(part, values) for part in shape) if isinstance(shape, tuple) else next(values)


def layouts(count: int, seed: int, negative: bool = False) -> Iterator[tuple[Layout, random.Random]]:
    rng = random.Random(seed)
    for _ in range(count):
        yield random_layout(rng, negative), rng


def values(layout: Layout | ComposedLayout) -> list[int]:
    return [layout(place) for place in range(layout.size)]


def unpacked(layout: Layout) -> tuple[Layout, ...]:
    """The modes, as CuTe's slices have them: a tuple of one stays one."""
    return layout.modes if layout.rank > 1 else (layout,)


def strides_divide(layout: Layout) -> bool:
    """Whether the modes, by stride, leave gaps of whole blocks: then nothing is missed by a complement."""
    steps = [(1, 1), *sorted(layout.leaves, key=lambda pair: pair[1])]
    return all(after % (extent * stride) == 0 for (extent, stride), (_, after) in itertools.pairwise(steps))


def all_coordinates(shape: IntTuple) -> Iterator[IntTuple]:
    """Every coordinate, by the definition of the colexicographic order: the leftmost runs fastest."""
    if not isinstance(shape, tuple):
        yield from range(shape)
        return
    for reverse in itertools.product(*(tuple(all_coordinates(part)) for part in reversed(shape))):
        yield reverse[::-1]


# Coordinates and text


def test_coordinates() -> None:
    for layout, _ in layouts(1000, seed=1, negative=True):
        for place, coordinate in enumerate(all_coordinates(layout.shape)):
            assert layout.coordinate(place) == coordinate
            index = sum(c * d for c, d in zip(leaves(coordinate), leaves(layout.stride), strict=True))
            assert layout(place) == layout(coordinate) == index
            if isinstance(coordinate, tuple) and len(coordinate) > 1:
                assert layout(*coordinate) == index


def test_partial_coordinates() -> None:
    layout = Layout(((2, 4), 8), ((1, 16), 2))
    assert layout((1, 2), 3) == layout(5, 3) == layout(5 + 8 * 3) == 1 + 32 + 6
    assert layout.size == 64
    assert (layout.rank, layout.depth) == (2, 2)
    assert layout[0] == Layout((2, 4), (1, 16))
    assert concatenate(*layout.modes) == layout


def test_beyond_the_extents_a_layout_is_cutes() -> None:
    layout = Layout((4, 2), (10, 1))
    assert [layout(place) for place in (8, 9, 12)] == [2, 12, 3]
    assert [layout(-place) for place in range(12)] == [-layout(place) for place in range(12)]


@pytest.mark.parametrize("coordinate", [(1, 2, 3), ((1, 2), (1, 2)), ((1, 2, 3), 1), ((1,), 1)])
def test_coordinates_of_another_form(coordinate: tuple[IntTuple, ...]) -> None:
    with pytest.raises(LayoutError, match="E0673"):
        Layout(((2, 4), 8))(*coordinate)


def test_text_reads_back() -> None:
    for layout, rng in layouts(1000, seed=2, negative=True):
        assert Layout.parse(str(layout)) == parse(str(layout)) == layout
        assert Layout.parse(layout.concatenated()) == layout
        assert eval(repr(layout)) == layout
        swizzled = ComposedLayout(Swizzle(2, rng.randrange(4), rng.choice((-3, 2, 4))), rng.randrange(-9, 9), layout)
        assert parse(str(swizzled)) == swizzled
        assert parse(str(swizzled.swizzle)) == swizzled.swizzle


def test_what_is_no_layout() -> None:
    wrong = [(4, (1, 2)), ((4, 2), 1), ((4, 2), (1,)), (0, 1), ((4, -2), None), ((), ()), ((4, ()), None), (2.5, 1)]
    for shape, stride in wrong:
        with pytest.raises(LayoutError, match="E0672"):
            Layout(shape, stride)  # type: ignore[arg-type]
    deep: IntTuple = 2
    for _ in range(10_000):
        deep = (deep,)
    with pytest.raises(LayoutError, match="nest more than 32"):
        Layout(deep)
    for swizzle in ((-1, 0, 3), (1, -1, 3), (3, 4, 2), (3, 4, -2), (8, 20, 8)):
        with pytest.raises(LayoutError, match="E0672"):
            Swizzle(*swizzle)


# Cosize


def test_cosize_is_the_interval_that_is_spanned() -> None:
    for layout, _ in layouts(2000, seed=3, negative=True):
        indices = values(layout)
        assert layout.bounds == (min(indices), max(indices))
        assert layout.cosize == max(indices) - min(indices) + 1
        assert bool(naive_cosize_fault(layout)) == (layout.naive_cosize != layout.cosize)
        assert is_injective(layout) == (len(set(indices)) == len(indices))
        assert is_contiguous(layout) == (sorted(indices) == list(range(min(indices), max(indices) + 1)))


def test_cosize_through_a_swizzle() -> None:
    for layout, rng in layouts(2000, seed=4, negative=True):
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
    with pytest.raises(LayoutError, match="too many to look at"):
        _ = ComposedLayout(Swizzle(1, 24, 1), 0, Layout(8)).cosize


def test_swizzles_compose() -> None:
    done = 0
    for a, b in itertools.product(all_swizzles(), repeat=2):
        with contextlib.suppress(LayoutError):
            both = compose(a, b)
            assert all(both(index) == a(b(index)) for index in range(1 << 8)), f"{a} o {b}"
            over = compose(a, compose(b, Layout((4, 8), (8, 1))))
            assert over == ComposedLayout(both, 0, Layout((4, 8), (8, 1)))
            done += 1
    assert done > 100
    with pytest.raises(LayoutError, match="the shifts differ"):
        compose(Swizzle(1, 0, 3), Swizzle(1, 0, 2))
    with pytest.raises(LayoutError, match="no two runs"):
        compose(Swizzle(1, 0, 4), Swizzle(1, 2, 4))


def all_swizzles() -> list[Swizzle]:
    every = itertools.product((0, 1, 2, 3), (0, 1, 2), (-3, -2, -1, 1, 2, 3))
    return [Swizzle(bits, base, shift) for bits, base, shift in every if abs(shift) >= bits]


def test_a_layout_carries_a_swizzle() -> None:
    """As CuTe's, where it moves bits; a swizzle of rows and columns turns round with them."""
    assert str(compose(Layout((8, 8), (8, 1)), Swizzle(3, 0, 3))) == "Sw<3,0,-3> o 0 o (8,8):(8,1)"
    done = 0
    for layout, rng in layouts(1500, seed=16):
        swizzle = rng.choice(all_swizzles())
        with contextlib.suppress(LayoutError):
            carried = compose(layout, swizzle)
            assert values(carried) == [layout(swizzle(place)) for place in range(layout.size)], f"{layout} o {swizzle}"
            done += 1
    assert done > 150
    with pytest.raises(LayoutError, match="does not move bits to bits"):
        compose(Layout((6, 8)), Swizzle(1, 0, 1))
    with pytest.raises(LayoutError, match="different distances"):
        compose(Layout((2, 2, 4), (2, 1, 4)), Swizzle(2, 0, 2))
    swizzled = compose(Swizzle(1, 0, 1), Layout(8))
    for left, right in ((Layout(8), swizzled), (swizzled, swizzled), (swizzled, Swizzle(1, 0, 1))):
        with pytest.raises(LayoutError, match="E0674"):
            compose(left, right)  # type: ignore[call-overload]


# The algebra


def test_concatenation_is_not_composition() -> None:
    """``((5,1):(16,4),(2,2):(80,4))`` was presented as a composition, and is a concatenation.

    A concatenation has a coordinate for each of its layouts, and adds up their indices: 20 elements here. The
    composition has the coordinates of the right layout, and feeds its indices to the left one: 4 elements.
    """
    text = "((5,1):(16,4),(2,2):(80,4))"
    a, b = Layout((5, 1), (16, 4)), Layout((2, 2), (80, 4))
    joined = Layout.parse(text)
    assert joined == concatenate(a, b) == Layout(((5, 1), (2, 2)), ((16, 4), (80, 4)))
    assert joined.concatenated() == text
    assert all(joined(i, j) == a(i) + b(j) for i in range(5) for j in range(4))
    composed = compose(a, b)
    assert composed == a @ b == Layout((2, 2), (64, 64))
    assert [composed(i, j) for i in range(2) for j in range(2)] == [
        a(80 * i + 4 * j) for i in range(2) for j in range(2)
    ]
    assert (joined.size, composed.size) == (20, 4)


def test_coalesce() -> None:
    for layout, _ in layouts(1000, seed=5, negative=True):
        result = coalesce(layout)
        assert result.depth <= 1
        assert values(result) == values(layout)
        pairs = result.leaves
        assert all(s * d != after for (s, d), (_, after) in itertools.pairwise(pairs))
        assert all(extent > 1 for extent, _ in pairs) or len(pairs) == 1
        by_mode = coalesce(layout, tuple([0] * layout.rank))
        assert by_mode.rank == layout.rank
        assert [values(mode) for mode in by_mode.modes] == [values(mode) for mode in layout.modes]


def test_filtered() -> None:
    for layout, _ in layouts(500, seed=6, negative=True):
        result = filtered(layout)
        assert set(values(result)) == set(values(layout))
        assert result == Layout(1, 0) or all(extent > 1 and stride for extent, stride in result.leaves)
    assert filtered(Layout(((4, 2), 8), ((0, 1), 0)), (0, 0)) == Layout((2, 1), (1, 0))


def test_compose() -> None:
    done = 0
    for a, rng in layouts(3000, seed=7, negative=True):
        b = random_layout(rng)
        if rng.random() < 0.15:
            b = Layout(b.shape, like(b.shape, iter([-stride for stride in leaves(b.stride)])))
        with contextlib.suppress(LayoutError):
            result = compose(a, b)
            assert result.size == b.size
            assert result.rank == b.rank or not isinstance(b.shape, tuple)
            assert values(result) == [a(index) for index in values(b)], f"{a} o {b}"
            done += 1
    assert done > 1000


def test_compose_with_what_divides_succeeds() -> None:
    """Tiles of a shape's own extents are always admitted: no condition is stricter than it must be."""
    for a, rng in layouts(500, seed=8):
        extents = leaves(coalesce(a).shape)
        order = list(itertools.accumulate(extents, lambda x, y: x * y, initial=1))[:-1]
        chosen = rng.sample(range(len(extents)), rng.randrange(1, len(extents) + 1))
        b = Layout(tuple(extents[place] for place in chosen), tuple(order[place] for place in chosen))
        assert values(compose(a, b)) == [a(index) for index in values(b)]


def test_compose_by_mode() -> None:
    a = Layout((4, 8), (8, 1))
    assert compose(a, (2, Layout(4, 2))) == Layout((2, 4), (8, 2))
    assert compose(a, (2,)) == Layout((2,), (8,))
    assert compose(Layout((4, (2, 4)), (8, (1, 2))), (2, (2, Layout(2, 2)))) == Layout((2, (2, 2)), (8, (1, 4)))
    with pytest.raises(LayoutError, match="3 modes were given for a layout of 2"):
        compose(a, (2, 2, 2))
    swizzled = compose(compose(Swizzle(2, 0, 2), a), (2, 4))
    assert swizzled == ComposedLayout(Swizzle(2, 0, 2), 0, Layout((2, 4), (8, 1)))
    with pytest.raises(LayoutError, match="no modes"):
        compose(Swizzle(2, 0, 2), (2, 4))  # type: ignore[call-overload]


@pytest.mark.parametrize(
    ("a", "b", "said"),
    [
        ("(4,3):(1,10)", "2:6", "the stride 6 is no multiple of the extent 4 of mode 0"),
        ("(4,3):(1,10)", "6:1", "the extent 6 is no multiple of 4"),
        ("(6,4):(1,12)", "4:4", "the stride 4 does not divide the extent 6 of mode 0"),
        ("(4,3):(1,10)", "(3,3):(1,1)", "the right layout's modes add up to 4 in mode 0 of the left, of extent 4"),
        ("(4,3):(1,10)", "(2,2):(1,-4)", "strides of both signs"),
    ],
)
def test_compositions_that_are_none(a: str, b: str, said: str) -> None:
    left, right = Layout.parse(a), Layout.parse(b)
    with pytest.raises(LayoutError, match="E0674") as caught:
        compose(left, right)
    assert said in str(caught.value)
    assert f"left = {left}" in str(caught.value)
    assert f"right = {right}" in str(caught.value)
    assert "= help: " in str(caught.value)


def test_complement() -> None:
    done = 0
    for layout, rng in layouts(1500, seed=9):
        cotarget = rng.choice((None, rng.randrange(1, 200)))
        with contextlib.suppress(LayoutError):
            result = complement(layout, cotarget)
            indices, own = values(result), set(values(layout))
            assert indices == sorted(set(indices))  # ordered, each once
            assert own & set(indices) == {0}
            core = filtered(layout)
            both = values(concatenate(core, result))
            assert len(set(both)) == len(both)
            if strides_divide(core):
                target = core.cosize if cotarget is None else cotarget
                assert len(both) >= target
                assert set(range(target)) <= set(both)
            done += 1
    assert done > 1000


def test_inverses() -> None:
    lefts = 0
    for layout, _ in layouts(1500, seed=10):
        right = right_inverse(layout)
        assert [layout(index) for index in values(right)] == list(range(right.size))
        if is_contiguous(layout):
            assert right.size == layout.size
        with contextlib.suppress(LayoutError):
            left = left_inverse(layout)
            if is_injective(layout):
                assert [left(index) for index in values(layout)] == list(range(layout.size))
                lefts += 1
    assert lefts > 400


def test_left_inverse_of_what_is_broadcast() -> None:
    for layout, _ in layouts(500, seed=11):
        if not is_injective(filtered(layout)):
            continue
        with contextlib.suppress(LayoutError):
            left = left_inverse(layout)
            assert [layout(left(index)) for index in values(layout)] == values(layout)


@pytest.mark.parametrize("operation", [complement, left_inverse])
def test_negative_strides_have_no_complement_and_no_left_inverse(operation: object) -> None:
    with pytest.raises(LayoutError, match="the negative stride -1 is not defined"):
        operation(Layout((4, 2), (-1, 4)))  # type: ignore[operator]


def test_complements_that_are_none() -> None:
    with pytest.raises(LayoutError, match="the mode 2:3 begins inside the span of the nearer modes, which is 6"):
        complement(Layout((3, 2), (2, 3)))
    with pytest.raises(LayoutError, match="up to 0 indices"):
        complement(Layout(4), 0)
    with pytest.raises(LayoutError, match="the stride 3 is no multiple of 2"):
        left_inverse(Layout((3, 2), (2, 3)))


def test_divide() -> None:
    done = 0
    for layout, rng in layouts(1500, seed=12):
        tile = random_layout(rng) if rng.random() < 0.5 else Layout(rng.choice((2, 3, 4, 6)), rng.choice((1, 2, 4)))
        with contextlib.suppress(LayoutError):
            result = logical_divide(layout, tile)
            first, rest = result.modes
            assert congruent(first.shape, tile.shape) or first.size == tile.size
            assert values(first) == [layout(index) for index in values(tile)]
            moves = values(complement(tile, coalesce(layout).shape))
            wanted = [layout(start + index) for start in moves for index in values(tile)]
            assert values(result) == wanted
            if result.size == layout.size and strides_divide(filtered(tile)) and is_injective(tile):
                assert Counter(wanted) == Counter(values(layout))
            assert zipped_divide(layout, tile) == result
            assert tiled_divide(layout, tile) == concatenate(first, *unpacked(rest))
            assert flat_divide(layout, tile) == concatenate(*unpacked(first), *unpacked(rest))
            done += 1
    assert done > 500


def test_divide_by_mode() -> None:
    for layout, rng in layouts(500, seed=13, negative=True):
        tiler = tuple(rng.choice((1, 2, 4)) for _ in range(rng.randrange(1, layout.rank + 1)))
        with contextlib.suppress(LayoutError):
            zipped = zipped_divide(layout, tiler)
            tiles, rests = zipped.modes
            parts = [logical_divide(mode, tile) for mode, tile in zip(layout.modes, tiler, strict=False)]
            others = layout.modes[len(tiler) :]
            assert logical_divide(layout, tiler) == concatenate(*parts, *others)
            assert tiles == concatenate(*(part[0] for part in parts))
            assert rests == concatenate(*(part[1] for part in parts), *others)
            assert tiled_divide(layout, tiler) == concatenate(tiles, *unpacked(rests))
            assert flat_divide(layout, tiler) == concatenate(*unpacked(tiles), *unpacked(rests))


def test_product() -> None:
    done = 0
    for block, rng in layouts(1500, seed=14):
        tiler = random_layout(rng)
        with contextlib.suppress(LayoutError):
            result = logical_product(block, tiler)
            first, copies = result.modes
            assert first == block
            gaps = complement(block, block.size * tiler.cosize)
            assert values(copies) == [gaps(index) for index in values(tiler)]
            if is_injective(block) and is_injective(tiler):
                assert is_injective(result)
            assert zipped_product(block, tiler) == result
            assert tiled_product(block, tiler) == concatenate(first, *unpacked(copies))
            assert flat_product(block, tiler) == concatenate(*unpacked(first), *unpacked(copies))
            done += 1
    assert done > 500


def test_blocked_and_raked_products() -> None:
    done = 0
    for block, rng in layouts(500, seed=15):
        tiler = random_layout(rng)
        with contextlib.suppress(LayoutError):
            blocked, raked = blocked_product(block, tiler), raked_product(block, tiler)
            assert blocked.rank == raked.rank == max(block.rank, tiler.rank)
            for whole, rake in zip(blocked.modes, raked.modes, strict=True):
                assert whole.modes == rake.modes[::-1]
            within = compose(blocked, tuple(mode.size for mode in block.modes))
            assert values(within) == values(block)
            assert Counter(values(blocked)) == Counter(values(raked))
            done += 1
    assert done > 200


def test_divide_and_product_under_a_swizzle() -> None:
    swizzled = ComposedLayout(Swizzle(3, 3, 3), 0, Layout((8, 64), (64, 1)))
    divided = swizzled.within(zipped_divide, (4, 8))
    assert str(divided) == "Sw<3,3,3> o 0 o ((4,8),(2,8)):((64,1),(256,8))"
    assert all(divided((i, j), (0, 0)) == swizzled(i, j) for i in range(4) for j in range(8))


# CuTe's C++ where pycute differs (CUTLASS 4.2)


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (lambda: compose(Layout((6, 4), (1, 12)), Layout(2, 4)), "2:4"),
        (lambda: compose(Layout((4, 8), (8, 1)), (2,)), "(2):(8)"),
        (lambda: left_inverse(Layout((4, 3), (2, 16))), "(2,8,3):(0,1,4)"),
        (lambda: logical_product(Layout((2, 2), (4, 1)), 4), "((2,2),(2,2)):((4,1),(2,8))"),
        (lambda: complement(Layout((4, 3), (2, 16)), (4, 12)), "(2,2):(1,8)"),
        (lambda: logical_divide(Layout((4, 8), (8, 1)), (2,)), "((2,2),8):((8,16),1)"),
    ],
)
def test_we_follow_cxx_and_not_pycute(ours: object, theirs: str) -> None:
    assert str(ours()) == theirs  # type: ignore[operator]


def test_a_product_that_does_not_fit_is_refused() -> None:
    """C++ stops at a static_assert; pycute gives a product of 8 elements for one of 12."""
    with pytest.raises(LayoutError, match="the extent 3 is no multiple of 2"):
        logical_product(Layout((2, 2), (4, 1)), Layout(3, 1))


# The room


def test_importing_it_is_light() -> None:
    heavy = "('torch', 'numpy', 'networkx', 'lark', 'click')"
    code = f"import sys, evt; evt.layout.Layout(4); print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
    assert evt.LayoutError is LayoutError
