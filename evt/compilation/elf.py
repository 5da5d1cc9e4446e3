"""Facts of a cubin: ``parameter_bytes(cubin, kernel)`` and ``registers(cubin)``."""

from __future__ import annotations

import struct

_SECTION = struct.Struct("<IIQQQQIIQQ")
#: Attributes of kernels in ``.nv.info``: the registers, the size of the parameters' area, and the record of a parameter
#: (index, ordinal, offset in the area, ...) in two versions.
_REGISTERS, _PARAMETERS, _PARAMETER = 0x2F, 0x19, (0x17, 0x45)
#: The format of attributes whose value has a length; others have a value of 16 bits.
_SIZED = 4


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
        data = _section(cubin, section)
        while at < len(data):
            form, attribute, value = struct.unpack_from("<BBH", data, at)
            size = value if form == _SIZED else 0
            found.append((attribute, data[at + 4 : at + 4 + size] if size else value.to_bytes(2, "little")))
            at += 4 + size
    except struct.error as error:
        raise ValueError(f"not a cubin: {error}") from error
    return found


def _section(elf: bytes, name: str) -> bytes:
    """Return the content of a section; b"" if there is none."""
    if elf[:5] != b"\x7fELF\x02":
        raise ValueError("not a 64-bit ELF file")
    (table,) = struct.unpack_from("<Q", elf, 0x28)
    count, names = struct.unpack_from("<HH", elf, 0x3C)
    sections = [_SECTION.unpack_from(elf, table + _SECTION.size * index) for index in range(count)]
    start = sections[names][4]
    for section in sections:
        if elf.startswith(name.encode() + b"\0", start + section[0]):
            return elf[section[4] : section[4] + section[5]]
    return b""
