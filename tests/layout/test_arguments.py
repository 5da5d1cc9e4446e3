"""The functions of ``evt.layout`` with any arguments: the documented result, or a LayoutError, and soon."""

from __future__ import annotations

import contextlib
import inspect
import random
import sys
from collections import Counter
from collections.abc import Callable
from functools import partial
from types import FrameType
from typing import Any

import numpy as np
import pytest

import evt.layout as room
from evt.layout import (
    ComposedLayout,
    Layout,
    LayoutError,
    Swizzle,
    bank,
    bank_conflicts,
    blocked_product,
    coalesce,
    complement,
    compose,
    concatenate,
    contiguous_mode,
    draw_text,
    filtered,
    flat_divide,
    flat_product,
    grid,
    interleaves,
    is_contiguous,
    is_injective,
    left_inverse,
    logical_divide,
    logical_product,
    naive_cosize_fault,
    raked_product,
    right_inverse,
    vector_width,
    zipped_divide,
    zipped_product,
)
from tests.support.layouts import questions, random_composed, random_layout, random_swizzle, random_tiler

QUESTIONS = questions(300)
FUNCTIONS = {name: value for name in room.__all__ if inspect.isfunction(value := getattr(room, name))}
CALLABLES: dict[str, Callable[..., Any]] = {
    **FUNCTIONS,
    "Layout": Layout,
    "Swizzle": Swizzle,
    "ComposedLayout": ComposedLayout,
    "Layout.parse": Layout.parse,
    "Layout()": Layout(((2, 4), 8)),
    "Layout().coordinate": Layout(((2, 4), 8)).coordinate,
    "Layout() @": lambda other: Layout(((2, 4), 8)) @ other,
    "Swizzle()": Swizzle(2, 1, 3),
    "ComposedLayout()": ComposedLayout(Swizzle(2, 1, 3), 5, Layout((8, 8))),
    "ComposedLayout().coordinate": ComposedLayout(Swizzle(2, 1, 3), 5, Layout((8, 8))).coordinate,
}


def itself() -> list[Any]:
    endless: list[Any] = []
    endless.append(endless)
    return endless


def bush() -> Any:
    """Return a tuple of few objects and very many leaves."""
    result: Any = 2
    for _ in range(12):
        result = (result,) * 100
    return result


class Index:
    def __index__(self) -> int:
        return 4


SCALARS = (
    *(0, 1, 2, 3, 4, 8, 16, 17, -1, -4, 2**31, 2**62, 2**63, 2**64 + 1, -(2**63), 10**30, 10**5000),
    *(None, True, False, 2.5, 4.0, float("nan"), float("inf"), 1j, b"4", Index(), object(), int, len),
    *(np.int64(4), np.int8(-1), np.uint8(200), np.float32(4), np.bool_(True), np.array(4), np.array([2, 4])),
    *(
        "",
        "4",
        "4:1",
        "(8,8):(8,1)",
        "Sw<3,3,3>",
        "Sw<3,3,3> o 0 o (8,8):(8,1)",
        "\ud800",
        "(" * 50,
        "\N{DEVANAGARI DIGIT FOUR}",
    ),
)
TREES: tuple[Any, ...] = (
    *(
        (),
        [],
        ((),),
        (4,),
        [4],
        (2, 4),
        [2, [4, 2]],
        (2, (4, 2)),
        ((2, 4), 8),
        (2.5, 1),
        (2, None),
        ("4", 1),
        (True, 2),
    ),
    *((2**62, 2**62), (2**40, 2**40, 2**40), (0, 1), (4, -2), tuple([2] * 128), tuple([2] * 129), [2] * 10_000),
    *(
        {},
        {4: 1},
        {2, 4},
        range(4),
        range(0),
        np.array([4, 2]),
        itself(),
        bush(),
        iter([4, 2]),
        "ab",
        ((4, 1), (8, 4)),
        [(4, 1)],
    ),
    *([(4, 1, 2)], [(4, 2.5)], [(-4, 1)], ((2**62, 2**62),) * 3, [(0, 1), (4, 0)], [None], ((1, 2), 3)),
)


