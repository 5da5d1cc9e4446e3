"""Measurements on disk, next to the kernels: ``tuning.json`` in the cache's directory.

The file is replaced in one rename, under a lock: readers see the old file or the new one, and concurrent writers lose
nothing. A file that cannot be read, or that others could have written, causes a warning and is ignored: calls work
without measurements. Such a file is kept as ``tuning.json.unreadable`` when another one is written. A newer version's
file is not replaced.
"""

from __future__ import annotations

import contextlib
import json
import os
import stat
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

from evt.compilation import Cache
from evt.compilation.limits import require_files
from evt.compilation.lock import KeyLock
from evt.diagnostics import Diagnostic, visible
from evt.errors import BuildError
from evt.measured.measurement import Measurement
from evt.storage.trust import read_private

#: The format of the file.
VERSION = 1
#: The largest number of problems; the ones measured longest ago are removed first.
MOST = 10_000

#: The size of the largest file in bytes; evt writes no larger one.
_MOST_BYTES = 1 << 26

#: By problem, then by GPU.
_Measurements = dict[str, dict[str, Measurement]]

#: Files read by this process, by path: the file's identity and its content.
_read: dict[Path, tuple[tuple[int, ...], _Measurements]] = {}


class _UnreadableError(Exception):
    """An error for a file that this version cannot read; ``is_newer`` means that a newer version wrote it."""

    def __init__(self, reason: str, code: str = "E0704", *, is_newer: bool = False) -> None:
        super().__init__(reason)
        self.code, self.is_newer = code, is_newer


