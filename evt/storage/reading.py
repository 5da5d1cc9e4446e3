"""Files that a user names: ``read_file(path) -> bytes``."""

from __future__ import annotations

from pathlib import Path

#: The most bytes of a file.
_MOST = 1 << 28


def read_file(path: str | Path) -> bytes:
    """Return the content of a file. Raise OSError, and ValueError for a larger file, or a device without an end."""
    with open(path, "rb") as file:
        data = file.read(_MOST + 1)
    if len(data) > _MOST:
        raise ValueError(f"it is larger than {_MOST} bytes")
    return data
