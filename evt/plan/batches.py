"""The launches of a batched call, if one launch takes a limited number of batches: ``launches(most, batches)``."""

from __future__ import annotations

from evt.ir import Extent, Index, Random, Reduce, TypedDag

#: The most launches of one call; beyond this number, a copy of the tensors costs less.
MAX_LAUNCHES = 256


def launches(most: int | None, batches: int) -> list[tuple[int, int]]:
    """Return the first batch and the number of batches of each launch, at most ``most``."""
    if most is None or batches <= most:
        return [(0, batches)]
    each = -(-batches // -(-batches // most))
    return [(first, min(each, batches - first)) for first in range(0, batches, each)]


def refusal(dag: TypedDag, most: int | None, batches: int) -> str:
    """Return why a kernel that takes at most ``most`` batches a launch refuses a number of batches, or ""."""
    if most is None or batches <= most:
        return ""
    if counts(dag, "l"):
        return f"there are {batches}, and the program counts all batches, so that no launch computes a part of them"
    count = -(-batches // most)
    return f"there are {batches}, which take {count} launches of at most {MAX_LAUNCHES}" if count > MAX_LAUNCHES else ""


def counts(dag: TypedDag, mode: str) -> bool:
    """Return whether a program reads coordinates along a mode or its extent, or reduces over the mode."""
    return any(
        isinstance(op, Random) or op in (Index(mode), Extent(mode)) or (isinstance(op, Reduce) and mode in op.over)
        for op, _ in dag.table
    )


__all__ = ["MAX_LAUNCHES", "counts", "launches", "refusal"]
