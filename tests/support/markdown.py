"""The links and headings of Markdown texts."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

FENCE = re.compile(r"^ *(```|~~~).*?^ *\1 *$", re.DOTALL | re.MULTILINE)
INDENTED = re.compile(r"^(?: {4}|\t).*$", re.MULTILINE)
CODE = re.compile(r"(`+)(?!`).+?(?<!`)\1(?!`)", re.DOTALL)
INLINE = re.compile(r"\[[^\]]*\]\(\s*<?([^)\s>]+)>?(?:\s+\"[^\"]*\")?\s*\)")
DEFINITION = re.compile(r"^ {0,3}\[[^\]]+\]:\s+<?(\S+?)>?\s*$", re.MULTILINE)


def prose(text: str) -> str:
    """Return a document without its code: brackets in formulas are no links."""
    return CODE.sub("", INDENTED.sub("", FENCE.sub("", text)))


def targets(text: str) -> Iterator[str]:
    """Yield the targets of the links and images of a document."""
    text = prose(text)
    yield from INLINE.findall(text)
    yield from DEFINITION.findall(text)


def anchors(text: str) -> set[str]:
    """Return the anchors that GitHub gives to the headings of a document."""
    found: set[str] = set()
    seen: Counter[str] = Counter()
    for heading in re.findall(r"^#{1,6} +(.+?)(?: +#+)? *$", FENCE.sub("", text), re.MULTILINE):
        shown = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        slug = re.sub(r"[^\w\- ]", "", shown.lower()).replace(" ", "-")
        found.add(f"{slug}-{seen[slug]}" if seen[slug] else slug)
        seen[slug] += 1
    return found | set(re.findall(r"<a (?:id|name)=\"([^\"]+)\"", text))