def values(rng: random.Random) -> Any:
    """Return an argument: often a documented one, often not."""
    layout = random_layout(rng)
    kinds: tuple[Callable[[], Any], ...] = (
        lambda: layout,
        lambda: random_composed(rng),
        lambda: random_swizzle(rng),
        lambda: random_tiler(rng, layout),
        lambda: large_layout(rng),
        lambda: rng.choice(SCALARS),
        lambda: rng.choice(SCALARS[:9]),
        lambda: rng.choice(TREES),
        lambda: (rng.choice(SCALARS), layout, rng.choice(TREES)),
        lambda: layout.leaves,
    )
    return rng.choice(kinds)()


def large_layout(rng: random.Random, modes: int = 10) -> Layout:
    """Ten modes of extents and strides up to 2**50: any, powers of two, or packed with gaps and overlaps."""
    kind = rng.randrange(4)
    extents = [
        rng.choice((2, 3, 2 ** rng.randrange(1, 30), rng.randrange(2, 2 ** rng.randrange(2, 50)))) for _ in range(modes)
    ]
    if kind == 0:
        return Layout(tuple(extents), tuple(rng.randrange(-(2**50), 2**50) for _ in extents))
    if kind == 1:
        return Layout(tuple(extents), tuple(2 ** rng.randrange(50) for _ in extents))
    extents = [2 + extent % (60 if kind == 2 else 14) for extent in extents]
    strides, step = [], 1
    for extent in extents:
        strides.append(step)
        step = step * extent + rng.choice((0, 0, 0, 1, -1, 7)) if kind == 2 else step * extent
    places = rng.sample(range(modes), modes)
    return Layout(tuple(extents[place] for place in places), tuple(strides[place] for place in places))


def arity(function: Callable[..., Any]) -> tuple[int, int]:
    """Return the fewest and the most arguments; three for any number."""
    parameters = inspect.signature(function).parameters.values()
    if any(each.kind is each.VAR_POSITIONAL for each in parameters):
        return 0, 3
    required = [each for each in parameters if each.default is each.empty]
    return len(required), len(parameters)


@pytest.mark.parametrize("name", CALLABLES)
def test_any_arguments(name: str) -> None:
    function, rng = CALLABLES[name], random.Random(name)
    fewest, most = arity(function)
    outcomes: Counter[str] = Counter()
    for _ in range(QUESTIONS):
        arguments = [values(rng) for _ in range(rng.randint(fewest, most))]
        try:
            function(*arguments)
            outcomes["answered"] += 1
        except LayoutError as error:
            outcomes[error.diagnostics[0].code] += 1
            str(error)
    assert set(outcomes) <= {"answered", "E0671", "E0672", "E0673", "E0674", "E0675"}
    assert outcomes.total() - outcomes["answered"] > QUESTIONS // 20


#: Functions whose first argument is a layout, with their other arguments.
TAKES_A_LAYOUT: dict[Callable[..., Any], tuple[Any, ...]] = {
    **dict.fromkeys((coalesce, filtered, complement, right_inverse, left_inverse, concatenate, contiguous_mode), ()),
    **dict.fromkeys((is_injective, is_contiguous, naive_cosize_fault, grid, draw_text), ()),
    **dict.fromkeys((compose, logical_divide, zipped_divide, flat_divide), (2,)),
    **dict.fromkeys((logical_product, zipped_product, flat_product, blocked_product, raked_product), (2,)),
    vector_width: (0, 2),
    bank_conflicts: (4,),
}


@pytest.mark.parametrize("function", TAKES_A_LAYOUT, ids=lambda each: each.__name__)
def test_an_integer_is_a_layout(function: Callable[..., Any]) -> None:
    """A value with __index__ is n:1; a bool is not a layout, and neither is a value that only looks like one."""
    others = TAKES_A_LAYOUT[function]
    wanted = function(Layout(4), *others)
    for four in (4, np.int64(4), np.uint8(4), Index()):
        assert function(four, *others) == wanted
    wrong = (True, 4.0, None, "4:1", (4, 8), [4], np.bool_(True), 0, -4, 2**63)
    for value in wrong if function is compose else (*wrong, Swizzle(1, 0, 1)):
        with pytest.raises(LayoutError, match="E0672"):
            function(value, *others)


