"""Facts of a cubin: ``parameter_bytes(cubin, kernel)``."""

from __future__ import annotations

import struct

_SECTION = struct.Struct("<IIQQQQIIQQ")
#: The attribute of ``.nv.info.KERNEL`` with the size of the parameters, and the formats whose value has a length.
_PARAMETERS, _SIZED = 0x19, 4


def parameter_bytes(cubin: bytes, kernel: str) -> int:
    """Return the size of a kernel's parameters in bytes. Raise ValueError for another file, or without the kernel."""
    try:
        data = _section(cubin, f".nv.info.{kernel}")
        at = 0
        while at < len(data):
            form, attribute, value = struct.unpack_from("<BBH", data, at)
            at += 4 + (value if form == _SIZED else 0)
            if attribute == _PARAMETERS:
                return int(value)
    except struct.error as error:
        raise ValueError(f"not a cubin: {error}") from error
    raise ValueError(f"the cubin has no kernel {kernel}")


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
