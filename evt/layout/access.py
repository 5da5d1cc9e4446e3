"""Properties of a tensor's strides for kernels and callers: vector width, overlap, bank conflicts.

A tensor is a :class:`~evt.layout.Layout`, or its modes as (extent, stride) pairs, which are faster to make at every
call: ``tuple(zip(tensor.shape, tensor.stride()))``. Pairs may have extents of 0. Strides are in elements.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from evt.layout.flat import coalesced
from evt.layout.layout import Layout, as_layout
from evt.layout.refused import refused
from evt.layout.sums import reaches, repeats
from evt.layout.swizzle import ComposedLayout, as_function
from evt.layout.tree import MAX_COORDINATE, MAX_LEAF, MAX_LEAVES, integer

Modes: TypeAlias = "Layout | Sequence[tuple[int, int]]"

#: The widest access of a thread, in bytes.
WIDEST = 16
WARP = 32
#: Shared memory: the number of banks, and their width in bytes.
BANKS, BANK_BYTES = 32, 4


def vector_width(layout: int | Layout | ComposedLayout, mode: int, element_bytes: int, address: int = 0) -> int:
    """Return the widest vector for accesses along a mode, in elements: a power of two, at most 16 bytes.

    The mode must be contiguous and a whole number of vectors long. Every vector must start at an aligned address: the
    tensor's address (in bytes) and the other strides must be multiples of the vector. A swizzle keeps blocks below its
    lowest bit together. Raise LayoutError E0674 for a mode that the layout does not have.
    """
    layout = as_function(layout)
    if isinstance(layout, ComposedLayout):
        first = layout.offset * integer(element_bytes, "element_bytes", 1)
        if not layout.swizzle.bits:
            return vector_width(layout.layout, mode, element_bytes, integer(address, "an address") + first)
        starts = (address, first)  # the swizzle keeps blocks of indices together, and memory keeps blocks of bytes
        widths = (vector_width(layout.layout, mode, element_bytes, start) for start in starts)
        return min(1 << layout.swizzle.base, *widths)
    modes = layout.modes
    mode = integer(mode, "a mode")
    if not 0 <= mode < len(modes):
        raise refused("E0674", f"the layout has no mode {mode}", f"its modes are 0 to {len(modes) - 1}", layout=layout)
    (run, step), *others = coalesced(modes[mode].leaves)
    if step != 1 or run == 1:
        return 1
    for place, each in enumerate(modes):
        if place != mode:
            others += each.leaves
    return widest_vector(element_bytes, address, run, [stride for extent, stride in others if extent > 1])


def widest_vector(element_bytes: int, address: int, extent: int, strides: Iterable[int]) -> int:
    """Return the largest power of two, in elements and at most 16 bytes, that divides the address and all the others.

    ``extent`` is the extent of the contiguous mode; ``strides`` are the strides of the other modes.
    """
    element_bytes = integer(element_bytes, "element_bytes", 1)
    address = integer(address, "an address")
    common = (address // element_bytes if address % element_bytes == 0 else 1) | integer(extent, "an extent")
    if not isinstance(strides, Iterable):
        raise refused("E0672", f"strides are several integers, not a {type(strides).__name__}", "pass a list of ints")
    for stride in strides:
        common |= integer(stride, "a stride")
    widest = max(1, WIDEST // element_bytes)
    return min(widest, common & -common) if common else widest


def contiguous_mode(layout: int | Layout) -> int | None:
    """Return the mode whose neighbours are adjacent in memory; of several, the first with the longest run."""
    heads = [coalesced(mode.leaves)[0] for mode in as_layout(layout).modes]
    runs = [extent if stride == 1 else 1 for extent, stride in heads]
    longest = max(runs)
    return runs.index(longest) if longest > 1 else None


def single_stride(modes: Sequence[tuple[int, int]]) -> int | None:
    """Return the one stride that walks all modes, the last running fastest, as PyTorch reads shapes.

    Return None if there is none, and 0 for a single element.
    """
    stride: int | None = None
    reach = 0
    for extent, step in reversed(_read(modes)):
        if extent == 1:
            continue
        if stride is None:
            stride = step
        elif step != reach:
            return None
        reach = step * extent
    return stride or 0


def span(modes: Modes) -> tuple[int, int]:
    """Return the lowest element, and the one after the highest; ``(0, 0)`` for a tensor without elements."""
    return _span(_pairs(modes))


def overlaps(modes: Modes) -> bool:
    """Return whether two coordinates of a tensor share an element, as in an expanded tensor.

    Raise LayoutError E0675 if the search gives up without an answer.
    """
    pairs = _pairs(modes)
    return all(extent for extent, _ in pairs) and repeats(pairs)


def interleaves(a: Modes, b: Modes, distance: int, a_bytes: int = 1, b_bytes: int = 1) -> bool:
    """Return whether two tensors share a byte; ``distance`` is b's address minus a's, in bytes.

    The answer is exact: tensors may interleave without sharing a byte, as two halves of a matrix's columns do. With the
    default element sizes, the distance is in elements. Raise LayoutError E0675 if the search gives up without an
    answer.
    """
    distance = integer(distance, "a distance")
    a_bytes, b_bytes = integer(a_bytes, "a_bytes", 1), integer(b_bytes, "b_bytes", 1)
    pairs, others = _pairs(a), _pairs(b)
    low, end = _span(pairs)
    other_low, other_end = _span(others)
    if low == end or other_low == other_end:
        return False
    if end * a_bytes <= distance + other_low * b_bytes or distance + other_end * b_bytes <= low * a_bytes:
        return False
    terms = [(stride * a_bytes, extent - 1) for extent, stride in pairs]
    terms += [(-stride * b_bytes, extent - 1) for extent, stride in others]
    return reaches([*terms, (1, a_bytes - 1), (-1, b_bytes - 1)], distance)


@dataclass(frozen=True, slots=True)
class Wavefronts:
    """The number of passes over the banks of shared memory for one access of a warp, and the smallest possible
    number.
    """

    count: int
    least: int

    @property
    def conflicts(self) -> int:
        return self.count - self.least


def bank_conflicts(
    layout: int | Layout | ComposedLayout, element_bytes: int, threads: int | Layout | None = None, vector: int = 1
) -> Wavefronts:
    """Return the cost of a warp's access to shared memory: lane t touches ``vector`` elements at
    ``layout(threads(t))``.

    Without ``threads`` the lanes take the layout's coordinates in order, a vector each. The model is NVIDIA's: 32 banks
    of 4 bytes. A pass serves 128 bytes: all lanes at 4 bytes per lane or fewer, 16 lanes at 8 bytes and 8 at 16. Lanes
    that read one word share it; different words of one bank take one pass each. Raise LayoutError E0674 for accesses of
    other widths, accesses not aligned to their width, and more than 32 lanes.
    """
    layout = as_function(layout)
    vector, element_bytes = integer(vector, "vector", 1), integer(element_bytes, "element_bytes", 1)
    width = vector * element_bytes
    if width not in (1, 2, 4, 8, 16):
        message = f"an access of {vector} elements of {element_bytes} bytes is {width} bytes wide"
        raise refused("E0674", message, "a thread's access has 1, 2, 4, 8 or 16 bytes", layout=layout)
    if threads is None:
        threads = Layout(max(1, min(WARP, layout.size // vector)), vector)
    threads = as_layout(threads)
    if threads.size > WARP:
        message = f"{threads.size} lanes access shared memory at once"
        raise refused("E0674", message, f"a warp has {WARP} lanes", layout=layout, threads=threads)
    starts = [layout(threads(lane)) * element_bytes for lane in range(threads.size)]
    for lane, start in enumerate(starts):
        if start % width:
            message = f"lane {lane} accesses {width} bytes at byte {start}, which is not a multiple of {width}"
            raise refused("E0674", message, "use a narrower vector", layout=layout, threads=threads)
    lanes = WARP // max(1, width // BANK_BYTES)
    phases = [starts[first : first + lanes] for first in range(0, len(starts), lanes)]
    return Wavefronts(sum(_passes(phase, width) for phase in phases), len(phases))


def bank(index: int, element_bytes: int) -> int:
    """Return the bank of shared memory that holds an element; element 0 lies in bank 0."""
    index = integer(index, "an index", largest=MAX_COORDINATE)
    return index * integer(element_bytes, "element_bytes", 1) // BANK_BYTES % BANKS


def _passes(starts: Sequence[int], width: int) -> int:
    """Return the largest number of different words that a single bank must serve."""
    words = {word for start in starts for word in range(start // BANK_BYTES, -(-(start + width) // BANK_BYTES))}
    return max(Counter(word % BANKS for word in words).values())


def _span(pairs: Sequence[tuple[int, int]]) -> tuple[int, int]:
    low = high = 0
    for extent, stride in pairs:
        if stride < 0:
            low += (extent - 1) * stride
        else:
            high += (extent - 1) * stride
        if not extent:
            return 0, 0
    return low, high + 1


def _pairs(modes: Modes) -> Sequence[tuple[int, int]]:
    return modes.leaves if isinstance(modes, Layout) else _read(modes)


def _read(modes: object) -> Sequence[tuple[int, int]]:
    """Return the pairs as integers with extents of 0 or more. Raise LayoutError E0672 for other values."""
    if isinstance(modes, (tuple, list)) and len(modes) <= MAX_LEAVES and all(map(_is_plain, modes)):
        return modes  # the usual case
    if not isinstance(modes, Sequence) or len(modes) > MAX_LEAVES or not all(map(_is_pair, modes)):
        message = f"the modes of a tensor are up to {MAX_LEAVES} pairs (extent, stride)"
        raise refused("E0672", message, "pass tuple(zip(tensor.shape, tensor.stride()))")
    return [(integer(extent, "an extent", 0), integer(stride, "a stride")) for extent, stride in modes]


def _is_plain(pair: object) -> bool:
    if type(pair) is not tuple or len(pair) != 2:
        return False
    extent, stride = pair
    return type(extent) is type(stride) is int and 0 <= extent <= MAX_LEAF and -MAX_LEAF <= stride <= MAX_LEAF


def _is_pair(value: object) -> bool:
    return isinstance(value, (tuple, list)) and len(value) == 2
