"""Layouts: each operation against its definition, by enumeration over random nested layouts, always the same."""

from __future__ import annotations

import itertools
import random
import subprocess
import sys
from collections.abc import Iterator

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
    left_inverse,
    logical_divide,
    logical_product,
    parse,
    raked_product,
)
from evt.layout.tree import leaves
from tests.support.layout_laws import values
from tests.support.layout_operations import operations
from tests.support.layouts import questions, random_layouts

QUESTIONS = questions(150)
TABLE = operations()


def all_coordinates(shape: IntTuple) -> Iterator[IntTuple]:
    """Every coordinate, by the definition of the colexicographic order: the leftmost runs fastest."""
    if not isinstance(shape, tuple):
        yield from range(shape)
        return
    for reverse in itertools.product(*(tuple(all_coordinates(part)) for part in reversed(shape))):
        yield reverse[::-1]


# Coordinates and text


def test_coordinates() -> None:
    for layout, _ in random_layouts(1000, seed=1):
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
    for layout, rng in random_layouts(1000, seed=2):
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
            Layout(shape, stride)
    deep: IntTuple = 2
    for _ in range(10_000):
        deep = (deep,)
    with pytest.raises(LayoutError, match="nest more than 32"):
        Layout(deep)
    for swizzle in ((-1, 0, 3), (1, -1, 3), (3, 4, 2), (3, 4, -2), (8, 20, 8)):
        with pytest.raises(LayoutError, match="E0672"):
            Swizzle(*swizzle)


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


@pytest.mark.parametrize("name", TABLE)
def test_every_operation_keeps_its_law(name: str) -> None:
    """By enumeration; ``EVT_LAYOUT_QUESTIONS=20000`` asks this number of each."""
    operation, rng = TABLE[name], random.Random(name)
    answered, codes = 0, {"E0674"}
    for _ in range(QUESTIONS):
        arguments = operation.draw(rng)
        try:
            result = operation.ours(*arguments)
        except LayoutError as error:
            codes.add(error.diagnostics[0].code)
            continue
        answered += 1
        assert not operation.law(*arguments, result), f"{name}{tuple(map(str, arguments))}: {result}"
    assert answered > QUESTIONS // 10
    assert codes == {"E0674"}
    print(f"{name}: {QUESTIONS} questions, {answered} answered")


def test_compose_with_what_divides_succeeds() -> None:
    """Tiles of a shape's own extents are always admitted: no condition is stricter than it must be."""
    for a, rng in random_layouts(500, seed=8):
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
    with pytest.raises(LayoutError, match=r"Layout\(shape\) and Layout\(shape, stride\) make a layout of tuples"):
        compose(Swizzle(2, 0, 2), (2, 4))


@pytest.mark.parametrize(
    ("a", "b", "said"),
    [
        ("(4,3):(1,10)", "2:6", "the stride 6 is not a multiple of the extent 4 of mode 0"),
        ("(4,3):(1,10)", "6:1", "the extent 6 is not a multiple of 4"),
        ("(6,4):(1,12)", "4:4", "the stride 4 does not divide the extent 6 of mode 0"),
        ("((2,3),4):((1,2),12)", "4:4", "note: left, coalesced = (6,4):(1,12)"),
        (
            "(4,3):(1,10)",
            "(3,3):(1,1)",
            "the right layout's modes add up to 4 in mode 0 of the left layout, of extent 4",
        ),
        ("(4,3):(1,10)", "(2,2):(1,-4)", "strides of both signs"),
    ],
)
def test_compositions_that_are_none(a: str, b: str, said: str) -> None:
    left, right = Layout.parse(a), Layout.parse(b)
    with pytest.raises(LayoutError, match="E0674") as caught:
        compose(left, right)
    assert said in str(caught.value)
    assert f"left = {left}\n" in str(caught.value)
    assert f"right = {right}" in str(caught.value)
    assert "= help: " in str(caught.value)


def test_strides_of_both_signs() -> None:
    """The right layout's steps of 2 leave mode 0 of the left where it is, so they may go up and down."""
    left, right = Layout((2, 8), (4, -1)), Layout((5, 5, 2), (-2, 10, 50))
    assert str(compose(left, right)) == "(5,5,2):(1,-5,-25)"
    assert compose(left, right)(3) == left(right(3)) == left(-6)
    with pytest.raises(LayoutError, match="the stride -6 is not a multiple of the extent 4") as caught:
        compose(Layout((4, 3), (1, 10)), Layout(2, -6))  # as positive ones, which C++ checks
    assert "CuTe = 2:-20, which is -20 at 1, not -12" in str(caught.value)


