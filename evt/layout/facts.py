"""What holds of a layout as a whole: whether it is injective and contiguous, and where the naive cosize fails."""

from __future__ import annotations

from evt.layout.layout import Layout
from evt.layout.sums import repeats
from evt.layout.swizzle import ComposedLayout


def is_injective(layout: Layout | ComposedLayout) -> bool:
    """Whether no index has two coordinates. A swizzle changes nothing about it."""
    return not repeats(_inner(layout).leaves)


def is_contiguous(layout: Layout | ComposedLayout) -> bool:
    """Whether the coordinates have every index from the lowest to the highest, each once."""
    return layout.cosize == layout.size and is_injective(layout)


def naive_cosize_fault(layout: Layout | ComposedLayout) -> str:
    """Why ``L(size - 1) + 1`` is not the cosize of this layout, as a sentence; nothing where it is.

    It takes the last coordinate's index for the highest, and 0 for the lowest: so it is for strides that are all 0
    or more, and for a swizzle that carries the last index nowhere and none out of the layout's interval.
    """
    naive, cosize = layout.naive_cosize, layout.cosize
    if naive == cosize:
        return ""
    low, high = layout.bounds
    reasons = [
        f"the stride {stride} of the extent {extent} is negative, so its last coordinate has the lowest index"
        for extent, stride in _inner(layout).leaves
        if stride < 0 and extent > 1
    ]
    if isinstance(layout, ComposedLayout):
        reasons += _swizzle_faults(layout)
    return f"the indices go from {low} to {high}, {cosize} of them, and not {naive}: {'; '.join(reasons)}"


def _swizzle_faults(layout: ComposedLayout) -> list[str]:
    swizzle, period = layout.swizzle, layout.swizzle.period
    inner = tuple(layout.offset + bound for bound in layout.layout.bounds)
    last = layout.offset + layout.layout(layout.size - 1)
    reasons = []
    if layout.offset:
        reasons.append(f"the offset is {layout.offset}")
    if swizzle(last) != last:
        reasons.append(f"the swizzle moves the last index, {last}, to {swizzle(last)}")
    if layout.bounds != inner:
        reasons.append(
            f"it permutes blocks of {period}, and the layout's indices, {inner[0]} to {inner[1]}, end inside a block"
            f" whose part they fill is not kept: they become {layout.bounds[0]} to {layout.bounds[1]}"
        )
    return reasons


def _inner(layout: Layout | ComposedLayout) -> Layout:
    return layout.layout if isinstance(layout, ComposedLayout) else layout
