"""Escaping of untrusted text, such as a file's name, for a terminal."""

from __future__ import annotations


def visible(text: str, keep: str = "") -> str:
    """Return the text with unprintable characters escaped, except spaces and ``keep``.

    Unprintable characters are control characters, marks that change the text direction, and bytes that are not UTF-8.
    """
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() or char in keep else _escape(char) for char in text)


def _escape(char: str) -> str:
    return char.encode("unicode_escape").decode("ascii")
