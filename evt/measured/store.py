"""Measurements on disk, next to the kernels: the SQLite database ``tuning.db`` in the cache's directory.

SQLite's transactions keep the database whole if a process is killed, if the disk is full, and if several processes
write. A database that cannot be read, or that others could have written, causes a warning and is ignored: calls work
without measurements. Such a file is kept as ``tuning.db.unreadable`` when another one is written. A newer version's
database is not changed. Versions up to 0.2 keep ``tuning.json``: a new database begins with its measurements.
"""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
import stat
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, TypeVar

from evt.compilation import Cache
from evt.compilation.lock import KeyLock
from evt.diagnostics import Diagnostic, visible
from evt.errors import BuildError
from evt.measured import schema
from evt.measured.measurement import Measurement, Origin, Timing
from evt.measured.schema import NewerError
from evt.storage.trust import read_private, require_private
from evt.version import __version__

#: The largest number of problems; the ones measured longest ago are removed first.
MOST = 100_000
#: The time to wait for another process that writes, in seconds.
_WAIT = 60.0
#: The largest size of the JSON file of older versions, in bytes.
_MOST_JSON = 1 << 26

_Result = TypeVar("_Result")
#: Files that this process has warned about, by path: the identity of the file.
_warned: dict[Path, tuple[int, ...]] = {}


