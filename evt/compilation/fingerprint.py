"""Digests of folders, cached by the ``stat`` of their files: reading the files takes a hundred times as long."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import stat
import tempfile
import time
from pathlib import Path

from evt.compilation.limits import require_files
from evt.storage.trust import read_private

#: For each file: its name below the root, size, times of the last change of the content and of the file, inode.
Listing = list[tuple[str, int, int, int, int]]

VERSION = 1
#: The largest number of digests in a file; the oldest are removed first.
MOST = 64
_MOST_BYTES = 1 << 16
#: A file that changed less than this many nanoseconds ago may change again unnoticed: its times come from a clock of
#: coarse ticks, or from another machine's clock.
_RECENT = 2_000_000_000
_NO_FILE = -1

#: The digests that this process knows, by stamp, and the files that already have them.
_known: dict[str, str] = {}
_kept: set[tuple[Path | None, str]] = set()


class Digests:
    """The digests of folders that this process knows, and the digests stored in ``file``, if there is one."""

    def __init__(self, file: Path | None = None) -> None:
        self._file = file

    def of(self, root: Path) -> tuple[str, str]:
        """Return a stamp of everything below ``root``, and the digest of its content.

        The stamp also differs after a change that was undone, because a file's ctime cannot be set back.
        """
        now = time.time_ns()
        files = listing(root)
        stamp = _stamp(root, files)
        if (self._file, stamp) in _kept:
            return stamp, _known[stamp]
        stored = self._read()
        digest = _known.get(stamp) or stored.get(stamp) or _content(root, files)
        if files and all(changed < now - _RECENT for _, _, _, changed, _ in files):
            _known[stamp] = digest
            if stamp in stored or self._write({**stored, stamp: digest}):
                _kept.add((self._file, stamp))
        return stamp, digest

    def _read(self) -> dict[str, str]:
        if self._file is None:
            return {}
        try:
            found = json.loads(read_private(self._file, _MOST_BYTES))
            stored = found["digests"] if found["version"] == VERSION else {}
            return {stamp: digest for stamp, digest in stored.items() if len(stamp) == len(digest) == 64}
        except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
            return {}

    def _write(self, digests: dict[str, str]) -> bool:
        """Store the digests. Return False if that failed and may succeed later; a digest that is not stored is computed
        again.
        """
        if self._file is None:
            return True
        rows = dict(list(digests.items())[-MOST:])
        with contextlib.suppress(OSError):
            descriptor, temporary = tempfile.mkstemp(prefix=".digests-", dir=self._file.parent)
            try:
                with open(descriptor, "w", encoding="ascii") as file:
                    json.dump({"version": VERSION, "digests": rows}, file, indent=1)
                os.replace(temporary, self._file)
            except BaseException:
                os.unlink(temporary)
                raise
            return True
        return False


def listing(root: Path) -> Listing:
    """Return the files below a folder, sorted by name; none for a folder that does not exist.

    Hidden files are omitted, because none is a header. A folder behind several links is entered once.
    """
    found: Listing = []
    folders, entered = [("", str(root))], {os.path.realpath(root)}
    for prefix, folder in folders:
        try:
            entries = os.scandir(folder)
        except OSError as error:
            require_files(error)
            continue
        with entries:
            for entry in entries:
                if entry.name.startswith("."):
                    continue
                try:
                    if entry.is_dir():
                        if _is_new(entry, entered):
                            folders.append((f"{prefix}{entry.name}/", entry.path))
                        continue
                    status = entry.stat()
                except OSError:  # a dangling link, or removed by another process
                    continue
                size = status.st_size if stat.S_ISREG(status.st_mode) else _NO_FILE
                found.append((prefix + entry.name, size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino))
    return sorted(found)


def _is_new(folder: os.DirEntry[str], entered: set[str]) -> bool:
    """Return whether no earlier link has led to this folder."""
    if not folder.is_symlink():
        return True
    target = os.path.realpath(folder.path)
    known = target in entered
    entered.add(target)
    return not known


def _stamp(root: Path, files: Listing) -> str:
    return hashlib.sha256(ascii((str(root), files)).encode()).hexdigest()


def _content(root: Path, files: Listing) -> str:
    digest = hashlib.sha256()
    for name, size, *_ in files:
        data = b""
        if size != _NO_FILE:
            try:
                data = (root / name).read_bytes()
            except OSError as error:  # a compiler cannot read this file either
                require_files(error)
        digest.update(f"{name}\0{len(data)}\0".encode("utf-8", "surrogateescape") + data)
    return digest.hexdigest()
