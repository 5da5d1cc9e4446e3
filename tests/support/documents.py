"""The documents for users, and the code in them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
#: README and the manual. `docs/first-contribution.md` changes the code, and has its own tests.
DOCUMENTS = [
    ROOT / "README.md",
    *sorted(
        page
        for folder in ("docs", "docs/guides")
        for page in (ROOT / folder).glob("*.md")
        if page.name != "first-contribution.md"
    ),
]
_FENCE = re.compile(
    r"^(?:<!-- (?P<mark>[\w ]+) -->\n)?```(?P<language>\w*)\n(?P<text>.*?)^```$", re.DOTALL | re.MULTILINE
)


class Block(NamedTuple):
    """A fenced block of a document, and the comment before it."""

    place: str
    language: str
    mark: str
    text: str


def blocks(language: str) -> list[Block]:
    """Return the blocks of one language in all documents."""
    return [
        Block(
            f"{page.relative_to(ROOT)}:{text[: found.start('text')].count(chr(10))}",
            language,
            found["mark"] or "",
            found["text"],
        )
        for page in DOCUMENTS
        for text in [page.read_text(encoding="utf-8")]
        for found in _FENCE.finditer(text)
        if found["language"] == language
    ]


def section(page: str, title: str) -> str:
    """Return the text under a heading of the second level."""
    return (ROOT / page).read_text(encoding="utf-8").split(f"\n## {title}\n")[1].split("\n## ")[0]
