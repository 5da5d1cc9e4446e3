"""The part of a launch that the sizes of a call decide: records that the modules of kernels fill."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from evt.ir.dtype import BF16, E4M3, E5M2, F16, F32, I8, I32, TF32, U8, DType
from evt.plan import Field
from evt.plan.signature import bytes_of

#: The largest offset that an ``int`` of C++ holds.
INT32_MAX = 2**31 - 1
#: CUtensorMapDataType: the names and the numbers of element types. Tensor cores multiply f32 as TF32.
MAP_TYPES = {
    F16: ("FLOAT16", 6),
    BF16: ("BFLOAT16", 9),
    F32: ("TFLOAT32", 11),
    TF32: ("TFLOAT32", 11),
    E4M3: ("UINT8", 0),
    E5M2: ("UINT8", 0),
    I8: ("UINT8", 0),
    U8: ("UINT8", 0),
    I32: ("INT32", 3),
}
#: The number of FLOAT32, whose elements are not rounded.
MAP_FLOAT32 = 7
#: CUtensorMapSwizzle by the bytes of a row.
_SWIZZLES = {128: 3, 64: 2, 32: 1}


@dataclass(frozen=True, slots=True)
class TensorMap:
    """A descriptor of TMA apart from its address: the innermost dimension is first and contiguous.

    ``strides`` are of the other dimensions, in bytes. ``steps`` are the traversal strides. The tensor begins ``before``
    bytes before the pointer; a negative number is the place of a copy in the workspace.
    """

    member: str
    pointer: Field
    type: int
    extents: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]
    steps: tuple[int, ...]
    swizzle: int
    before: int = 0


@dataclass(frozen=True, slots=True)
class PixelMap:
    """A descriptor of TMA's im2col mode apart from its address: TmaPixels of kit/im2col.hpp.

    ``extents`` are channels, columns, rows and images. ``strides`` are of the last three, in bytes. ``first`` and
    ``last`` are the edges of the pixels that the first tap reads, ``steps`` are their distances. Pairs are columns and
    rows. A box has ``channels`` of ``pixels``.
    """

    member: str
    pointer: Field
    type: int
    extents: tuple[int, int, int, int]
    strides: tuple[int, int, int]
    first: tuple[int, int]
    last: tuple[int, int]
    steps: tuple[int, int]
    channels: int
    pixels: int

    @property
    def before(self) -> int:
        """The bytes before the pointer: the tensor begins there."""
        return 0


#: A descriptor of either mode.
Map: TypeAlias = TensorMap | PixelMap


@dataclass(frozen=True, slots=True)
class Shape:
    """The values of a kernel's members, its descriptors, and the launch.

    ``tiles`` are the numbers of tiles of rows and strips of columns: reductions have a part for each. ``values`` of
    arrays are sequences. ``first`` has the launch of a kernel that multiplies before, with the same parameters. A
    kernel without a ``grid`` is not launched.
    """

    values: Mapping[str, int | Sequence[int]]
    maps: tuple[Map, ...]
    tiles: tuple[int, int]
    grid: int
    threads: int
    shared_bytes: int
    cluster: int = 1
    first: Shape | None = None


#: Parts of the workspace begin at multiples of this number of bytes: evt::aligned of entry.hpp.
_ALIGNMENT = 256


def aligned(size: int) -> int:
    """Return the bytes of a part of the workspace, up to the next part."""
    return -(-size // _ALIGNMENT) * _ALIGNMENT


def tensor_map(
    member: str,
    pointer: Field,
    dtype: DType,
    extents: Sequence[int],
    strides: Sequence[int],
    box: Sequence[int],
    row_bytes: int,
    *,
    steps: tuple[int, ...] = (),
    rounds: bool = True,
    before: int = 0,
) -> TensorMap:
    """Return a descriptor of elements of a type; ``strides`` count elements.

    The box has every ``steps``-th element of the second dimension, and so on. A row has ``row_bytes`` in shared memory.
    ``rounds``: f32 is rounded to TF32. The tensor begins ``before`` elements before the pointer.
    """
    every = (1, *steps, *(1 for _ in extents[len(steps) + 1 :]))
    in_bytes = tuple(stride * bytes_of(dtype) for stride in strides)
    kind = MAP_TYPES[dtype][1] if rounds or dtype != F32 else MAP_FLOAT32
    swizzle = _SWIZZLES.get(row_bytes, 0)
    return TensorMap(
        member, pointer, kind, tuple(extents), in_bytes, tuple(box), every, swizzle, before * bytes_of(dtype)
    )
