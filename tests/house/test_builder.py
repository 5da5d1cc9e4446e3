"""The generated parts of the manual are complete, and the committed ones are up to date."""

from __future__ import annotations

from pathlib import Path

import pytest

from docs.builder.eager import PAGE, with_eager_table
from docs.builder.results import DOCS, PICTURES, Results, derived, load, picture, table


@pytest.mark.parametrize("path", derived(), ids=lambda path: path.name)
def test_tables_and_pictures_show_the_results(path: Path, request: pytest.FixtureRequest) -> None:
    text = derived()[path]
    if request.config.getoption("--update"):
        path.write_text(text, encoding="utf-8")
    assert path.read_text(encoding="utf-8") == text, "`pytest tests/house/test_builder.py --update` writes the file"


def test_the_table_of_eager_numerics_is_the_codes(request: pytest.FixtureRequest) -> None:
    page = PAGE.read_text(encoding="utf-8")
    text = with_eager_table(page)
    if request.config.getoption("--update"):
        PAGE.write_text(text, encoding="utf-8")
    assert text == page, "`pytest tests/house/test_builder.py --update` writes the file"
    assert "| `silu` | `x / (1 + exp(-x))` | the result |" in page


def test_all_results_are_shown() -> None:
    page = (DOCS / "benchmarks.md").read_text(encoding="utf-8")
    for file in (DOCS / "benchmarks").glob("*.json"):
        results = load(file.stem)
        assert f"<!-- results: {file.stem} -->" in page
        assert all(len(row) == len(results.columns) for row in results.rows)
    assert {name for name, *_ in PICTURES.values()} <= {file.stem for file in (DOCS / "benchmarks").glob("*.json")}


def test_a_table_and_a_picture() -> None:
    columns = {"model": "", "evt / eager": ".2f", "kernels": "d"}
    results = Results("Times", "H200", "2026-11-27", "torch", "evt bench", columns, [["a<b", 0.5, 3], ["c", None, 4]])
    text = table(results)
    assert text.startswith(
        "Times on an H200, 2026-11-27: torch, by `evt bench`.\n\n| model | evt / eager | kernels |\n"
    )
    assert text.endswith("| a<b | 0.50 | 3 |\n| c |  | 4 |\n")
    drawn = picture(results, "model", "evt / eager")
    assert drawn.count('class="bar"') == 1
    assert "a&lt;b" in drawn
