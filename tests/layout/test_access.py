"""Facts of layouts for a kernel and its caller: vector width, overlap, interleaving, bank conflicts; by enumeration."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator

import pytest

from evt.layout import (
    ComposedLayout,
    Layout,
    LayoutError,
    Swizzle,
    Wavefronts,
    bank,
    bank_conflicts,
    compose,
    contiguous_mode,
    interleaves,
    overlaps,
    single_stride,
    span,
    vector_width,
    widest_vector,
)
from tests.support.layouts import questions, random_composed, random_layout

Modes = list[tuple[int, int]]


def tensors(count: int, seed: int, empty: bool = False) -> Iterator[tuple[Modes, random.Random]]:
    rng = random.Random(seed)
    for _ in range(questions(count)):
        yield random_tensor(rng, empty), rng


def random_tensor(rng: random.Random, empty: bool = False) -> Modes:
    """Up to three modes with the strides of a view of something packed, or any."""
    extents = [
        rng.choice((0,) if empty and rng.random() < 0.05 else (1, 2, 3, 4, 5, 8)) for _ in range(rng.randrange(1, 4))
    ]
    if rng.random() < 0.5:
        return [(extent, rng.choice((-8, -3, -1, 0, 1, 2, 3, 4, 5, 8, 12, 20))) for extent in extents]
    modes, step = [], rng.choice((1, 1, 2))
    for extent in extents:
        modes.append((extent, step))
        step *= max(extent, 1) * rng.choice((1, 1, 1, 2))
    rng.shuffle(modes)
    return modes


def indices(modes: Modes) -> list[int]:
    ranges = (range(extent) for extent, _ in modes)
    return [sum(c * d for c, (_, d) in zip(place, modes, strict=True)) for place in itertools.product(*ranges)]


def test_span_and_overlaps() -> None:
    for modes, _ in tensors(3000, seed=1, empty=True):
        found = indices(modes)
        assert span(modes) == ((min(found), max(found) + 1) if found else (0, 0))
        assert overlaps(modes) == (len(set(found)) < len(found))
        if found:
            layout = Layout(tuple(extent for extent, _ in modes), tuple(stride for _, stride in modes))
            assert span(layout) == span(modes)
            assert overlaps(layout) == overlaps(modes)


def test_interleaves() -> None:
    together = apart = 0
    for a, rng in tensors(4000, seed=2, empty=True):
        b = random_tensor(rng) if rng.random() < 0.6 else a
        a_bytes, b_bytes = rng.choice(((1, 1), (2, 2), (4, 2), (1, 4)))
        distance = rng.randrange(-40, 41)
        mine = {index * a_bytes + byte for index in indices(a) for byte in range(a_bytes)}
        yours = {distance + index * b_bytes + byte for index in indices(b) for byte in range(b_bytes)}
        shared = bool(mine & yours)
        assert interleaves(a, b, distance, a_bytes, b_bytes) == shared, (a, b, distance, a_bytes, b_bytes)
        assert interleaves(b, a, -distance, b_bytes, a_bytes) == shared
        together += shared
        apart += not shared
    assert min(together, apart) > (together + apart) // 8


def test_large_tensors_are_decided_at_once() -> None:
    """The halves of a matrix's columns do not meet, nor do its even and odd rows; a shifted half does."""
    half = [(50_000, 8192), (4096, 1)]
    assert not interleaves(half, half, 4096)
    assert interleaves(half, half, 4095)
    assert not interleaves([(25_000, 16384), (8192, 1)], [(25_000, 16384), (8192, 1)], 8192)
    assert not interleaves([(10**6, 3)], [(10**6, 3)], 1)
    assert interleaves([(10**6, 3)], [(10**6, 5)], 1)
    assert not overlaps([(10**9, 1 << 40), (1 << 20, 1 << 20), (1 << 20, 1)])
    assert overlaps([(1000, 999), (1000, 1)])
    assert not overlaps([(1000, 1001), (1000, 1000)])
    assert overlaps([(1002, 1001), (1002, 1000)])


def test_what_takes_too_long_is_given_up() -> None:
    rng = random.Random(5)
    knapsack = [(2, rng.randrange(10**15, 2 * 10**15)) for _ in range(40)]
    with pytest.raises(LayoutError, match="E0675"):
        overlaps(knapsack)


def test_vector_width_by_its_definition() -> None:
    """The widest for a layout; for a swizzled one, whose swizzle may have no effect, none that is too wide."""
    rng = random.Random(3)
    wide = 0
    for _ in range(questions(1000)):
        swizzled = random_composed(rng)
        layout: Layout | ComposedLayout = swizzled if rng.random() < 0.5 else random_layout(rng)
        element_bytes, address = rng.choice((1, 2, 4, 8)), rng.choice((0, 16, 32, 8, 4, 2, 6, -16))
        for mode in range(layout.rank):
            found = vector_width(layout, mode, element_bytes, address)
            wide += found > 1
            assert found == 1 or is_wide(layout, mode, element_bytes, address, found), (str(layout), mode, found)
            if isinstance(layout, Layout) and found * element_bytes < 16:
                assert not is_wide(layout, mode, element_bytes, address, 2 * found), (str(layout), mode, found)
    assert wide > 200


def is_wide(layout: Layout | ComposedLayout, mode: int, element_bytes: int, address: int, width: int) -> bool:
    """Return whether accesses of that width along a mode are contiguous, whole and aligned at every coordinate."""
    modes = layout.modes if isinstance(layout, Layout) else layout.layout.modes
    run = modes[mode].size
    others = [range(each.size) for place, each in enumerate(modes) if place != mode]
    return run % width == 0 and all(
        (address + start * element_bytes) % (width * element_bytes) == 0
        and all(place(layout, mode, first + i, rest) == start + i for i in range(width))
        for rest in itertools.product(*others)
        for first in range(0, run, width)
        for start in [place(layout, mode, first, rest)]
    )


