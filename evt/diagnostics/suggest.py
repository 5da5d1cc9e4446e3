"""Spelling suggestions."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def closest(word: str, candidates: Iterable[str]) -> str | None:
    """The candidate that ``word`` most likely misspells, or None.

    Case differences count for nothing; otherwise difflib's ratio has to reach 0.75.
    """
    words = sorted(set(candidates))
    for candidate in words:
        if candidate.lower() == word.lower():
            return candidate
    if len(word) > 64:
        return None
    matches = difflib.get_close_matches(word, words, n=1, cutoff=0.75)
    return matches[0] if matches else None
