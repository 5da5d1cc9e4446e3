"""GPU tests build all their kernels at once, and close with a table of errors."""

from __future__ import annotations

import pytest

ROWS = pytest.StashKey[list[tuple[str, ...]]]()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[ROWS] = []


@pytest.fixture
def record(request: pytest.FixtureRequest):
    """``record(program, family, dtype, size, error)`` adds a row to the closing table."""
    return request.config.stash[ROWS].append


def pytest_terminal_summary(terminalreporter, config: pytest.Config) -> None:
    rows = config.stash[ROWS]
    if rows:
        terminalreporter.section("relative error against the float64 oracle")
        for row in rows:
            terminalreporter.write_line(
                "  ".join(f"{cell!s:<{width}}" for cell, width in zip(row, (34, 7, 5, 30, 40), strict=True))
            )
