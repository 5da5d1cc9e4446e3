"""Built libraries on disk, by content.

::

    root/ab/abcd…/kernel.so, kernel.cu, build.json     an entry: complete, or not there
    root/ab/.abcd….lock                                held by the process that builds it
    root/ab/.abcd…-x1y2z3/                             where it builds; renamed into place at the end
    root/failed/abcd…/kernel.cu, nvcc.log              what nvcc did not accept
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from evt.build.lock import KeyLock
from evt.build.source import KernelSource, cache_key
from evt.build.toolchain import Toolchain
from evt.build.trust import require_private, require_safe_path
from evt.diagnostics import Diagnostic
from evt.errors import BuildError

LIBRARY, SOURCE, RECORD, LOG = "kernel.so", "kernel.cu", "build.json", "nvcc.log"

#: Libraries whose digest this process has checked, as (path, device, inode, change time, size).
_verified: set[tuple[str, int, int, int, int]] = set()


@dataclass(frozen=True, slots=True)
class Entry:
    """A library in the cache; ``used`` is when a process last began to use it, in seconds since 1970."""

    key: str
    library: Path
    size_bytes: int
    used: float


class Cache:
    """The libraries under ``root``: by default ``$EVT_CACHE_DIR``, or the user's cache directory.

    Every method raises BuildError E0704 where the directory cannot be used, and E0705 where another user
    could have written it. Nothing is created before something is built.
    """

    def __init__(self, root: Path | None = None) -> None:
        self.root = Path(os.path.abspath(root or _default_root()))

    def __repr__(self) -> str:
        return f"Cache({str(self.root)!r})"

    def lookup(self, source: KernelSource, toolchain: Toolchain) -> Path | None:
        """The library of this source, checked; None when it is not there, or damaged."""
        return self.find(cache_key(source, toolchain))[0]

    def find(self, key: str) -> tuple[Path | None, str]:
        """(library, "") or (None, what is damaged), or (None, "") when it is not there."""
        with self._usable():
            if not self._exists():
                return None, ""
            entry = self._entry(key)
            try:
                require_private(entry.parent)
                require_private(entry)
            except FileNotFoundError:
                return None, ""
            damage = _damage(entry)
            return (None, damage) if damage else (entry / LIBRARY, "")

    def entries(self) -> list[Entry]:
        """All entries, the longest unused first."""
        with self._usable():
            found = [_describe(path) for path in self._glob("??/" + "?" * 64)]
        return sorted((entry for entry in found if entry), key=lambda entry: (entry.used, entry.key))

    def size_bytes(self) -> int:
        """Of all entries."""
        return sum(entry.size_bytes for entry in self.entries())

    def prune(self, max_bytes: int | None = None, older_than_s: float | None = None) -> list[Entry]:
        """Remove what was not used for ``older_than_s``, and the longest unused beyond ``max_bytes``.

        Returns what it removed. Entries that are being built right now stay.
        """
        entries, removed = self.entries(), []
        total, now = sum(entry.size_bytes for entry in entries), time.time()
        for entry in entries:
            too_old = older_than_s is not None and now - entry.used > older_than_s
            if (too_old or (max_bytes is not None and total > max_bytes)) and self._remove(entry):
                removed.append(entry)
                total -= entry.size_bytes
        return removed

    def clear(self) -> list[Entry]:
        """Remove every entry, the logs of failures and what killed builders left; returns the entries."""
        removed = [entry for entry in self.entries() if self._remove(entry)]
        with self._usable():
            for path in self._glob("??/.*-*"):
                if lock := self.lock(path.name[1:].split("-")[0], wait=False):
                    shutil.rmtree(path, ignore_errors=True)
                    lock.release()
            if self._exists():
                shutil.rmtree(self.root / "failed", ignore_errors=True)
        return removed

    # For the builder.

    def prepare(self) -> None:
        """Create the directory, for us alone."""
        with self._usable():
            _make_private(self.root)
            self._exists()

    def lock(self, key: str, *, wait: bool) -> KeyLock | None:
        """The right to build ``key``, or None when another process has it and ``wait`` is false."""
        with self._usable():
            shard = self._entry(key).parent
            _make_private(shard)
            require_private(shard)
            return KeyLock.acquire(shard / f".{key}.lock", wait=wait)

    def workspace(self, key: str, files: Mapping[str, str]) -> Path:
        """A fresh private directory with ``files``. The caller holds the lock of ``key`` and removes it."""
        with self._usable():
            shard = self._entry(key).parent
            for left in shard.glob(f".{key}-*"):  # of a killed builder
                shutil.rmtree(left, ignore_errors=True)
            work = Path(tempfile.mkdtemp(prefix=f".{key}-", dir=shard))
            try:
                for name, text in files.items():
                    (work / name).write_text(text, encoding="utf-8")
            except BaseException:
                shutil.rmtree(work, ignore_errors=True)
                raise
            return work

    def publish(self, key: str, work: Path, record: Mapping[str, object]) -> Path:
        """Make an entry of ``kernel.so`` and ``kernel.cu`` in ``work``; it appears whole, in one rename."""
        with self._usable():
            new, entry = work / "entry", self._entry(key)
            new.mkdir(mode=0o700)
            for name in (LIBRARY, SOURCE):
                (work / name).rename(new / name)
            facts = {"size": (new / LIBRARY).stat().st_size, "sha256": _digest(new / LIBRARY)}
            (new / RECORD).write_text(json.dumps({"key": key, "library": facts, **record}, indent=1) + "\n")
            for path in new.iterdir():
                path.chmod(0o600)
            if entry.exists():  # damaged: the reason why it was built again
                entry.rename(work / "damaged")
            new.rename(entry)
            return entry / LIBRARY

    def keep_failure(self, key: str, source: str, log: str) -> Path:
        """Keep a source that nvcc refused, and what nvcc said, to be looked at; returns the directory."""
        with self._usable():
            kept = self.root / "failed" / key
            _make_private(kept)
            (kept / SOURCE).write_text(source, encoding="utf-8")
            (kept / LOG).write_text(log, encoding="utf-8")
            return kept

    def _entry(self, key: str) -> Path:
        return self.root / key[:2] / key

    def _exists(self) -> bool:
        """Whether there is a cache, which then is a directory, ours, and safe to reach."""
        try:
            names = os.scandir(self.root)
        except FileNotFoundError:
            return False
        names.close()
        require_safe_path(self.root)
        require_private(Path(os.path.realpath(self.root)))
        return True

    def _glob(self, pattern: str) -> list[Path]:
        return sorted(self.root.glob(pattern)) if self._exists() else []

    def _remove(self, entry: Entry) -> bool:
        """Out of sight in one rename, then gone. False when it is being built or already removed."""
        with self._usable():
            lock = self.lock(entry.key, wait=False)
            if lock is None:
                return False
            try:
                trash = self.workspace(entry.key, {})
                entry.library.parent.rename(trash / "entry")
                shutil.rmtree(trash, ignore_errors=True)
                return True
            except FileNotFoundError:
                return False
            finally:
                lock.release()

    @contextlib.contextmanager
    def _usable(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            reason = error.strerror or type(error).__name__
            at = f" ({error.filename})" if error.filename and str(error.filename) != str(self.root) else ""
            message = f"the cache directory {self.root} cannot be used: {reason}{at}"
            mend = "set EVT_CACHE_DIR to a directory that you can write, on a disk with space"
            raise BuildError(Diagnostic("E0704", message, help=mend)) from error


def _default_root() -> Path:
    if named := os.environ.get("EVT_CACHE_DIR"):
        return Path(named).expanduser()
    import platformdirs

    return Path(platformdirs.user_cache_dir("evt", appauthor=False))


def _make_private(path: Path) -> None:
    missing = []
    while not path.exists():
        missing.append(path)
        path = path.parent
    for directory in reversed(missing):
        directory.mkdir(mode=0o700, exist_ok=True)


def _damage(entry: Path) -> str:
    """What is wrong with an entry, or nothing. Raises BuildError E0705 when others could have written it."""
    library, record = entry / LIBRARY, entry / RECORD
    try:
        require_private(library)
        require_private(record)
        status = library.stat()
        identity = (str(library), status.st_dev, status.st_ino, status.st_ctime_ns, status.st_size)
        if identity in _verified:
            return ""
        facts = json.loads(record.read_text(encoding="utf-8"))["library"]
        size, sha256 = facts["size"], facts["sha256"]
        if status.st_size != size:
            return f"{LIBRARY} has {status.st_size} bytes instead of {size}"
        if _digest(library) != sha256:
            return f"{LIBRARY} has changed"
    except FileNotFoundError as error:
        return f"{Path(str(error.filename)).name} is missing"
    except NotADirectoryError:
        return f"{entry.name} is not a directory"
    except IsADirectoryError as error:
        return f"{Path(str(error.filename)).name} is a directory"
    except (ValueError, LookupError, TypeError, RecursionError):
        return f"{RECORD} cannot be read"
    _verified.add(identity)
    with contextlib.suppress(OSError):
        os.utime(record)  # the time of last use
    return ""


def _describe(entry: Path) -> Entry | None:
    if not re.fullmatch(r"[0-9a-f]{64}", entry.name) or not entry.is_dir():
        return None
    try:
        size = sum(path.lstat().st_size for path in entry.iterdir())
        record = entry / RECORD
        used = (record if record.exists() else entry).stat().st_mtime
    except FileNotFoundError:  # removed meanwhile
        return None
    return Entry(entry.name, entry / LIBRARY, size, used)


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
