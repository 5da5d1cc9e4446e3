"""The layout of a kernel's parameters, which NVRTC has put into the cubin: ``layout_of(cubin, name, structs)``."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from evt.launch.members import Struct

_WORD = 4


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


def symbol(cubin: bytes, name: str) -> bytes:
    """Return the initial value of a variable of a cubin. Raise ValueError if there is none."""
    try:
        sections = list(_sections(cubin))
        for kind, offset, size, link, _ in sections:
            if kind != 2:  # a table of symbols
                continue
            names = sections[link][1]
            for at in range(offset, offset + size, 24):
                text, _, _, section, value, length = struct.unpack_from("<IBBHQQ", cubin, at)
                begin = names + text
                if cubin[begin : begin + len(name) + 1] == name.encode() + b"\0":
                    first = sections[section][1] + value
                    return cubin[first : first + length]
    except (struct.error, IndexError) as error:
        raise ValueError(f"not a cubin: {error}") from error
    raise ValueError(f"the cubin has no {name}")


def _sections(cubin: bytes) -> Iterator[tuple[int, int, int, int, int]]:
    """Yield the kind, the offset, the size, the link and the information of each section of an ELF file."""
    if cubin[:5] != b"\x7fELF\2":
        raise ValueError("not a cubin")
    (start,) = struct.unpack_from("<Q", cubin, 40)
    size, count = struct.unpack_from("<HH", cubin, 58)
    for at in range(start, start + size * count, size):
        _, kind, _, _, offset, length, link, information = struct.unpack_from("<IIQQQQII", cubin, at)
        yield kind, offset, length, link, information
