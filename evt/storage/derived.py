"""Data that evt derives from its own files, kept because deriving it takes long: a parser's tables, compiled templates.

``find(name, key)`` returns the bytes that ``keep(name, key, data)`` stored. A ``key`` states everything that decides
them. The data may be code, so a file that another user could have written counts as absent. Every failure counts as
absence too: the caller derives the data again.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
from pathlib import Path

from evt.errors import BuildError
from evt.storage.root import default_root, is_there, make_private
from evt.storage.trust import read_private, require_private

#: The folder below the cache directory.
FOLDER = "derived"
_DIGEST_BYTES = 32
_MOST_BYTES = 1 << 24


def find(name: str, key: str) -> bytes | None:
    """Return the data of a name, or None if there are none for this key."""
    with contextlib.suppress(BuildError, OSError, ValueError):
        root = default_root()
        if is_there(root):
            require_private(root / FOLDER)
            data = read_private(root / FOLDER / name, _MOST_BYTES)
            if data[:_DIGEST_BYTES] == _digest(key, data[_DIGEST_BYTES:]):
                return data[_DIGEST_BYTES:]
    return None


def keep(name: str, key: str, data: bytes) -> None:
    """Store the data of a name for a key, in one rename."""
    with contextlib.suppress(BuildError, OSError):
        root = default_root()
        make_private(root)
        if is_there(root):
            folder = root / FOLDER
            make_private(folder)
            require_private(folder)
            _replace(folder, name, _digest(key, data) + data)


def trim(prefix: str, most: int) -> None:
    """Remove the data of names with a prefix, the least recently kept first, until ``most`` are left."""
    with contextlib.suppress(BuildError, OSError):
        found = [each for each in os.scandir(default_root() / FOLDER) if each.name.startswith(prefix)]
        if len(found) > most:
            for each in sorted(found, key=lambda each: each.stat().st_mtime)[:-most]:
                os.unlink(each.path)


def _replace(folder: Path, name: str, content: bytes) -> None:
    descriptor, temporary = tempfile.mkstemp(prefix=".", dir=folder)
    try:
        with open(descriptor, "wb") as file:
            file.write(content)
        os.replace(temporary, folder / name)
    except BaseException:
        os.unlink(temporary)
        raise


def _digest(key: str, data: bytes) -> bytes:
    return hashlib.sha256(hashlib.sha256(key.encode()).digest() + data).digest()
