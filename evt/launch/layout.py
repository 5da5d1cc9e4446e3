"""The layout of a kernel's parameters, which NVRTC has put into the cubin: ``layout_of(cubin, name, structs)``."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from evt.launch.cubin import symbol
from evt.launch.members import Struct


@dataclass(frozen=True, slots=True)
class Layout:
    """The bytes of a struct, and of each of its members the offset and the type, as the module ``struct`` names it.

    The type of a descriptor is "".
    """

    size: int
    members: Mapping[str, tuple[int, str]]


def layout_of(cubin: bytes, name: str, structs: Sequence[Struct]) -> tuple[Layout, ...]:
    """Return the layouts of a kernel's structs. Raise ValueError for a cubin that does not have them."""
    words = iter(struct.iter_unpack("<I", symbol(cubin, f"{name}_layout")))
    found = []
    try:
        for each in structs:
            (size,) = next(words)
            members = {member: _place(*next(words)) for member, _ in each.members}
            found.append(Layout(size, members))
    except StopIteration:
        raise ValueError("the table of members is too short") from None
    if next(words, None) is not None:
        raise ValueError("the table of members is too long")
    return tuple(found)


def _place(word: int) -> tuple[int, str]:
    return word >> 8, chr(word & 0xFF) if word & 0xFF else ""
