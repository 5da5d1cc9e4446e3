"""The layout algebra gives what CuTe's own C++ gives, where that keeps its law, and refuses where it does not.

Random static layouts, asked of every operation that CuTe has. ``EVT_LAYOUT_QUESTIONS=2000`` asks 2000 of each, at
about twenty a second.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from cute import GXX, Answer, Garbage, Stop, ask, cxx, cxx_tree, include_flags
from layout_laws import Nested, Operation, bare, operations, values

from evt.layout import (
    ComposedLayout,
    Layout,
    LayoutError,
    Swizzle,
)

QUESTIONS = int(os.environ.get("EVT_LAYOUT_QUESTIONS", "10"))
TABLE = operations()

pytestmark = [
    pytest.mark.cxx,
    pytest.mark.skipif(not GXX, reason="g++ is not on PATH"),
    pytest.mark.skipif(not include_flags(), reason="there are no CUTLASS or no CUDA headers"),
]


def asked(operation: Operation, arguments: tuple[Any, ...]) -> str:
    """CuTe's expression; the second arguments of these are shapes or coordinates, and no tilers."""
    trees = operation.cute in ("coalesce", "filter", "complement") or "{" in operation.cute
    first, *rest = arguments
    words = [cxx(first), *(cxx_tree(each, "Shape") + "{}" if trees else cxx(each) for each in rest)]
    return operation.cute.format(*words) if "{" in operation.cute else f"{operation.cute}({', '.join(words)})"


def answer(operation: Operation, arguments: tuple[Any, ...]) -> Any:
    """Ours, or None where it is refused with the condition that failed."""
    try:
        return operation.ours(*arguments)
    except LayoutError as error:
        return None if error.diagnostics[0].code == "E0674" else error


def verdict(operation: Operation, arguments: tuple[Any, ...], ours: Any, theirs: Answer) -> str:
    """How the answers compare; a verdict in capitals is a fault of ours."""
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
        two_swizzles = isinstance(theirs, Nested)
        return "refused, two swizzles in C++" if two_swizzles else "REFUSED WHERE C++ IS RIGHT"
    if str(ours) == str(theirs) or ours == theirs:
        return "the same"
    if isinstance(theirs, (Swizzle, int, tuple)) or values(ours) != values(theirs) or ours.shape != theirs.shape:
        return "ANOTHER FUNCTION"
    identity = isinstance(ours, ComposedLayout) and not ours.swizzle.bits and isinstance(theirs, Layout)
    return "the same but for an identity" if identity or isinstance(theirs, Nested) else "ANOTHER TEXT"


def answered_garbage(arguments: tuple[Any, ...]) -> str:
    """C++'s left inverses of negative strides have negative extents."""
    negative = any(stride < 0 for _, stride in bare(arguments[0]).leaves)
    return "the same, with positive extents" if negative else "ANSWERED WHERE C++ HAS NO LAYOUT"


def test_every_operation_is_as_in_cute(tmp_path: Path) -> None:
    rng = random.Random(QUESTIONS)
    questions = [(name, TABLE[name].draw(rng)) for name in TABLE for _ in range(QUESTIONS)]
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
    same = sum(count for (_, said), count in verdicts.items() if said.startswith("the same"))
    assert same > len(questions) // 2
