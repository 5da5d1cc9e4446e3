"""Random layouts for property tests, with tilers, profiles and swizzles.

:func:`random_layout` draws nested layouts of every kind: compact in any order, padded, broadcast, with strides of one
or both signs, with overlapping modes, with extents of 1.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from math import prod

from evt.layout import ComposedLayout, IntTuple, Layout, Swizzle, Tiler
from evt.layout.tree import leaves

EXTENTS = (1, 2, 2, 3, 4, 4, 5, 6, 8)


def questions(usual: int) -> int:
    """Return how many random cases a test draws; ``EVT_LAYOUT_QUESTIONS=20000`` in the environment asks for more."""
    return max(usual, int(os.environ.get("EVT_LAYOUT_QUESTIONS", "0")))


# Drawing


def random_layout(rng: random.Random, largest: int = 96, signs: bool = True) -> Layout:
    """Return a layout of at most ``largest`` elements; one in three has negative strides where ``signs`` allows it."""
    while True:
        shape = random_shape(rng)
        extents = leaves(shape)
        if prod(extents) <= largest:
            break
    strides = packed(rng, extents) if rng.random() < 0.7 else [rng.randrange(25) for _ in extents]
    if signs and rng.random() < 0.35:
        strides = [-stride if rng.random() < 0.6 else stride for stride in strides]
    return Layout(shape, like(shape, iter(strides)))


def random_layouts(count: int, seed: int) -> Iterator[tuple[Layout, random.Random]]:
    """Yield layouts, more where more are asked for, each with the generator that made it."""
    rng = random.Random(seed)
    for _ in range(questions(count)):
        yield random_layout(rng), rng


def packed(rng: random.Random, extents: tuple[int, ...]) -> list[int]:
    """Strides that follow each other in some order, a few with gaps between, or 0."""
    order = list(range(len(extents)))
    if rng.random() < 0.6:
        rng.shuffle(order)
    strides, step = [0] * len(extents), 1
    gaps = rng.random() < 0.4
    for place in order:
        step *= rng.choice((1, 1, 1, 2, 3)) if gaps else 1
        step += gaps and rng.random() < 0.1
        strides[place] = step if rng.random() < 0.93 else 0
        if extents[place] == 1 and rng.random() < 0.7:
            strides[place] = 0
        step *= extents[place]
    return strides


def random_shape(rng: random.Random, depth: int = 2) -> IntTuple:
    if not depth or rng.random() < 0.35:
        return rng.choice(EXTENTS)
    return tuple(random_shape(rng, depth - 1) for _ in range(rng.choice((1, 2, 2, 3))))


def like(shape: IntTuple, values: Iterator[int]) -> IntTuple:
    return tuple(like(part, values) for part in shape) if isinstance(shape, tuple) else next(values)


def random_tiler(rng: random.Random, layout: Layout) -> Tiler:
    """Return a layout, an extent, or a tuple of these by mode, possibly with fewer modes than the layout."""
    if isinstance(layout.shape, tuple) and rng.random() < 0.6:
        count = rng.randrange(1, layout.rank + 1)
        return tuple(random_tiler(rng, mode) for mode in layout.modes[:count])
    if rng.random() < 0.4:
        return rng.choice((1, 2, 3, 4, 8))
    if rng.random() < 0.6:
        return Layout(rng.choice((2, 3, 4, 8)), rng.choice((1, 1, 2, 4, 0, -1)))
    return random_layout(rng, 24)


def random_stepper(rng: random.Random, layout: Layout) -> Layout:
    """Return a layout with strides near the strides of the given layout, so that compositions cross its modes."""
    steps = [1]
    for extent, _ in layout.leaves:
        steps.append(steps[-1] * extent)
    count = rng.choice((1, 1, 2, 2, 3))
    extents = tuple(rng.choice((2, 2, 3, 4, 5, 6, 8)) for _ in range(count))
    return Layout(
        extents,
        tuple(rng.choice((1, 1, 1, -1)) * rng.choice(steps) * rng.choice((1, 1, 1, 2, 3)) for _ in range(count)),
    )


def random_profile(rng: random.Random, shape: IntTuple) -> IntTuple:
    if isinstance(shape, tuple) and rng.random() < 0.7:
        return tuple(random_profile(rng, part) for part in shape[: rng.randrange(1, len(shape) + 1)])
    return rng.choice((0, 1))


def random_coordinate(rng: random.Random, shape: IntTuple) -> IntTuple:
    """Return a coordinate, some with integers in place of tuples, negative or beyond the extents."""
    if isinstance(shape, tuple) and rng.random() < 0.75:
        return tuple(random_coordinate(rng, part) for part in shape)
    size = prod(leaves(shape))
    return rng.randrange(size) if rng.random() < 0.7 else rng.randrange(-2 * size, 3 * size)


def random_cotarget(rng: random.Random, layout: Layout) -> IntTuple:
    choices: tuple[IntTuple, ...] = (layout.cosize, layout.size * rng.randrange(1, 9), (4, 12), (5, 7), (2, 2, 9))
    return rng.choice((*choices, rng.randrange(1, 200)))


def random_swizzle(rng: random.Random) -> Swizzle:
    bits = rng.choice((0, 1, 1, 2, 2, 3))
    return Swizzle(bits, rng.randrange(4), rng.choice((-1, 1)) * rng.randrange(max(bits, 1), bits + 3))


def random_swizzles(rng: random.Random) -> tuple[Swizzle, Swizzle]:
    """Two swizzles, of one shift as often as not."""
    first, second = random_swizzle(rng), random_swizzle(rng)
    fits = rng.random() < 0.6 and abs(first.shift) >= second.bits
    return first, Swizzle(second.bits, second.base, first.shift) if fits else second


def random_composed(rng: random.Random) -> ComposedLayout:
    """Return a swizzled layout; half of the layouts have powers of two, as in shared memory."""
    if rng.random() < 0.5:
        shape = rng.choice(((8, 8), (4, 16), ((2, 4), 8), (16, (2, 2)), 64, (8, 4)))
        extents = leaves(shape)
        order = rng.sample(range(len(extents)), len(extents))
        flat, step = [0] * len(extents), 1
        for place in order:
            flat[place] = step
            step *= extents[place]
        layout = Layout(shape, like(shape, iter(flat)))
    else:
        layout = random_layout(rng)
    return ComposedLayout(random_swizzle(rng), rng.choice((*[0] * 9, 1, 8, 64)), layout)
