"""Facts of a cubin, an ELF file: ``symbol(cubin, name)``, ``parameter_bytes(cubin, kernel)``, ``registers(cubin)``."""

from __future__ import annotations

import struct
from typing import NamedTuple

_HEADER = struct.Struct("<5s35xQ12xHH")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_MAGIC, _SYMBOLS = b"\x7fELF\x02", 2
#: Attributes of kernels in ``.nv.info``: the registers, the size of the parameters' area, and the record of a parameter
#: (index, ordinal, offset in the area, ...) in two versions.
_REGISTERS, _PARAMETERS, _PARAMETER = 0x2F, 0x19, (0x17, 0x45)
#: The format of attributes whose value has a length; others have a value of 16 bits.
_SIZED = 4


class _Section(NamedTuple):
    """A section; ``name`` is the place of its name among the names of sections, ``link`` another section."""

    name: int
    kind: int
    flags: int
    address: int
    offset: int
    size: int
    link: int
    information: int
    alignment: int
    entry: int


def symbol(cubin: bytes, name: str) -> bytes:
    """Return the initial value of a variable of a cubin. Raise ValueError if there is none."""
    try:
        sections, _ = _sections(cubin)
        for table in (each for each in sections if each.kind == _SYMBOLS):
            for at in range(table.offset, table.offset + table.size, _SYMBOL.size):
                text, _, _, section, value, length = _SYMBOL.unpack_from(cubin, at)
                if cubin.startswith(name.encode() + b"\0", sections[table.link].offset + text):
                    first = sections[section].offset + value
                    return cubin[first : first + length]
    except (struct.error, IndexError) as error:
        raise ValueError(f"not a cubin: {error}") from error
    raise ValueError(f"the cubin has no {name}")


def parameter_bytes(cubin: bytes, kernel: str) -> int:
    """Return the size of a kernel's one parameter in bytes. Raise ValueError for another file, or without the kernel.

    The area of the parameters begins with padding if the parameter's alignment is above the area's.
    """
    found = dict(_attributes(cubin, f".nv.info.{kernel}"))
    if _PARAMETERS not in found:
        raise ValueError(f"the cubin has no kernel {kernel}")
    one = next((found[each] for each in _PARAMETER if each in found), bytes(8))
    return int.from_bytes(found[_PARAMETERS], "little") - int.from_bytes(one[6:8], "little")


def registers(cubin: bytes) -> list[int]:
    """Return the registers of each function. Raise ValueError for another file."""
    return [
        int.from_bytes(value[4:], "little")
        for attribute, value in _attributes(cubin, ".nv.info")
        if attribute == _REGISTERS
    ]


def _attributes(cubin: bytes, section: str) -> list[tuple[int, bytes]]:
    """Return the attributes in a section of a cubin. Raise ValueError for another file."""
    found, at = [], 0
    try:
        data = _content(cubin, section)
        while at < len(data):
            form, attribute, value = struct.unpack_from("<BBH", data, at)
            size = value if form == _SIZED else 0
            found.append((attribute, data[at + 4 : at + 4 + size] if size else value.to_bytes(2, "little")))
            at += 4 + size
    except (struct.error, IndexError) as error:
        raise ValueError(f"not a cubin: {error}") from error
    return found


def _content(cubin: bytes, name: str) -> bytes:
    """Return the content of a section; b"" if there is none."""
    sections, names = _sections(cubin)
    for each in sections:
        if cubin.startswith(name.encode() + b"\0", names.offset + each.name):
            return cubin[each.offset : each.offset + each.size]
    return b""


def _sections(cubin: bytes) -> tuple[list[_Section], _Section]:
    """Return the sections, and the section of their names. Raise ValueError, struct.error and IndexError."""
    if cubin[:5] != _MAGIC:
        raise ValueError("not a 64-bit ELF file")
    _, table, count, names = _HEADER.unpack_from(cubin)
    found = [_Section(*_SECTION.unpack_from(cubin, table + _SECTION.size * index)) for index in range(count)]
    return found, found[names]
