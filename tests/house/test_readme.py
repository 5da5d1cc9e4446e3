"""The front page is short, and leads to everything else."""

from __future__ import annotations

import json
import re

from tests.support.documents import ROOT, blocks

README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_it_is_a_front_page() -> None:
    assert README.count("\n") <= 200
    assert len([block for block in blocks("python") if block.place.startswith("README")]) == 4
    first = README.index("\n## Examples")
    assert all(README.index(command) < first for command in ("pip install", "make demo", "make test"))


def test_it_shows_a_picture() -> None:
    (picture,) = re.findall(r"^!\[.+\]\((\S+)\)$", README, re.MULTILINE)
    assert (ROOT / picture).read_text(encoding="utf-8").startswith("<svg")


def test_the_picture_is_of_the_card_of_the_results() -> None:
    results = json.loads((ROOT / "docs/benchmarks/models.json").read_text(encoding="utf-8"))
    assert f"on an {results['card']}](docs/images/speed.svg)" in README


def test_every_page_of_the_manual_is_reached() -> None:
    """From README by links, in at most two steps."""
    seen, pages = set(), {"README.md"}
    for _ in range(2):
        seen |= pages
        pages = {link for page in pages for link in links(page)} - seen
    manual = {
        str(page.relative_to(ROOT)) for folder in ("docs", "docs/guides") for page in (ROOT / folder).glob("*.md")
    }
    assert manual - seen - pages - {"docs/index.md"} == set()


def links(page: str) -> set[str]:
    """Return the Markdown files that a page links to, relative to the root."""
    if not page.endswith(".md"):
        return set()
    found = re.findall(r"\]\(([\w./-]+\.md)(?:#[\w-]+)?\)", (ROOT / page).read_text(encoding="utf-8"))
    return {str((ROOT / page).parent.joinpath(link).resolve().relative_to(ROOT)) for link in found}