class Store:
    """The measurements of all problems, on all GPUs, in a directory: by default the directory of the kernels.

    The database is created by the first measurement. If it is ``durable``, each change is on
    the disk before it ends, which takes milliseconds.
    """

    def __init__(self, root: Path | None = None, *, durable: bool = True) -> None:
        self._cache, self._synchronous = Cache(root), "FULL" if durable else "OFF"
        self.path = self._cache.root / "tuning.db"
        self._older = self._cache.root / "tuning.json"

    def __repr__(self) -> str:
        return f"Store({str(self.path)!r})"

    def __len__(self) -> int:
        """Return the number of problems, each counted once for each GPU."""
        count = "SELECT count(*) FROM (SELECT DISTINCT key, gpu FROM times)"
        return self._read(lambda database: int(database.execute(count).fetchone()[0]), 0)

    def __bool__(self) -> bool:
        """Return True, also for an empty store."""
        return True

    def exists(self) -> bool:
        """Return whether anything was ever measured here; this is cheap."""
        return self.identity() is not None

    # Reading

    def find(self, key: str) -> tuple[Measurement, ...]:
        """Return the measurements of a problem, one for each GPU that it was measured on.

        If several drivers were measured, the latest measurement decides.
        """
        return tuple(measurement for _, measurement in self._select("WHERE times.key = ?", (key,)))

    def all(self, beginning: str = "", gpu: str = "") -> list[tuple[str, Measurement]]:
        """Return the keys with a beginning, and their measurements on the GPUs whose names contain ``gpu``."""
        pattern = f"%{_escaped(gpu)}%"
        where = "WHERE times.key LIKE ? ESCAPE '\\' AND times.gpu LIKE ? ESCAPE '\\'"
        return self._select(where, (f"{_escaped(beginning)}%", pattern))

    def has(self, beginning: str) -> bool:
        """Return whether there are measurements under any key with this beginning."""
        found = "SELECT EXISTS (SELECT 1 FROM times WHERE key LIKE ? ESCAPE '\\')"
        given = (f"{_escaped(beginning)}%",)
        return self._read(lambda database: bool(database.execute(found, given).fetchone()[0]), False)

    def kernels(self, key: str, gpu: str, driver: str) -> dict[tuple[str, str], Timing]:
        """Return the times of a problem's kernels on a GPU and a driver, by route and configuration."""

        def read(database: sqlite3.Connection) -> dict[tuple[str, str], Timing]:
            rows = "SELECT route, config, ms, warm_ms, samples, kernel FROM times WHERE key=? AND gpu=? AND driver=?"
            return {row[:2]: Timing(*row) for row in database.execute(rows, (key, gpu, driver))}

        return self._read(read, {})

    # Writing

    def add(self, key: str, measurement: Measurement, *, merge: bool = False) -> None:
        """Keep a measurement instead of an older one on its GPU and driver; ``merge`` keeps the times of other kernels.

        Raise BuildError (E0704) if nothing can be written, or if a newer version of evt wrote the database.
        """
        self.add_all([(key, measurement)], merge=merge)

    def add_all(self, measured: Iterable[tuple[str, Measurement]], *, merge: bool = False) -> None:
        """Keep several measurements in one transaction: see :meth:`add`."""
        rows = list(measured)

        def change(database: sqlite3.Connection) -> None:
            for key, measurement in rows:
                _insert(database, key, measurement, merge=merge)
            if database.execute("SELECT count(*) FROM problems").fetchone()[0] > MOST:
                oldest = "SELECT key FROM times GROUP BY key ORDER BY max(at) DESC LIMIT -1 OFFSET ?"
                database.execute(f"DELETE FROM problems WHERE key IN ({oldest})", (MOST,))

        self._change(change)

    def forget(self, keys: Iterable[tuple[str, str]]) -> int:
        """Remove the measurements of (key, GPU) pairs; return their number. Raise BuildError (E0704)."""
        pairs = list(keys)

        def change(database: sqlite3.Connection) -> int:
            counts = [
                database.execute("DELETE FROM times WHERE key = ? AND gpu = ?", pair).rowcount > 0 for pair in pairs
            ]
            database.execute("DELETE FROM problems WHERE key NOT IN (SELECT key FROM times)")
            return sum(counts)

        return self._change(change) if self.exists() else 0

    def clear(self) -> int:
        """Remove all measurements; return their number. Raise BuildError (E0704)."""
        if not self._cache.exists():
            return 0
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            count = len(self)
        with self._usable(), self._locked():
            for name in (self.path.name, f"{self.path.name}-journal", f"{self.path.name}.unreadable", self._older.name):
                (self._cache.root / name).unlink(missing_ok=True)
        return count

    def require_replaceable(self) -> None:
        """Raise BuildError (E0704) if a newer version of evt wrote the database."""
        with contextlib.suppress(sqlite3.Error, ValueError, OSError), self._usable():
            if self.exists():
                with closing(self._connect()) as database:
                    schema.check(database)

    @contextlib.contextmanager
    def alone(self, gpu: str) -> Iterator[bool]:
        """Hold the lock for timing on a GPU in a ``with`` block, after all other processes that time on it.

        Yield whether another process held it. Raise BuildError (E0704).
        """
        name = "".join(each if each.isalnum() else "-" for each in gpu)
        with self._usable():
            self._cache.prepare()
            path = self.path.with_name(f".timing-{name}.lock")
            lock = KeyLock.acquire(path, wait=False)
            waited = lock is None
            lock = lock or KeyLock.acquire(path, wait=True)
        assert lock is not None
        try:
            yield waited
        finally:
            lock.release()

    def _select(self, where: str, values: Sequence[str]) -> list[tuple[str, Measurement]]:
        query = (
            "SELECT times.key, gpu, driver, route, config, ms, warm_ms, samples, kernel, who, at, evt, "
            f"target, program, sizes, call FROM times JOIN problems ON problems.key = times.key {where} "
            "ORDER BY times.key, gpu, driver, place"
        )

        def read(database: sqlite3.Connection) -> list[tuple[str, Measurement]]:
            groups: dict[tuple[str, str], dict[str, list[tuple[Any, ...]]]] = {}
            for row in database.execute(query, values):
                groups.setdefault(row[:2], {}).setdefault(row[2], []).append(row)
            latest = (
                max(by_driver.values(), key=lambda rows: max(row[10] for row in rows)) for by_driver in groups.values()
            )
            return [(rows[0][0], _measurement(rows)) for rows in latest]

        return self._read(read, [])

    def _read(self, read: Callable[[sqlite3.Connection], _Result], nothing: _Result) -> _Result:
        """Return a result of the database; ``nothing`` without a database, and after a warning if it is unusable."""
        identity = self.identity()
        if identity is None:
            return nothing
        try:
            with closing(self._connect()) as database:
                return read(database) if schema.check(database) else nothing
        except BuildError as error:
            (problem,) = error.diagnostics
            self._warn(identity, f"{problem.message}; {problem.help}", code=problem.code)
        except (sqlite3.Error, NewerError, ValueError, OSError, TypeError) as error:
            self._warn(identity, _reason(error))
        return nothing

    def _change(self, change: Callable[[sqlite3.Connection], _Result]) -> _Result:
        """Change the database in one transaction. Raise BuildError (E0704)."""
        with self._usable():
            self._cache.prepare()
            with self._locked():
                self._replace_unreadable()
            with closing(self._connect(create=True)) as database:
                database.execute("PRAGMA foreign_keys = ON")
                database.execute("BEGIN IMMEDIATE")
                try:
                    if not schema.check(database):
                        schema.create(database)
                        for key, measurement in self._older_measurements():
                            _insert(database, key, measurement)
                    result = change(database)
                    database.execute("COMMIT")
                except BaseException:
                    if database.in_transaction:
                        database.execute("ROLLBACK")
                    raise
                return result

    def _replace_unreadable(self) -> None:
        """Keep a file that is no database of evt under another name. Raise NewerError."""
        identity = self.identity()
        if identity is None:
            return
        try:
            with closing(self._connect()) as database:
                schema.check(database)
        except sqlite3.OperationalError:  # it may be readable later
            raise
        except (sqlite3.DatabaseError, ValueError) as error:
            if not stat.S_ISREG(self.path.lstat().st_mode):
                raise
            kept = self.path.with_name(f"{self.path.name}.unreadable")
            os.replace(self.path, kept)
            _warned.pop(self.path, None)
            self._warn(identity, _reason(error), f"are kept as {kept.name}")

    def _connect(self, *, create: bool = False) -> sqlite3.Connection:
        """Open the database. Raise BuildError (E0705) if others could have written it, and sqlite3.Error."""
        self._cache.exists()  # raises if others could replace the file
        try:
            require_private(self.path)
            if not stat.S_ISREG(self.path.lstat().st_mode):
                raise ValueError("is not a regular file")
        except FileNotFoundError:
            if not create:
                raise
            os.close(os.open(self.path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600))
        mode = "rw" if os.access(self.path, os.W_OK) and os.access(self.path.parent, os.W_OK) else "ro"
        database = sqlite3.connect(f"{self.path.as_uri()}?mode={mode}", uri=True, timeout=_WAIT, isolation_level=None)
        database.execute(f"PRAGMA synchronous = {self._synchronous}")
        return database

    def _older_measurements(self) -> list[tuple[str, Measurement]]:
        """Return the measurements of versions up to 0.2, none if their file cannot be read."""
        try:
            found = json.loads(read_private(self._older, _MOST_JSON))
            return [
                (key, Measurement.from_json(value))
                for key, by_gpu in found["measurements"].items()
                for value in by_gpu.values()
            ]
        except FileNotFoundError:
            return []
        except (BuildError, OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
            warnings.warn(
                visible(f"E0704: the measurements in {self._older} are not taken over: {error}"), stacklevel=2
            )
            return []

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """Hold the lock for replacing the file."""
        lock = KeyLock.acquire(self.path.with_name(f".{self.path.name}.lock"), wait=True)
        assert lock is not None
        try:
            yield
        finally:
            lock.release()

    @contextlib.contextmanager
    def _usable(self) -> Iterator[None]:
        """Raise BuildError (E0704) for an error of the file system, of SQLite, or of a newer version's database."""
        mend = "set EVT_CACHE_DIR to a directory that you can write, on a disk with space"
        try:
            yield
        except NewerError as error:
            mend = "use that version, or set EVT_CACHE_DIR to another directory"
            raise self._unwritable(str(error), mend) from error
        except (sqlite3.Error, ValueError, OSError) as error:
            raise self._unwritable(_reason(error), mend) from error

    def _unwritable(self, reason: str, mend: str) -> BuildError:
        return BuildError(Diagnostic("E0704", f"measurements cannot be kept in {self.path}: {reason}", help=mend))

    def identity(self) -> tuple[int, ...] | None:
        """Return the identity of the file, which distinguishes it from earlier ones; None if there is no file."""
        try:
            status = self.path.lstat()
        except FileNotFoundError:
            return None
        except OSError as error:
            self._warn((), error.strerror or str(error))
            return None
        return status.st_ino, status.st_mtime_ns, status.st_ctime_ns, status.st_size, status.st_mode

    def _warn(self, identity: tuple[int, ...], reason: str, outcome: str = "are ignored", code: str = "E0704") -> None:
        """Warn once about a file."""
        if identity and _warned.get(self.path) == identity:
            return
        _warned[self.path] = identity
        text = visible(f"the measurements in {self.path} cannot be read, and {outcome}: {reason}")
        warnings.warn(f"{code}: {text}; `evt cache clear` removes them", stacklevel=5)


def _insert(database: sqlite3.Connection, key: str, measurement: Measurement, *, merge: bool = False) -> None:
    origin, gpu = measurement.origin, measurement.gpu
    problem = (key, measurement.target, measurement.program, json.dumps(dict(measurement.sizes)), measurement.call)
    update = "DO UPDATE SET call = excluded.call WHERE excluded.call != ''"
    database.execute(f"INSERT INTO problems VALUES (?, ?, ?, ?, ?) ON CONFLICT (key) {update}", problem)
    if not merge:
        database.execute("DELETE FROM times WHERE key = ? AND gpu = ? AND driver = ?", (key, gpu, origin.driver))
    when = origin.when or datetime.now(timezone.utc).isoformat(timespec="milliseconds")
    for place, each in enumerate(measurement.timings):
        row = (
            key,
            gpu,
            origin.driver,
            each.route,
            each.config,
            place,
            each.ms,
            each.warm_ms,
            each.samples,
            each.kernel,
        )
        more = (origin.who, when, origin.evt or __version__)
        database.execute(f"INSERT OR REPLACE INTO times VALUES ({', '.join('?' * 13)})", (*row, *more))


def _measurement(rows: Sequence[tuple[Any, ...]]) -> Measurement:
    """Return the measurement in the rows of one problem, GPU and driver."""
    _, gpu, driver, *_, who, when, evt, target, program, sizes, call = max(rows, key=lambda row: str(row[10]))
    timings = tuple(Timing(*row[3:9]) for row in rows)
    return Measurement(gpu, target, program, json.loads(sizes), timings, call, Origin(who, when, driver, evt))


def _escaped(text: str) -> str:
    """Return a text that LIKE matches literally."""
    return text.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")


def _reason(error: BaseException) -> str:
    return (error.strerror if isinstance(error, OSError) else "") or str(error)
