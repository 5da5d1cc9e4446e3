"""A tensor as a kernel sees it: its strides by mode, and its layout class."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

import torch

from evt.errors import LayoutError
from evt.ir.dtype import DType
from evt.layout import overlaps, single_stride
from evt.plan import LayoutClass, alignment_of

#: The largest leading stride: CUTLASS stores it in int32.
LIMIT = 2**31 - 1

#: The (extent, stride) pairs of a tensor's dimensions, in elements.
Modes = tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class TensorArgument:
    """A tensor as the kernel sees it: strides in elements, by mode.

    ``extents`` are the extents of indexed modes.
    """

    name: str
    strides: Mapping[str, int]
    layout: LayoutClass
    extents: Mapping[str, int] = field(default_factory=dict)

    def size(self, role: str) -> int:
        """Return the member of the arguments with a role: ``m`` is the stride along m, ``extent m`` the extent."""
        word, _, mode = role.rpartition(" ")
        return self.extents[mode] if word else self.strides.get(mode, 0)


def modes_of(tensor: torch.Tensor) -> Modes:
    """Return the extents and strides of a tensor."""
    return tuple(zip(tensor.shape, tensor.stride(), strict=True))


def repeated(tensor: torch.Tensor) -> str:
    """Return why a tensor cannot be written in any order: two of its elements may be one. Return "" if none are.

    This is exact, except for strides for which the search gives up; PyTorch's own views never have such strides.
    """
    shown = f"shape {list(tensor.shape)} and strides {tuple(tensor.stride())}"
    try:
        return f"with {shown} some of its elements share memory" if overlaps(modes_of(tensor)) else ""
    except LayoutError:
        return f"whether elements share memory was not decided for {shown}"


def strides_of(tensor: torch.Tensor, groups: Sequence[tuple[str, tuple[int, ...]]]) -> dict[str, int] | str | None:
    """Return the stride of each mode of a tensor whose shape is the concatenation of the groups' dimensions.

    Return None for any other shape, and a mode's name when its dimensions cannot be walked with one stride.
    """
    if tuple(tensor.shape) != tuple(size for _, dims in groups for size in dims):
        return None
    strides: dict[str, int] = {}
    position = 0
    for mode, dims in groups:
        pairs = tuple(zip(dims, tensor.stride()[position : position + len(dims)], strict=True))
        position += len(dims)
        stride = single_stride(pairs)
        if stride is None:
            if tensor.numel():
                return mode
            stride = next(step for size, step in reversed(pairs) if size != 1)  # for a tensor without elements
        strides[mode] = stride
    return strides


def classify(
    sizes: Mapping[str, int],
    name: str,
    dtype: DType,
    tensor: torch.Tensor | None,
    modes: Iterable[str],
    strides: dict[str, int],
    extents: Mapping[str, int] = MappingProxyType({}),
    invariant: bool = False,
) -> TensorArgument:
    """Return a tensor's layout class for these strides, with legal strides also for extents of one.

    ``invariant``: a single row has the class that several rows have with its stride, or packed if it has none.
    """
    inner = [mode for mode in modes if mode != "l"]
    wide = [mode for mode in inner if sizes[mode] > 1]
    if invariant and "m" in inner and sizes["m"] == 1:
        place = inner.index("m") - len(inner)
        own = tensor.stride()[place] if tensor is not None and tensor.dim() >= -place else 0
        strides = {**strides, "m": max(own, *(sizes[mode] for mode in inner))}
        wide = [mode for mode in inner if mode == "m" or sizes[mode] > 1]
    contiguous = next((mode for mode in reversed(wide) if strides[mode] == 1), None)
    if contiguous is None:
        contiguous = next((mode for mode in reversed(inner) if sizes[mode] <= 1), None)
    if any(strides[mode] == 0 for mode in wide):
        contiguous = None  # an expanded tensor
    batched = sizes["l"] > 1
    others = {mode: strides[mode] for mode in wide if mode != contiguous}
    if batched and strides.get("l"):
        others["l"] = strides["l"]
    address = tensor.data_ptr() if tensor is not None else 0
    extent = sizes[contiguous] if contiguous is not None else 1
    alignment = alignment_of(dtype, contiguous, address, others, extent)
    legal = dict(strides)
    for mode in inner:
        if sizes[mode] <= 1 and mode != contiguous:
            legal[mode] = -(-extent // 16) * 16  # never used to step, but TMA needs a multiple of 16 bytes
    if not batched:
        legal["l"] = 0
    shared = batched and not strides.get("l")
    return TensorArgument(name, legal, LayoutClass(contiguous, alignment, "shared" if shared else "strided"), extents)
