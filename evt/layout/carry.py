"""A swizzle in a composition: merged with another swizzle, or moved through a layout to its left.

As in CuTe, the result is the swizzle of the images of the bits. It is right if the layout maps bits to bits.
"""

from __future__ import annotations

from evt.layout.flat import unbounded
from evt.layout.layout import Layout
from evt.layout.refused import refused
from evt.layout.swizzle import Swizzle


def merged(a: Swizzle, b: Swizzle) -> Swizzle:
    """Return the swizzle ``i -> a(b(i))``. Raise LayoutError E0674 if that is not a swizzle."""
    if a.shift != b.shift:
        message = f"{a} o {b} is not a swizzle: the shifts differ"
        raise refused("E0674", message, f"use the shift {a.shift} for both")
    return _of_masks(a.source ^ b.source, a.target ^ b.target, a, b)


def carried(layout: Layout, swizzle: Swizzle) -> Swizzle:
    """Return the swizzle of the images of the bits that ``swizzle`` reads and changes, as CuTe does.

    ``layout(swizzle(i))`` equals that swizzle of ``layout(i)`` if :func:`moves_bits` holds, and otherwise only by
    chance. Raise LayoutError E0674 if the images are not the masks of a swizzle.
    """
    return _of_masks(layout(swizzle.source), layout(swizzle.target), layout, swizzle)


def moves_bits(layout: Layout, swizzle: Swizzle, places: int) -> bool:
    """Return whether the layout maps every bit of the places to a separate bit, and the swizzled bits by one distance.

    Any layout will do for a swizzle of no bits.
    """
    if not swizzle.bits:
        return True
    width = max((places - 1).bit_length(), (swizzle.source | swizzle.target).bit_length())
    images = [layout(1 << bit) for bit in range(width)]
    if any(extent & (extent - 1) for extent, _ in unbounded(layout.leaves)[:-1]) or not all(map(_is_bit, images)):
        return False
    moved = [image.bit_length() for image in images]
    low = swizzle.base + max(-swizzle.shift, 0)
    distances = {moved[bit + swizzle.shift] - moved[bit] for bit in range(low, low + swizzle.bits)}
    return len(set(moved)) == width and len(distances) < 2


def _of_masks(source: int, target: int, left: object, right: object) -> Swizzle:
    """Return the swizzle that xors one run of bits into another.

    Raise LayoutError E0674 if the masks are not runs.
    """
    if not source and not target:
        return Swizzle(0, 0, 0)
    if min(source, target) > 0:
        first, other = _lowest(source), _lowest(target)
        bits = source.bit_count()
        run = (1 << bits) - 1
        if (source, target) == (run << first, run << other) and abs(first - other) >= bits:
            return Swizzle(bits, min(first, other), first - other)
    message = f"{left} o {right} is not a swizzle: it would xor the bits {source:#b} into the bits {target:#b}"
    raise refused("E0674", message, "a swizzle xors a run of bits into a disjoint run of equal length")


def _lowest(mask: int) -> int:
    return (mask & -mask).bit_length() - 1


def _is_bit(index: int) -> bool:
    return index > 0 and not index & (index - 1)
