"""Properties of a whole layout: injective, contiguous, and the failures of the naive cosize."""

from __future__ import annotations

from evt.layout.layout import Layout
from evt.layout.sums import repeats
from evt.layout.swizzle import ComposedLayout, as_function, inner


def is_injective(layout: int | Layout | ComposedLayout) -> bool:
    """Return whether different coordinates have different indices. A swizzle does not affect this.

    Raise LayoutError E0675 if the search gives up without an answer.
    """
    return not repeats(inner(as_function(layout)).leaves)


def is_contiguous(layout: int | Layout | ComposedLayout) -> bool:
    """Return whether the coordinates reach every index from the lowest to the highest exactly once.

    Raise LayoutError E0675 if the search gives up without an answer.
    """
    layout = as_function(layout)
    return layout.cosize == layout.size and is_injective(layout)


def naive_cosize_fault(layout: int | Layout | ComposedLayout) -> str:
    """Return a sentence that explains why ``L(size - 1) + 1`` is not the cosize of this layout, or "" if it is.

    The formula assumes that the last coordinate has the highest index, and that the lowest index is 0. That holds if no
    stride is negative, and a swizzle keeps the last index in place and no index leaves the layout's interval.
    """
    layout = as_function(layout)
    naive, cosize = layout.naive_cosize, layout.cosize
    if naive == cosize:
        return ""
    low, high = layout.bounds
    reasons = [
        f"the stride {stride} of the extent {extent} is negative, so its last coordinate has the lowest index"
        for extent, stride in inner(layout).leaves
        if stride < 0 and extent > 1
    ]
    if isinstance(layout, ComposedLayout):
        reasons += _swizzle_faults(layout)
    return f"the indices go from {low} to {high}, {cosize} of them, and not {naive}: {'; '.join(reasons)}"


def _swizzle_faults(layout: ComposedLayout) -> list[str]:
    swizzle, period = layout.swizzle, layout.swizzle.period
    interval = tuple(layout.offset + bound for bound in layout.layout.bounds)
    last = layout.offset + layout.layout(layout.size - 1)
    reasons = []
    if layout.offset:
        reasons.append(f"the offset is {layout.offset}")
    if swizzle(last) != last:
        reasons.append(f"the swizzle moves the last index, {last}, to {swizzle(last)}")
    if layout.bounds != interval:
        reasons.append(
            f"it permutes blocks of {period}, and the layout's indices, {interval[0]} to {interval[1]}, end inside a"
            f" block whose part they fill is not kept: they become {layout.bounds[0]} to {layout.bounds[1]}"
        )
    return reasons
