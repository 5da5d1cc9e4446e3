"""Text from outside, such as a file's name, made safe for a terminal."""

from __future__ import annotations


def visible(text: str, keep: str = "") -> str:
    """Return the text with unprintable characters escaped, except spaces and ``keep``, so that no terminal obeys it.

    These are control characters, marks that change the direction of text, and bytes of names that are not UTF-8.
    """
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() or char in keep else _escape(char) for char in text)


def _escape(char: str) -> str:
    return char.encode("unicode_escape").decode("ascii")
