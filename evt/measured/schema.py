"""The database of measurements: its tables, and the changes from older versions.

``times`` has one row for each kernel of a problem on a GPU and a driver; ``problems`` has the problem's description.
"""

from __future__ import annotations

import sqlite3

#: The version of the tables. A newer version's database is neither read nor written.
VERSION = 2
#: Marks a SQLite file as a database of measurements.
APPLICATION = 0x65767454

_TABLES = """
CREATE TABLE problems (
    key TEXT PRIMARY KEY, target TEXT NOT NULL, program TEXT NOT NULL, sizes TEXT NOT NULL, call TEXT NOT NULL
) WITHOUT ROWID;
CREATE TABLE times (
    key TEXT NOT NULL REFERENCES problems (key) ON DELETE CASCADE,
    gpu TEXT NOT NULL, driver TEXT NOT NULL, route TEXT NOT NULL, config TEXT NOT NULL,
    place INTEGER NOT NULL, ms REAL NOT NULL CHECK (ms > 0), warm_ms REAL, samples INTEGER NOT NULL,
    kernel TEXT NOT NULL, who TEXT NOT NULL, at TEXT NOT NULL, evt TEXT NOT NULL,
    PRIMARY KEY (key, gpu, driver, route, config)
) WITHOUT ROWID;
CREATE INDEX times_at ON times (at);
"""


class NewerError(Exception):
    """An error for a database of a newer version of evt."""


def check(database: sqlite3.Connection) -> int:
    """Return the version of a database's tables, 0 for an empty file.

    Raise NewerError, or ValueError for a database of another program.
    """
    (tables,) = database.execute("SELECT count(*) FROM sqlite_master").fetchone()
    if not tables:  # asked first: another process may create them all between two statements
        return 0
    (version,) = database.execute("PRAGMA user_version").fetchone()
    (application,) = database.execute("PRAGMA application_id").fetchone()
    if application != APPLICATION:
        raise ValueError("evt did not write it")
    if version > VERSION:
        raise NewerError(f"a newer version of evt wrote it, in form {version}, and this version reads {VERSION}")
    return int(version)


def create(database: sqlite3.Connection) -> None:
    """Create the tables, in the transaction of the caller."""
    for statement in _TABLES.split(";"):
        if statement.strip():
            database.execute(statement)
    database.execute(f"PRAGMA application_id = {APPLICATION}")
    database.execute(f"PRAGMA user_version = {VERSION}")
