"""The layout algebra equals CuTe's C++ if the result keeps its law, and refuses otherwise.

Random static layouts for every operation that CuTe has. ``EVT_LAYOUT_QUESTIONS=2000`` asks 2000 questions of each,
at about twenty a second.
"""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from evt.layout import ComposedLayout, Layout, LayoutError, Swizzle
from tests.cxx.cute import GXX, Answer, Garbage, Stop, ask, cxx, cxx_tree, include_flags
from tests.support.layout_laws import Nested, bare, values
from tests.support.layout_operations import Operation, operations
from tests.support.layouts import questions as how_many

TABLE = operations()

pytestmark = [
    pytest.mark.cxx,
    pytest.mark.skipif(not GXX, reason="g++ is not on PATH"),
    pytest.mark.skipif(not include_flags(), reason="there are no CUTLASS or no CUDA headers"),
]


def asked(operation: Operation, arguments: tuple[Any, ...]) -> str:
    """Return CuTe's expression; the second argument is a shape or a coordinate, or else a tiler."""
    trees = operation.cute in ("coalesce", "filter", "complement") or "{" in operation.cute
    first, *rest = arguments
    words = [cxx(first), *(cxx_tree(each, "Shape") + "{}" if trees else cxx(each) for each in rest)]
    return operation.cute.format(*words) if "{" in operation.cute else f"{operation.cute}({', '.join(words)})"


def answer(operation: Operation, arguments: tuple[Any, ...]) -> Any:
    """Return evt's result; None if evt refuses the arguments by E0674. Any other LayoutError passes."""
    try:
        return operation.ours(*arguments)
    except LayoutError as error:
        return None if error.diagnostics[0].code == "E0674" else error


def verdict(operation: Operation, arguments: tuple[Any, ...], ours: Any, theirs: Answer) -> str:
    """Return how the answers compare, in capitals where the fault is ours."""
    if isinstance(ours, LayoutError):
        return "REFUSED FOR ANOTHER REASON"
    if ours is not None and operation.law(*arguments, ours):
        return "WRONG"
    if isinstance(theirs, Stop):
        return "both stop" if ours is None else "ANSWERED WHERE C++ STOPS"
    if isinstance(theirs, Garbage):
        return "refused, no layout in C++" if ours is None else answered_garbage(arguments)
    if ours is None:
        if operation.law(*arguments, theirs):
            return "refused, wrong in C++"
        another_form = isinstance(theirs, Nested)
        return "refused, not one swizzle over a layout in C++" if another_form else "REFUSED WHERE C++ IS RIGHT"
    if str(ours) == str(theirs) or ours == theirs:
        return "the same"
    if isinstance(theirs, (Swizzle, int, tuple)) or values(ours) != values(theirs) or ours.shape != theirs.shape:
        return "ANOTHER FUNCTION"
    identity = isinstance(ours, ComposedLayout) and not ours.swizzle.bits and isinstance(theirs, Layout)
    return "the same but for an identity" if identity or isinstance(theirs, Nested) else "ANOTHER TEXT"


def answered_garbage(arguments: tuple[Any, ...]) -> str:
    """Return the verdict where C++ has no layout: its left inverses of negative strides have negative extents."""
    negative = any(stride < 0 for _, stride in bare(arguments[0]).leaves)
    return "the same, with positive extents" if negative else "ANSWERED WHERE C++ HAS NO LAYOUT"


@pytest.mark.parametrize("each", [1, pytest.param(10, marks=pytest.mark.slow)])
def test_every_operation_is_as_in_cute(tmp_path: Path, each: int) -> None:
    count = how_many(each)
    rng = random.Random(count)
    questions = [(name, TABLE[name].draw(rng)) for name in TABLE for _ in range(count)]
    found = ask([asked(TABLE[name], arguments) for name, arguments in questions], tmp_path)
    verdicts: Counter[tuple[str, str]] = Counter()
    faults = []
    for (name, arguments), theirs in zip(questions, found, strict=True):
        ours = answer(TABLE[name], arguments)
        said = verdict(TABLE[name], arguments, ours, theirs)
        verdicts[name, said] += 1
        if said.isupper():
            faults.append(f"{said}: {name}{tuple(map(str, arguments))}\n  ours {ours}\n  CuTe {theirs}")
    for (name, said), count in verdicts.items():
        print(f"{count:6} {name}: {said}")
    assert not faults, f"{len(faults)} faults\n" + "\n".join(faults[:20])
    totals: Counter[str] = Counter()
    for (_, said), count in verdicts.items():
        totals[said] += count
    assert totals["the same"] > len(questions) // 2
    assert totals["both stop"] > len(questions) // 20
    assert totals["refused, wrong in C++"] > len(questions) // 100


