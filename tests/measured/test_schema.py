"""The form of the database."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import pytest

from evt.measured import schema


@pytest.mark.parametrize("after", range(4))
def test_a_database_that_another_process_creates_meanwhile_is_of_evt(tmp_path: Path, after: int) -> None:
    """Its tables come in one transaction, between any two statements of the check."""

    class Database(sqlite3.Connection):
        left = after

        def execute(self, *given: Any) -> sqlite3.Cursor:
            if Database.left == 0:
                with sqlite3.connect(path) as other:
                    schema.create(other)
            Database.left -= 1
            return super().execute(*given)

    path = tmp_path / "tuning.db"
    assert schema.check(sqlite3.connect(path, factory=Database)) in (0, schema.VERSION)