def test_integers_on_the_right() -> None:
    assert compose(8, 4) == Layout(4) == compose(8, np.int64(4))
    assert complement(4, 24) == Layout(6, 4)
    assert logical_divide(Layout((8, 8)), (4, [2])) == logical_divide(Layout((8, 8)), (Layout(4), (Layout(2),)))
    assert concatenate(4, Layout(2, 4)) == Layout((4, 2))
    assert coalesce(Layout((4, (2, 2))), [0, [0, 0]]) == Layout((4, (2, 2)), (1, (4, 8)))
    for wrong in (True, 4.0, None, "4", 0, -1, (), (2, None), (0, 2), (True,)):
        for function in (compose, logical_divide, logical_product, zipped_divide):
            with pytest.raises(LayoutError, match="E0672"):
                function(Layout((8, 8)), wrong)


def test_numpy_integers_become_ints() -> None:
    layout = Layout((np.int64(4), np.int32(8)), (np.uint8(8), np.int8(-1)))
    assert layout == Layout((4, 8), (8, -1))
    assert {type(number) for leaf in layout.leaves for number in leaf} == {int}
    assert type(bank(np.int64(40), np.int8(2))) is int
    assert type(Swizzle(np.int64(1), np.int64(0), np.int64(1))(np.int64(2))) is int


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: vector_width(Layout((4, 8)), 2, 2), "the layout has no mode 2"),
        (lambda: vector_width(Layout((4, 8)), -1, 2), "the layout has no mode -1"),
        (lambda: vector_width(Layout((4, 8)), 0, 0), "element_bytes is 0"),
        (lambda: bank(3, 0), "element_bytes is 0"),
        (lambda: bank_conflicts(32, 4, vector=0), "vector is 0"),
        (lambda: interleaves([(4, 1)], [(4, 1)], 0, a_bytes=0), "a_bytes is 0"),
        (lambda: interleaves([(4, 1)], [(4, 1, 2)], 0), "up to 128 pairs (extent, stride)"),  # type: ignore[list-item]
        (lambda: concatenate(compose(Swizzle(1, 0, 1), 8), 4), "a layout without one is expected"),
        (lambda: Layout((4, 8))(2.5), "a coordinate is an integer, not of type float"),
        (lambda: Layout(10**5000), "an extent is an integer of more than 64 bits"),
        (lambda: Layout((2**62, 2, 2)), "a stride is an integer of more than 64 bits"),
        (lambda: Layout.parse(None), "a text is read, not a NoneType"),
    ],
)
def test_arguments_out_of_range(call: Callable[[], Any], said: str) -> None:
    with pytest.raises(LayoutError) as caught:
        call()
    assert said in str(caught.value)


def test_large_layouts_take_milliseconds() -> None:
    """Counted in calls of Python functions; a millisecond has about ten thousand."""
    rng = random.Random(8)
    functions: tuple[Callable[[Layout], Any], ...] = (
        *(coalesce, filtered, complement, right_inverse, left_inverse, is_injective, is_contiguous, naive_cosize_fault),
        *(partial(swapped, compose, other) for other in (2, Swizzle(2, 1, 3))),
        *(partial(swapped, function, 4) for function in (logical_divide, logical_product, zipped_divide)),
        lambda layout: compose(layout, layout),
        lambda layout: logical_product(layout, layout),
        lambda layout: blocked_product(layout, Layout((2,) * 10)),
        lambda layout: ComposedLayout(Swizzle(3, 14, 3), 5, layout).bounds,
        lambda layout: left_inverse(ComposedLayout(Swizzle(3, 4, 3), 0, layout)),
        lambda layout: interleaves(layout, layout, 4097),
    )
    calls = 0

    def hook(frame: FrameType, event: str, argument: object) -> None:
        nonlocal calls
        calls += event == "call"

    for _ in range(30):
        layout = large_layout(rng)
        for function in functions:
            calls = 0
            sys.setprofile(hook)
            try:
                with contextlib.suppress(LayoutError):
                    function(layout)
            finally:
                sys.setprofile(None)
            assert calls < 100_000, (str(layout), function)


def swapped(function: Callable[..., Any], other: Any, layout: Layout) -> Any:
    return function(layout, other)
