"""Built libraries on disk, by content.

::

    root/ab/abcd…/kernel.so, kernel.cu, build.json     a complete entry: built here by cache_key, imported by source_key
                                                       (kernel.so is the cubin of an own kernel that has no launcher)
    root/12/1234…/device.ltoir, or host.o              a part that kernels of one structure share
    root/ab/.abcd….lock                                held by the process that builds it
    root/ab/.abcd…-x1y2z3/                             the build directory; renamed into place at the end
    root/failed/abcd…/kernel.cu, nvcc.log, build.json  a source that nvcc refused, and the diagnostics
    root/digests.json                                  digests of headers, by their stat
    root/derived/grammar, header.h.jinja...            what evt derives from its own files: evt.storage.derived
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
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from evt.compilation.dependencies import Read, changed_since
from evt.compilation.environment import host
from evt.compilation.fingerprint import Digests
from evt.compilation.inputs import find_inputs
from evt.compilation.limits import require_files
from evt.compilation.lock import KeyLock
from evt.compilation.source import KernelSource, cache_key
from evt.compilation.toolchain import Toolchain
from evt.diagnostics import Diagnostic
from evt.storage import derived
from evt.storage.root import default_root, is_there, make_private, unusable
from evt.storage.trust import read_private, require_private
from evt.version import __version__

LIBRARY, SOURCE, RECORD, LOG = "kernel.so", "kernel.cu", "build.json", "nvcc.log"
#: The file that an entry is for: a library, or a part that libraries of one structure share.
SKELETON, LAUNCHER = "device.ltoir", "host.o"
ARTIFACTS = (LIBRARY, SKELETON, LAUNCHER)

#: Libraries whose digest this process has checked, as (path, device, inode, change time, size).
_verified: set[tuple[str, int, int, int, int]] = set()
#: The size of the largest record in bytes; a larger file is not a record.
_MOST_RECORD = 1 << 20


@dataclass(frozen=True, slots=True)
class Failure:
    """A failed build; ``id`` distinguishes it from other failures with equal text."""

    id: str
    problems: tuple[Diagnostic, ...]


@dataclass(frozen=True, slots=True)
class Entry:
    """A library or a part in the cache.

    ``used`` is the last time that a process started to use it, in seconds since 1970.
    """

    key: str
    library: Path
    size_bytes: int
    used: float


class Cache:
    """The libraries under ``root``: by default ``$EVT_CACHE_DIR``, or the user's cache directory.

    Every method raises BuildError: E0704 if the directory cannot be used, E0705 if another user could have written it,
    E0708 if too many files are open. The directory is created by the first build.
    """

    def __init__(self, root: Path | None = None) -> None:
        try:
            self.root = Path(os.path.abspath(root or default_root()))
        except OSError as error:  # a relative path, and no current directory
            raise unusable(str(root or os.environ.get("EVT_CACHE_DIR")), error.strerror or str(error)) from error

    def __repr__(self) -> str:
        return f"Cache({str(self.root)!r})"

    def lookup(self, source: KernelSource, toolchain: Toolchain) -> Path | None:
        """Return the library of this source, checked; None if it is missing or damaged."""
        return self.find(cache_key(source, toolchain, find_inputs(toolchain, self.digests())))[0]

    def digests(self) -> Digests:
        """Return the digests of known headers, from disk and from this process; none is stored before the first
        build.
        """
        with self._usable():
            return Digests(self.root / "digests.json" if is_there(self.root) else None)

    def find(self, key: str, artifact: str = LIBRARY) -> tuple[Path | None, str]:
        """Return (library, ""); (None, the damage) if it is damaged; (None, "") if there is none.

        ``artifact`` is another file than the library for a part.
        """
        with self._usable():
            if not is_there(self.root):
                return None, ""
            entry = self._entry(key)
            try:
                require_private(entry.parent)
                require_private(entry)
            except FileNotFoundError:
                return None, ""
            damage = _damage(entry, artifact)
            return (None, damage) if damage else (entry / artifact, "")

    def exists(self) -> bool:
        """Return whether there is a cache."""
        with self._usable():
            return is_there(self.root)

    def entries(self) -> list[Entry]:
        """Return all entries, the least recently used first."""
        with self._usable():
            found = [_describe(path) for path in self._glob("??", "?" * 64)]
        return sorted((entry for entry in found if entry), key=lambda entry: (entry.used, entry.key))

    def size_bytes(self) -> int:
        """Return the size of all entries in bytes."""
        return sum(entry.size_bytes for entry in self.entries())

    def prune(self, max_bytes: int | None = None, older_than_s: float | None = None) -> list[Entry]:
        """Remove entries not used for ``older_than_s``, and the least recently used beyond ``max_bytes``; return them.

        Entries that are being built remain.
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
        """Remove every entry, the records of failures, derived data, and the leftovers of killed builders.

        Entries that are being built remain. Return the removed entries.
        """
        removed = [entry for entry in self.entries() if self._remove(entry)]
        with self._usable():
            left = [(path.name[1:].split("-")[0], path) for path in self._glob("??", ".*-*")]
            for key, path in [*left, *((path.name, path) for path in self._glob("failed", "?" * 64))]:
                if lock := self.lock(key, wait=False):
                    shutil.rmtree(path, ignore_errors=True)
                    lock.release()
            for path in self._glob("", "digests.json"):
                path.unlink(missing_ok=True)
            for path in self._glob("", derived.FOLDER):
                shutil.rmtree(path, ignore_errors=True)
        return removed

    # For the builder.

    def prepare(self) -> None:
        """Create the directory, private to this user."""
        with self._usable():
            make_private(self.root)
            is_there(self.root)

    def lock(self, key: str, *, wait: bool) -> KeyLock | None:
        """Return the lock for building ``key``; None if another process has it and ``wait`` is false."""
        with self._usable():
            path = self.lock_path(key)
            make_private(path.parent)
            require_private(path.parent)
            return KeyLock.acquire(path, wait=wait)

    def lock_path(self, key: str) -> Path:
        """Return the path of the lock for building ``key``."""
        return self._entry(key).parent / f".{key}.lock"

    def workspace(self, key: str, files: Mapping[str, str | bytes], links: Mapping[str, Path] | None = None) -> Path:
        """Return a new private directory with ``files`` and ``links``.

        The caller holds the lock of ``key`` and removes it.
        """
        with self._usable():
            shard = self._entry(key).parent
            for left in shard.glob(f".{key}-*"):  # left by a killed builder
                shutil.rmtree(left, ignore_errors=True)
            work = Path(tempfile.mkdtemp(prefix=f".{key}-", dir=shard))
            try:
                for name, data in files.items():
                    (work / name).write_bytes(data.encode() if isinstance(data, str) else data)
                for name, target in (links or {}).items():
                    (work / name).symlink_to(target)
            except BaseException:
                shutil.rmtree(work, ignore_errors=True)
                raise
            return work

    def publish(self, key: str, work: Path, record: Mapping[str, object], artifact: str = LIBRARY) -> Path:
        """Make an entry of the artifact and ``kernel.cu`` in ``work``, in one rename; return the artifact."""
        with self._usable():
            new, entry = work / "entry", self._entry(key)
            new.mkdir(mode=0o700)
            for name in (artifact, SOURCE):
                (work / name).rename(new / name)
            data = (new / artifact).read_bytes()
            facts = {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}
            said = {"key": key, "evt": __version__, "host": host(), "library": facts, **record}
            (new / RECORD).write_text(json.dumps(said, indent=1) + "\n")
            for path in new.iterdir():
                path.chmod(0o600)
            if entry.exists():  # damaged: the reason for the rebuild
                entry.rename(work / "damaged")
            new.rename(entry)
            shutil.rmtree(self.failed(key), ignore_errors=True)
            return entry / artifact

    def read(self, path: Path) -> tuple[bytes, Read]:
        """Return the content of an artifact, checked, and the files that compilers read for it.

        Raise ValueError if it is damaged, and OSError if it is gone.
        """
        facts = json.loads(read_private(path.parent / RECORD, _MOST_RECORD))
        content = read_private(path, facts["library"]["size"])
        if hashlib.sha256(content).hexdigest() != facts["library"]["sha256"]:
            raise ValueError(f"{path} has changed")
        return content, {name: (each[0], each[1]) for name, each in facts["read"].items()}

    def put(
        self,
        key: str,
        make: Callable[[], Mapping[str, bytes]],
        record: Mapping[str, object],
        artifact: str = LIBRARY,
    ) -> bool:
        """Make an entry of the files that ``make`` returns, unless it is there; return whether it was made."""
        with self._usable():
            lock = self.lock(key, wait=True)
            assert lock is not None
            try:
                if self.find(key, artifact)[0] is not None:
                    return False
                work = self.workspace(key, make())
                try:
                    self.publish(key, work, {**record, "read": {}}, artifact)
                finally:
                    shutil.rmtree(work, ignore_errors=True)
                return True
            finally:
                lock.release()

    def keep_failure(self, key: str, source: str, log: str, problems: Sequence[Diagnostic]) -> Path:
        """Keep a refused source, nvcc's output and the diagnostics; return the directory.

        The caller holds the lock of ``key``.
        """
        with self._usable():
            kept = self.failed(key)
            make_private(kept)
            facts = {"id": os.urandom(8).hex(), "problems": [problem.to_json() for problem in problems]}
            for name, text in ((SOURCE, source), (LOG, log), (RECORD, json.dumps(facts, indent=1))):
                (kept / name).write_text(text, encoding="utf-8", errors="backslashreplace")
            return kept

    def failure(self, key: str) -> Failure | None:
        """Return the failure of the last build of ``key``, or None."""
        with self._usable(), contextlib.suppress(FileNotFoundError, ValueError, LookupError, TypeError):
            facts = json.loads(read_private(self.failed(key) / RECORD, _MOST_RECORD))
            problems = [
                Diagnostic(each["code"], each["message"], help=each["help"], notes=tuple(each["notes"]))
                for each in facts["problems"]
            ]
            return Failure(facts["id"], tuple(problems))
        return None

    def failed(self, key: str) -> Path:
        """Return the directory for a failure of ``key``."""
        return self.root / "failed" / key

    def _entry(self, key: str) -> Path:
        return self.root / key[:2] / key

    def _glob(self, folders: str, names: str) -> list[Path]:
        """Return the paths that match ``names`` in directories that match ``folders``; ``""`` is the root."""
        found: list[Path] = []
        for folder in (self.root.glob(folders) if folders else (self.root,)) if is_there(self.root) else ():
            with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                found += [path for path in map(folder.joinpath, os.listdir(folder)) if path.match(names)]
        return sorted(found)

    def _remove(self, entry: Entry) -> bool:
        """Remove an entry, in one rename. Return False if it is being built or already removed."""
        with self._usable():
            lock = self.lock(entry.key, wait=False)
            if lock is None:
                return False
            trash = self.workspace(entry.key, {})
            try:
                entry.library.parent.rename(trash / "entry")
                return True
            except FileNotFoundError:
                return False
            finally:
                shutil.rmtree(trash, ignore_errors=True)
                lock.release()

    @contextlib.contextmanager
    def _usable(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            require_files(error)
            at = f" ({error.filename})" if error.filename and str(error.filename) != str(self.root) else ""
            raise unusable(str(self.root), f"{error.strerror or type(error).__name__}{at}") from error


def _damage(entry: Path, artifact: str) -> str:
    """Return the damage of an entry, or "". Raise BuildError E0705 if another user could have written it."""
    library, record = entry / artifact, entry / RECORD
    try:
        require_private(library)
        require_private(record)
        status = library.lstat()
        identity = (str(library), status.st_dev, status.st_ino, status.st_ctime_ns, status.st_size)
        if identity in _verified:
            return ""
        facts = json.loads(read_private(record, _MOST_RECORD))
        size, sha256 = facts["library"]["size"], facts["library"]["sha256"]
        if status.st_size != size:
            return f"{artifact} has {status.st_size} bytes instead of {size}"
        if _digest(library, size) != sha256:
            return f"{artifact} has changed"
        if path := changed_since(facts["read"]):
            return f"{path} has changed"
    except FileNotFoundError as error:
        return f"{Path(str(error.filename)).name} is missing"
    except NotADirectoryError:
        return f"{entry.name} is not a directory"
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
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
    except FileNotFoundError:  # removed by another process
        return None
    artifact = next((name for name in ARTIFACTS if (entry / name).exists()), LIBRARY)
    return Entry(entry.name, entry / artifact, size, used)


def _digest(path: Path, size: int) -> str:
    return hashlib.sha256(read_private(path, size)).hexdigest()
