"""Text from outside, such as a file's name, made fit for a terminal."""

from __future__ import annotations


def visible(text: str, keep: str = "") -> str:
    """The text with what does not print, but spaces and ``keep``, written as escapes: no terminal obeys it.

    That is control characters, marks that turn the direction of text, and bytes of names that are not UTF-8.
    """
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() or char in keep else _escape(char) for char in text)


def _escape(char: str) -> str:
    return char.encode("unicode_escape").decode("ascii")
