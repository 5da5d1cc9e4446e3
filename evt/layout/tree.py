"""Trees of integers, CuTe's IntTuples: an int, or a tuple of trees. Shapes, strides and coordinates are trees.

Two trees are congruent if they have the same form. The order of coordinates is colexicographic: the leftmost
leaf runs fastest.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from math import prod
from typing import Any, TypeAlias

from evt.layout.refused import refused

IntTuple: TypeAlias = "int | tuple[IntTuple, ...]"

#: The greatest depth of a tree; CuTe's own are three or four deep.
MAX_DEPTH = 32
#: The largest number of integers in a tree, and the largest integer: CuTe's have 64 bits.
MAX_LEAVES, MAX_LEAF = 128, 2**63 - 1
#: The largest coordinate: no layout within these limits has more elements.
MAX_COORDINATE = 2 ** (64 * MAX_LEAVES)


def integer(value: object, name: str, least: int | None = None, largest: int = MAX_LEAF) -> int:
    """Return the value as an int; any value with ``__index__`` is accepted, except a bool.

    Raise LayoutError E0672, with the name, for other values, and for integers below ``least`` or beyond ``largest``.
    """
    if type(value) is int and abs(value) <= largest and (least is None or value >= least):
        return value  # the usual case
    try:
        if isinstance(value, bool):
            raise TypeError
        number = operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        message = f"{name} is an integer, not of type {type(value).__name__}"
        raise refused("E0672", message, "pass an int") from None
    if abs(number) > largest:
        bits = largest.bit_length() + 1
        raise refused("E0672", f"{name} is an integer of more than {bits} bits", "no memory has this many elements")
    if least is not None and number < least:
        raise refused("E0672", f"{name} is {number}", f"it is {least} or more")
    return number


def tree(value: object, name: str = "a leaf of a layout", largest: int = MAX_LEAF) -> IntTuple:
    """Return the value as a tree; lists are read as tuples.

    Raise LayoutError E0672 for other values, and for trees that are deeper, larger or of larger integers than layouts
    need.
    """
    result: IntTuple = nested(value, lambda leaf: integer(leaf, name, largest=largest))
    return result


def nested(value: object, leaf: Callable[[object], Any]) -> Any:
    """Return the value with its lists as tuples and its leaves converted.

    Raise LayoutError E0672 for empty tuples, and for deeper ones or more leaves than layouts need.
    """
    count = 0

    def read(value: object, depth: int) -> Any:
        nonlocal count
        if not isinstance(value, (tuple, list)):
            count += 1
            if count > MAX_LEAVES:
                raise refused("E0672", f"a layout of more than {MAX_LEAVES} extents", "merge some")
            return leaf(value)
        if not value:
            raise refused("E0672", "an empty tuple cannot be part of a layout", "write 1:0 for a layout of one element")
        if depth == MAX_DEPTH:
            raise refused("E0672", f"a layout's tuples nest more than {MAX_DEPTH} deep", "flatten it")
        return tuple(read(each, depth + 1) for each in value)

    return read(value, 0)


def modes(tree: IntTuple) -> tuple[IntTuple, ...]:
    """Return the top-level parts; an integer has one part, itself."""
    return tree if isinstance(tree, tuple) else (tree,)


def leaves(tree: IntTuple) -> tuple[int, ...]:
    """Return the integers from left to right."""
    if not isinstance(tree, tuple):
        return (tree,)
    result: list[int] = []
    for part in tree:
        if isinstance(part, tuple):
            result += leaves(part)
        else:
            result.append(part)
    return tuple(result)


def size(shape: IntTuple) -> int:
    return prod(leaves(shape))


def depth(tree: IntTuple) -> int:
    """Return 0 for an integer, else one more than the depth of the deepest part."""
    return 1 + max(map(depth, tree)) if isinstance(tree, tuple) else 0


def congruent(a: IntTuple, b: IntTuple) -> bool:
    if isinstance(a, tuple) and isinstance(b, tuple):
        return len(a) == len(b) and all(map(congruent, a, b))
    return not isinstance(a, tuple) and not isinstance(b, tuple)


def compact(shape: IntTuple, first: int = 1) -> IntTuple:
    """Return the strides of CuTe's LayoutLeft: no gaps, the leftmost leaf nearest, and 0 for an extent of 1."""
    if not isinstance(shape, tuple):
        return first if shape != 1 else 0
    strides = []
    for part in shape:
        strides.append(compact(part, first))
        first *= size(part)
    return tuple(strides)


def coordinate(index: int, shape: IntTuple) -> IntTuple:
    """Return the coordinate, congruent with the shape, at a place in the colexicographic order.

    As in CuTe, the last leaf runs on beyond its extent, and the coordinate of ``-place`` is the negated coordinate of
    ``place``.
    """
    if index < 0:
        return _negated(coordinate(-index, shape))
    if not isinstance(shape, tuple):
        return index
    parts = []
    for part in shape[:-1]:
        index, inside = divmod(index, size(part))
        parts.append(coordinate(inside, part))
    return (*parts, coordinate(index, shape[-1]))


def text(tree: IntTuple) -> str:
    """Return the text, such as ``(4,(2,2))``, which :func:`evt.layout.parse` reads back."""
    return f"({','.join(map(text, tree))})" if isinstance(tree, tuple) else str(tree)


def _negated(tree: IntTuple) -> IntTuple:
    return tuple(map(_negated, tree)) if isinstance(tree, tuple) else -tree