class Store:
    """The measurements of all problems, on all GPUs, in a directory: by default the directory of the kernels.

    The file is created by the first measurement.
    """

    def __init__(self, root: Path | None = None) -> None:
        self._cache = Cache(root)
        self.path = self._cache.root / "tuning.json"

    def __repr__(self) -> str:
        return f"Store({str(self.path)!r})"

    def __len__(self) -> int:
        return sum(map(len, self._load().values()))

    def exists(self) -> bool:
        """Return whether anything was ever measured here; this is cheap."""
        return self._identity() is not None

    def find(self, key: str) -> tuple[Measurement, ...]:
        """Return the measurements of a problem, one for each GPU that it was measured on."""
        return tuple(self._load().get(key, {}).values())

    def has(self, beginning: str) -> bool:
        """Return whether there are measurements under any key with this beginning."""
        return any(key.startswith(beginning) for key in self._load())

    def add(self, key: str, measurement: Measurement) -> None:
        """Keep a measurement instead of an older one.

        Raise BuildError (E0704) if nothing can be written, or if a newer version of evt wrote the file.
        """

        def change(known: _Measurements) -> None:
            by_gpu = known.pop(key, {})
            by_gpu[measurement.gpu] = measurement
            known[key] = by_gpu
            for oldest in list(known)[:-MOST]:
                del known[oldest]

        self._cache.prepare()
        self._change(change)

    def clear(self) -> int:
        """Remove all measurements; return their number. Raise BuildError (E0704)."""
        if not self._cache.exists() or not os.path.lexists(self.path):
            return 0
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            count = len(self)
        with self._locked():
            self.path.unlink(missing_ok=True)
            for pattern in (
                ".tuning-*",
                f"{self.path.name}.unreadable",
            ):  # files of a killed writer, and kept unreadable files
                for left in self.path.parent.glob(pattern):
                    left.unlink(missing_ok=True)
        return count

    def _change(self, change: Callable[[_Measurements], None]) -> None:
        with self._locked():
            known = self._parse_or_keep()
            change(known)
            entries = {
                key: {gpu: measurement.to_json() for gpu, measurement in by_gpu.items()}
                for key, by_gpu in known.items()
            }
            text = json.dumps({"version": VERSION, "measurements": entries}, indent=1, allow_nan=False) + "\n"
            descriptor, temporary = tempfile.mkstemp(prefix=".tuning-", dir=self.path.parent)
            try:
                with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                    file.write(text)
                os.replace(temporary, self.path)
            except BaseException:
                with contextlib.suppress(OSError):
                    os.unlink(temporary)
                raise

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        try:
            lock = KeyLock.acquire(self.path.with_name(f".{self.path.name}.lock"), wait=True)
            assert lock is not None
            try:
                yield
            finally:
                lock.release()
        except OSError as error:
            require_files(error)
            message = f"measurements cannot be kept in {self.path}: {error.strerror or error}"
            mend = "set EVT_CACHE_DIR to a directory that you can write, on a disk with space"
            raise BuildError(Diagnostic("E0704", message, help=mend)) from error

    def _load(self) -> _Measurements:
        """Return the content of the file; read it again after it was replaced."""
        identity = self._identity()
        if identity is None:
            return {}
        known = _read.get(self.path)
        if known is None or known[0] != identity:
            try:
                found = self._parse()
            except _UnreadableError as error:
                _warn(self.path, error, "are ignored")
                found = {}
            known = _read[self.path] = identity, found
        return known[1]

    def require_replaceable(self) -> None:
        """Raise BuildError (E0704) if a newer version of evt wrote the file."""
        try:
            self._parse()
        except _UnreadableError as error:
            if error.is_newer:
                message = f"measurements cannot be kept in {self.path}: {error}"
                mend = "use that version, or set EVT_CACHE_DIR to another directory"
                raise BuildError(Diagnostic("E0704", message, help=mend)) from error

    def _parse_or_keep(self) -> _Measurements:
        """Return the content of the file, which will be replaced; keep an unreadable one under another name."""
        self.require_replaceable()
        try:
            return self._parse()
        except _UnreadableError as error:
            if stat.S_ISREG(self.path.lstat().st_mode):
                kept = self.path.with_name(f"{self.path.name}.unreadable")
                os.replace(self.path, kept)
                _warn(self.path, error, f"are kept as {kept.name}")
            return {}

    def _identity(self) -> tuple[int, ...] | None:
        """Return the identity of the file, which distinguishes it from earlier ones; None if there is no file."""
        try:
            status = self.path.lstat()
        except FileNotFoundError:
            return None
        except OSError as error:
            _warn(self.path, _UnreadableError(error.strerror or str(error)), "are ignored")
            return None
        return status.st_ino, status.st_mtime_ns, status.st_ctime_ns, status.st_size, status.st_mode

    def _parse(self) -> _Measurements:
        try:
            self._cache.exists()  # raises if others could replace the file
            found = json.loads(read_private(self.path, _MOST_BYTES))
            if not isinstance(found, dict):
                raise ValueError("it is not an object")
            version = found.get("version")
            if isinstance(version, int) and version > VERSION:
                reason = f"a newer version of evt wrote it, in form {version}, and this version reads {VERSION}"
                raise _UnreadableError(reason, is_newer=True)
            if version != VERSION:
                raise ValueError("evt did not write it")
            return {
                key: {gpu: Measurement.from_json(value) for gpu, value in by_gpu.items()}
                for key, by_gpu in found["measurements"].items()
            }
        except FileNotFoundError:  # removed by another process
            return {}
        except BuildError as error:
            (problem,) = error.diagnostics
            raise _UnreadableError(f"{problem.message}; {problem.help}", problem.code) from error
        except OSError as error:
            raise _UnreadableError(error.strerror or str(error)) from error
        except (ValueError, LookupError, ArithmeticError, AttributeError, TypeError, RecursionError) as error:
            reason = str(error) if isinstance(error, ValueError) else "evt did not write it"
            raise _UnreadableError(reason) from error


def _warn(path: Path, error: _UnreadableError, outcome: str) -> None:
    text = visible(f"the measurements in {path} cannot be read, and {outcome}: {error}")
    warnings.warn(f"{error.code}: {text}; `evt cache clear` removes them", stacklevel=4)
