"""Spelling: ``closest`` suggests a word for a help text, ``Misspellings`` finds misspelt words of a program."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable

#: Limits of the search, because difflib compares a word with each candidate. Above them nothing is suggested.
_MAX_LENGTH, _MAX_CANDIDATES = 64, 500


def shown(value: object) -> str:
    """Return a value for a message that expected text: the text, or the name of its type."""
    if isinstance(value, str):
        return value
    return "None" if value is None else f"of type {type(value).__name__}"


def quoted(value: object) -> str:
    """Return text in backticks, or the type of another value, to follow "there is no operation"."""
    text = shown(value)
    return f"`{text}`" if isinstance(value, str) or value is None else text


def hint(word: object, candidates: Iterable[str], label: str) -> str:
    """Return a help: the candidate that ``word`` misspells, or else ``label`` and all candidates."""
    names = tuple(candidates)
    guess = closest(str(word), names)
    return f"did you mean `{guess}`?" if guess else f"{label}: {', '.join(names)}"


def closest(word: str, candidates: Iterable[str]) -> str | None:
    """Return the candidate that ``word`` most likely misspells, or None.

    The comparison ignores case and requires a ratio of at least 0.75 from difflib.
    """
    words = sorted(set(candidates))
    for candidate in words:
        if candidate.lower() == word.lower():
            return candidate
    if len(word) > _MAX_LENGTH or len(words) > _MAX_CANDIDATES:
        return None
    matches = difflib.get_close_matches(word, words, n=1, cutoff=0.75)
    return matches[0] if matches else None


class Misspellings:
    """A finder of words that differ from a known word by one letter: missing, added, replaced, or two swapped.

    Only slips inside a run of at least four letters count. Words that differ otherwise (``scale`` and ``scaled``,
    ``scale_a`` and ``scale_b``, ``x1_scale`` and ``x2_scale``, ``gate`` and ``rate``) are different words.
    """

    _RUN = re.compile("[A-Za-z]{4,}")

    def __init__(self, known: Iterable[str]) -> None:
        self._known: dict[str, str] = {}
        for word in known:
            for key in self._keys(word):
                self._known.setdefault(key, word)

    def find(self, word: str) -> str | None:
        found = (self._known.get(key) for key in self._keys(word))
        return next((known for known in found if known is not None and known != word), None)

    def _keys(self, word: str) -> list[str]:
        """Return the word, and the word without each inner letter of its runs. Words one slip apart share a key."""
        if len(word) > _MAX_LENGTH:
            return []
        runs = self._RUN.finditer(word)
        inner = [index for run in runs for index in range(run.start() + 1, run.end() - 1)]
        return [word, *(word[:index] + word[index + 1 :] for index in inner)]