def place(layout: Layout | ComposedLayout, mode: int, along: int, rest: tuple[int, ...]) -> int:
    coordinate = (*rest[:mode], along, *rest[mode:])
    return layout(coordinate if len(coordinate) > 1 else along)


def test_vector_width_through_a_swizzle() -> None:
    tile = Layout((8, 64), (64, 1))
    assert vector_width(tile, 1, 2) == 8
    assert vector_width(compose(Swizzle(3, 3, 3), tile), 1, 2) == 8
    assert vector_width(compose(Swizzle(2, 1, 3), tile), 1, 2) == 2
    assert vector_width(ComposedLayout(Swizzle(0, 0, 0), 4, tile), 1, 2) == 4
    assert (
        vector_width(ComposedLayout(Swizzle(1, 3, 3), 1, Layout(64)), 0, 2, address=6) == 1
    )  # 8 bytes at index 1, 9...
    assert vector_width(tile, 0, 2) == 1


def test_widest_vector_is_what_signatures_have() -> None:
    from evt.ir.dtype import BY_NAME
    from evt.plan import alignment_of

    rng = random.Random(4)
    for _ in range(questions(2000)):
        dtype = BY_NAME[rng.choice(("f16", "f32", "e4m3", "f64", "i8"))]
        extent, address = rng.choice((0, 1, 4, 6, 8, 24, 4096)), rng.choice((0, 2, 4, 8, 16, 24, 4096))
        strides = {mode: rng.choice((0, 1, 4, 8, 12, 4096)) for mode in "ml"[: rng.randrange(3)]}
        wanted = alignment_of(dtype, "n", address, strides, extent)
        assert widest_vector(dtype.bits // 8, address, extent, strides.values()) == wanted


def test_contiguous_mode() -> None:
    assert contiguous_mode(Layout((4, 8), (8, 1))) == 1
    assert contiguous_mode(Layout((4, 8), (1, 4))) == 0
    assert contiguous_mode(Layout((4, 8), (16, 2))) is None
    assert contiguous_mode(Layout((4, (2, 2)), (1, (1, 2)))) == 0
    assert contiguous_mode(Layout((2, (2, 2)), (1, (1, 2)))) == 1
    assert contiguous_mode(Layout((1, 1), (1, 1))) is None


def test_single_stride() -> None:
    assert single_stride([(4, 6), (3, 2)]) == 2
    assert single_stride([(4, 7), (3, 2)]) is None
    assert single_stride([(4, 6), (1, 99), (3, 2)]) == 2
    assert single_stride([(4, 0), (3, 0)]) == 0
    assert single_stride([(4, 5), (3, 0)]) is None
    assert single_stride([(1, 5), (1, 7)]) == single_stride([]) == 0
    rng = random.Random(6)
    for _ in range(questions(1000)):
        modes = random_tensor(rng)
        found = single_stride(modes)
        walked = indices(modes)
        steps = {after - before for before, after in itertools.pairwise(walked)}
        assert found == (None if len(steps) > 1 else next(iter(steps), 0))


@pytest.mark.parametrize(
    ("layout", "element_bytes", "vector", "count", "least"),
    [
        ("32:1", 4, 1, 1, 1),
        ("32:2", 4, 1, 2, 1),
        ("32:32", 4, 1, 32, 1),
        ("32:33", 4, 1, 1, 1),
        ("32:0", 4, 1, 1, 1),  # one word for all
        ("32:1", 2, 1, 1, 1),  # two lanes share a word
        ("32:1", 1, 1, 1, 1),
        ("32:64", 2, 1, 32, 1),
        ("128:1", 4, 4, 4, 4),  # 512 bytes in four passes
        ("64:1", 4, 2, 2, 2),
        ("16:-1", 4, 1, 1, 1),
    ],
)
def test_bank_conflicts(layout: str, element_bytes: int, vector: int, count: int, least: int) -> None:
    assert bank_conflicts(Layout.parse(layout), element_bytes, vector=vector) == Wavefronts(count, least)


def test_swizzles_take_conflicts_away() -> None:
    """Eight rows of 128 bytes, read down a column in 16-byte vectors as ldmatrix does: one bank group, or all."""
    tile = Layout((8, 64), (64, 1))
    rows = Layout((8, 4), (1, 64))  # lanes 0-7 the rows of the first vector, 8-15 of the second, ...
    plain = bank_conflicts(tile, 2, rows, vector=8)
    swizzled = bank_conflicts(compose(Swizzle(3, 3, 3), tile), 2, rows, vector=8)
    assert (plain.count, plain.least, plain.conflicts) == (32, 4, 28)
    assert (swizzled.count, swizzled.conflicts) == (4, 0)
    padded = Layout((8, 64), (72, 1))
    assert bank_conflicts(padded, 2, rows, vector=8).conflicts == 0


def test_accesses_that_are_none() -> None:
    for arguments, said in [
        ((4, None, 3), "12 bytes wide"),
        ((8, None, 4), "32 bytes wide"),
        ((4, Layout(33), 1), "33 lanes"),
        ((4, Layout(4), 2), "lane 1 accesses 8 bytes at byte 4"),
    ]:
        with pytest.raises(LayoutError, match="E0674") as caught:
            bank_conflicts(Layout(64), *arguments)
        assert said in str(caught.value)


def test_banks() -> None:
    assert [bank(index, 2) for index in (0, 1, 2, 63, 64)] == [0, 0, 1, 31, 0]
    assert [bank(index, 8) for index in (0, 1, 15, 16)] == [0, 2, 30, 0]