def test_left_inverses_of_negative_strides() -> None:
    """C++ gives (-1,4):(0,1), a function that this is."""
    assert left_inverse(Layout(4, -1)) == Layout(4, -1)
    assert left_inverse(Layout(4, -3)) == Layout((3, 4), (0, -1))
    with pytest.raises(LayoutError, match="left inverse of strides of both signs"):
        left_inverse(Layout((4, 2), (-1, 4)))
    with pytest.raises(LayoutError, match="complement of the negative stride -1 is not defined"):
        complement(Layout((4, 2), (-1, 4)))


def test_left_inverses_of_modes_that_overlap() -> None:
    assert left_inverse(Layout((4, 3), (1, 2))) == Layout((2, 3), (1, 4))
    with pytest.raises(LayoutError, match="the modes of the layout overlap"):
        left_inverse(Layout((2, 5), (3, 1)))
    large = Layout((2**30, 2**30), (1, 2**20))
    assert left_inverse(large) == Layout((2**20, 2**30), (1, 2**30))
    with pytest.raises(LayoutError, match="the modes of the layout overlap"):
        left_inverse(Layout((2**30, 2**30), (2**20, 1)))


def test_what_is_not_decided() -> None:
    """Each is right by chance, at 12 places repeated: the small one is looked at in full."""
    left = Layout((8, 4), (0, 8))
    assert str(compose(left, Layout((2, 6), (1, -3)))) == "(2,(3,2)):(0,(0,-8))"
    with pytest.raises(LayoutError, match="E0675"):
        compose(left, Layout((2, 6, 2**40), (1, -3, 0)))


def test_complements_that_are_none() -> None:
    with pytest.raises(LayoutError, match="the mode 2:3 begins inside the span of the nearer modes, which is 6"):
        complement(Layout((3, 2), (2, 3)))
    with pytest.raises(LayoutError, match="up to 0 indices"):
        complement(Layout(4), 0)
    with pytest.raises(LayoutError, match="the stride 3 is not a multiple of 2"):
        left_inverse(Layout((3, 2), (2, 3)))


def test_complements_with_gaps() -> None:
    """The modes 4:1 and 2:12 leave indices between them; CuTe's complement is one as far as it reaches."""
    padded = Layout((4, 2), (1, 6))
    assert complement(padded) == Layout(1, 0)
    assert complement(padded, 22) == Layout(2, 12)
    with pytest.raises(
        LayoutError, match="the stride 6 is not a multiple of 4, which the nearer modes reach"
    ) as caught:
        complement(padded, 12)
    assert "CuTe = 1:0: with it the layout has 8 elements below 10, not 12" in str(caught.value)
    with pytest.raises(LayoutError, match="the stride 12 is not a multiple of 8") as caught:
        complement(Layout((4, 6, 2), (12, 0, 4)), 48)
    assert "CuTe = 4:1: with it the layout has 32 elements below 44, not 48" in str(caught.value)
    with pytest.raises(LayoutError, match=r"the parts of the cotarget \(4,6\) do not hold whole blocks of 5"):
        complement(5, (4, 6))


def test_copies_do_not_meet() -> None:
    """Beyond the places that the complement has, its last mode runs on: outside of the block, or into it."""
    assert logical_product(Layout((4, 2), (1, 6)), 3) == Layout(((4, 2), 3), ((1, 6), 12))
    with pytest.raises(LayoutError, match="the block leaves room for 4, 4:1, and not for 6:1"):
        logical_product(Layout((4, 2), (12, 4)), 6)
    with pytest.raises(LayoutError, match="the block leaves room for 1, 1:0, and not for 2:1"):
        logical_product(Layout((2, 2, 2), (1, 3, 11)), 2)
    with pytest.raises(LayoutError, match="copies share indices"):
        logical_product(Layout(2, 2), Layout((2, 2), (1, -1)))


def test_pairs_of_modes_are_whole() -> None:
    assert blocked_product(3, 6) == Layout(((3, 6),), ((1, 3),))
    assert blocked_product(3, Layout((2, 2))) == Layout(((3, 2), (1, 2)), ((1, 3), (0, 6)))
    with pytest.raises(LayoutError, match="whose modes do not pair off"):
        blocked_product(Layout(((6, 3, 4),), ((1, 12, 0),)), 4)
    with pytest.raises(LayoutError, match="whose modes do not pair off"):
        raked_product(2, Layout((4,)))


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
    with pytest.raises(LayoutError, match="the extent 3 is not a multiple of 2"):
        logical_product(Layout((2, 2), (4, 1)), Layout(3, 1))


# The room


def test_importing_it_is_light() -> None:
    heavy = "('torch', 'numpy', 'networkx', 'lark', 'click')"
    code = f"import sys, evt; evt.layout.Layout(4); print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
    assert evt.LayoutError is LayoutError
