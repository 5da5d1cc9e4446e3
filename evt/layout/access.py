"""What a kernel and its caller ask about a tensor's strides: vector width, overlap, bank conflicts.

A tensor is a :class:`~evt.layout.Layout`, or its modes as (extent, stride) pairs, which is quicker to make at every
call: ``tuple(zip(tensor.shape, tensor.stride()))``. Pairs may have extents of 0. Strides are in elements.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from evt.layout.algebra import coalesce
from evt.layout.layout import Layout
from evt.layout.refused import refused
from evt.layout.sums import reaches, repeats
from evt.layout.swizzle import ComposedLayout

Modes: TypeAlias = "Layout | Sequence[tuple[int, int]]"

#: The widest access of a thread, in bytes.
WIDEST = 16
WARP = 32
#: Shared memory: this many banks, each of this many bytes.
BANKS, BANK_BYTES = 32, 4


def vector_width(layout: Layout | ComposedLayout, mode: int, element_bytes: int, address: int = 0) -> int:
    """How many elements every access along a mode may cover: a power of two, 16 bytes at most.

    The mode must run contiguously, in whole vectors, which start at aligned addresses: that of the tensor (in bytes)
    and every other stride are multiples. A swizzle keeps together what is below its lowest bit.
    """
    if isinstance(layout, ComposedLayout):
        kept = 1 << layout.swizzle.base if layout.swizzle.bits else WIDEST
        address += layout.offset * element_bytes
        return min(kept, vector_width(layout.layout, mode, element_bytes, address))
    modes = layout.modes
    (run, step), *others = coalesce(modes[mode]).leaves
    if step != 1 or run == 1:
        return 1
    for place, each in enumerate(modes):
        if place != mode:
            others += each.leaves
    return widest_vector(element_bytes, address, run, [stride for extent, stride in others if extent > 1])


def widest_vector(element_bytes: int, address: int, extent: int, strides: Iterable[int]) -> int:
    """The largest power of two, in elements and at most 16 bytes, that divides the address and all of the others.

    ``extent`` is that of the contiguous mode, ``strides`` are those of the other modes.
    """
    common = (address // element_bytes if address % element_bytes == 0 else 1) | extent
    for stride in strides:
        common |= stride
    widest = max(1, WIDEST // element_bytes)
    return min(widest, common & -common) if common else widest


def contiguous_mode(layout: Layout) -> int | None:
    """The mode whose neighbours are neighbours in memory: of several the one with the longest run, then the first."""
    heads = [coalesce(mode).leaves[0] for mode in layout.modes]
    runs = [extent if stride == 1 else 1 for extent, stride in heads]
    longest = max(runs)
    return runs.index(longest) if longest > 1 else None


def single_stride(modes: Sequence[tuple[int, int]]) -> int | None:
    """The stride that walks all modes as one, the last running fastest, as PyTorch's shapes are read.

    None when there is none; 0 when there is but one element.
    """
    stride: int | None = None
    reach = 0
    for extent, step in reversed(modes):
        if extent == 1:
            continue
        if stride is None:
            stride = step
        elif step != reach:
            return None
        reach = step * extent
    return stride or 0


def span(modes: Modes) -> tuple[int, int]:
    """The lowest element, and the one after the highest; ``(0, 0)`` for a tensor without elements."""
    low = high = 0
    for extent, stride in _pairs(modes):
        if stride < 0:
            low += (extent - 1) * stride
        else:
            high += (extent - 1) * stride
        if not extent:
            return 0, 0
    return low, high + 1


def overlaps(modes: Modes) -> bool:
    """Whether two coordinates of a tensor are one element, as in an expanded tensor.

    Raises LayoutError E0675 when there is no answer after very many tries.
    """
    pairs = _pairs(modes)
    return all(extent for extent, _ in pairs) and repeats(pairs)


def interleaves(a: Modes, b: Modes, distance: int, a_bytes: int = 1, b_bytes: int = 1) -> bool:
    """Whether two tensors share a byte; ``distance`` is b's address less a's, in bytes.

    Exact: of two interleaved tensors, as two halves of the columns of one matrix, each may use the other's gaps.
    With the default sizes of their elements, the distance is in elements. Raises LayoutError E0675 when there is no
    answer after very many tries.
    """
    low, end = span(a)
    other_low, other_end = span(b)
    if low == end or other_low == other_end:
        return False
    if end * a_bytes <= distance + other_low * b_bytes or distance + other_end * b_bytes <= low * a_bytes:
        return False
    terms = [(stride * a_bytes, extent - 1) for extent, stride in _pairs(a)]
    terms += [(-stride * b_bytes, extent - 1) for extent, stride in _pairs(b)]
    return reaches([*terms, (1, a_bytes - 1), (-1, b_bytes - 1)], distance)


@dataclass(frozen=True, slots=True)
class Wavefronts:
    """The passes over the banks of shared memory that one access of a warp takes, and the least possible."""

    count: int
    least: int

    @property
    def conflicts(self) -> int:
        return self.count - self.least


def bank_conflicts(
    layout: Layout | ComposedLayout, element_bytes: int, threads: Layout | None = None, vector: int = 1
) -> Wavefronts:
    """What a warp's access to shared memory costs: lane t touches ``vector`` elements from ``layout(threads(t))`` on.

    Without ``threads`` the lanes take the layout's coordinates in order, a vector each. The model is NVIDIA's: 32
    banks of 4 bytes; a pass serves 128 bytes, so all lanes at 4 bytes a lane or fewer, 16 at 8 and 8 at 16; lanes that
    read one word share it; words of one bank take a pass each. Raises LayoutError E0674 for an access of no such
    width, which is not aligned to its width, or by more than 32 lanes.
    """
    width = vector * element_bytes
    if width not in (1, 2, 4, 8, 16):
        message = f"an access of {vector} elements of {element_bytes} bytes is {width} bytes wide"
        raise refused("E0674", message, "a thread's access has 1, 2, 4, 8 or 16 bytes", layout=layout)
    if threads is None:
        threads = Layout(max(1, min(WARP, layout.size // vector)), vector)
    if threads.size > WARP:
        message = f"{threads.size} lanes access shared memory at once"
        raise refused("E0674", message, f"a warp has {WARP} lanes", layout=layout, threads=threads)
    starts = [layout(threads(lane)) * element_bytes for lane in range(threads.size)]
    for lane, start in enumerate(starts):
        if start % width:
            message = f"lane {lane} accesses {width} bytes at byte {start}, which is no multiple of {width}"
            raise refused("E0674", message, "use a narrower vector", layout=layout, threads=threads)
    lanes = WARP // max(1, width // BANK_BYTES)
    phases = [starts[first : first + lanes] for first in range(0, len(starts), lanes)]
    return Wavefronts(sum(_passes(phase, width) for phase in phases), len(phases))


def bank(index: int, element_bytes: int) -> int:
    """The bank of shared memory that holds an element, when element 0 lies in bank 0."""
    return index * element_bytes // BANK_BYTES % BANKS


def _passes(starts: Sequence[int], width: int) -> int:
    """The most different words that one bank is asked for."""
    words = {word for start in starts for word in range(start // BANK_BYTES, -(-(start + width) // BANK_BYTES))}
    return max(Counter(word % BANKS for word in words).values())


def _pairs(modes: Modes) -> Sequence[tuple[int, int]]:
    return modes.leaves if isinstance(modes, Layout) else modes