#: Statements of README, pages and docstrings about C++, and cases in which pycute differs from it.
KNOWN = {
    "composition(Layout<Shape<_2, _8>, Stride<_4, Int<-1>>>{}, "
    "Layout<Shape<_5, _5, _2>, Stride<Int<-2>, _10, Int<50>>>{})": "(5,5,2):(1,-5,-25)",
    "composition(Layout<Shape<_4, _8>, Stride<_8, _1>>{}, make_tile(_2{}))": "(2):(8)",
    "composition(Layout<Shape<_6, _4>, Stride<_1, _12>>{}, Layout<_2, _4>{})": "2:4",
    "composition(Layout<Shape<_6, _4>, Stride<_1, _12>>{}, Layout<_4, _4>{})": "(2,2):(4,12)",  # none: we refuse
    "complement(Layout<Shape<_4, _6, _2>, Stride<_12, _0, _4>>{}, Int<48>{})": "4:1",  # falls short: we refuse
    "complement(Layout<Shape<_4, _6>, Stride<_1, _6>>{})": "1:0",
    "left_inverse(Layout<Shape<_4, _3>, Stride<_2, _16>>{})": "(2,8,3):(0,1,4)",
    "logical_product(Layout<Shape<_4, _2>, Stride<_12, _4>>{}, _6{})": "((4,2),6):((12,4),1)",  # meets: we refuse
    "cosize(Layout<Shape<_4, _8>, Stride<Int<-1>, _4>>{})": "32",
    "cosize(composition(Swizzle<3, 3, 3>{}, Layout<Shape<_8, _40>, Stride<_40, _1>>{}))": "320",
    "cosize(composition(Swizzle<3, 3, 3>{}, Layout<Shape<_8, Int<36>>, Stride<Int<36>, _1>>{}))": "288",  # ours is 320
    "composition(Layout<Shape<_8, _8>, Stride<_8, _1>>{}, Swizzle<3, 0, 3>{})": "Sw<3,0,-3> o 0 o (8,8):(8,1)",
    "composition(Swizzle<0, 0, 3>{}, Layout<_8, _1>{})": "8:1",  # ours keeps the swizzle in the text
    "right_inverse(ComposedLayout<Swizzle<1, 2, 3>, _1, Layout<_8, _1>>{})": "8:1 o -1 o Sw<1,2,3>",  # we refuse
}


def test_what_the_documents_say_of_cute(tmp_path: Path) -> None:
    assert dict(zip(KNOWN, map(str, ask(list(KNOWN), tmp_path)), strict=True)) == KNOWN


def test_where_cute_has_no_layout(tmp_path: Path) -> None:
    """Negative extents, and numbers beyond an int, which it no longer has as static ones."""
    expressions = (
        "left_inverse(Layout<_4, Int<-1>>{})",
        "complement(Layout<_4, Int<-1>>{}, _8{})",
        "coalesce(Layout<Shape<Int<65536>, Int<65536>>>{})",
    )
    assert {type(answer) for answer in ask(expressions, tmp_path)} == {Garbage}


def test_where_cute_stops(tmp_path: Path) -> None:
    stops = {
        "composition(Layout<Shape<_4, _3>, Stride<_1, _10>>{}, Layout<_2, _6>{})": "Stride Divisibility",
        "composition(Layout<Shape<_4, _3>, Stride<_1, _10>>{}, Layout<_6, _1>{})": "Shape Divisibility",
        "left_inverse(Layout<Shape<_3, _2>, Stride<_2, _3>>{})": "Left inverse divisibility",
        "complement(Layout<Shape<_3, _2>, Stride<_2, _3>>{})": "Non-injective Layout",
        "composition(Swizzle<1, 0, 3>{}, Swizzle<1, 0, 2>{})": "Can only merge swizzles of the same shift",
    }
    for said, answer in zip(stops.values(), ask(list(stops), tmp_path), strict=True):
        assert isinstance(answer, Stop)
        assert said in answer.message
