"""Flat layouts as lists of (extent, stride) pairs, from left to right: the form of the algebra's computations."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeAlias

from evt.layout.tree import IntTuple

Pairs: TypeAlias = "list[tuple[int, int]]"


def coalesced(leaves: Iterable[tuple[int, int]]) -> Pairs:
    """Return the pairs without extents of 1, with neighbours joined if one stride steps through both."""
    result: Pairs = []
    for extent, stride in leaves:
        if extent == 1:
            continue
        if result and result[-1][0] * result[-1][1] == stride:
            result[-1] = (result[-1][0] * extent, result[-1][1])
        else:
            result.append((extent, stride))
    return result or [(1, 0)]


def unbounded(leaves: Sequence[tuple[int, int]]) -> Pairs:
    """Return the coalesced pairs of the function extended beyond the extents: the last mode keeps its stride."""
    *others, (extent, stride) = leaves
    return coalesced([*others, (max(extent, 2), stride)])


def filtered_pairs(leaves: Iterable[tuple[int, int]]) -> Pairs:
    """Return the coalesced pairs, without modes of stride 0."""
    return coalesced([(extent if stride else 1, stride) for extent, stride in leaves])


def flat_trees(pairs: Pairs) -> tuple[IntTuple, IntTuple]:
    """Return the shape and the stride of the pairs; a single pair gives two integers instead of tuples."""
    if len(pairs) == 1:
        return pairs[0]
    return tuple(extent for extent, _ in pairs), tuple(stride for _, stride in pairs)


def order_by_stride(pairs: Pairs) -> list[int]:
    """Return the positions of the pairs by ascending stride; equal strides in the order of CuTe's sort."""
    order = list(range(len(pairs)))
    for place in range(len(order)):
        for other in range(place + 1, len(order)):
            if pairs[order[other]][1] < pairs[order[place]][1]:
                order[place], order[other] = order[other], order[place]
    return order
