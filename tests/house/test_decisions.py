"""The pages of decisions have one form, and their table lists them all."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "docs/decisions"
PAGES = sorted(FOLDER.glob("[0-9]*.md"))


def test_numbers_are_consecutive() -> None:
    assert [page.name[:5] for page in PAGES] == [f"{number:04}-" for number in range(1, len(PAGES) + 1)]
    assert len(PAGES) >= 10


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_has_its_parts(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    number = page.name[:4]
    assert re.match(rf"# {number}: .+\n\nDate: \d{{4}}-\d\d-\d\d", text)
    assert re.findall(r"^## (.*)$", text, re.MULTILINE) == ["Context", "Decision", "Consequences"]
    assert all(part.strip() for part in re.split(r"^## .*$", text, flags=re.MULTILINE))


def test_the_table_has_the_titles_and_dates() -> None:
    rows = re.findall(r"^\| \[(\d+)\]\((.*?)\) \| (.*?) \| (\S+) \|$", (FOLDER / "README.md").read_text(), re.MULTILINE)
    for page, (number, file, title, date) in zip(PAGES, rows, strict=True):
        text = page.read_text(encoding="utf-8")
        assert file == page.name
        assert text.startswith(f"# {number}: {title}\n\nDate: {date}")
