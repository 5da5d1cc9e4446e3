"""The notation of layouts, swizzles and tilers, read as trees of integers.

::

    any      ::= swizzle | swizzle "o" int "o" layout | layout
    swizzle  ::= "Sw<" int "," int "," int ">"
    layout   ::= tree ":" tree            shape:stride
               | tree                     a shape alone: compact, the leftmost extent nearest
               | "(" layout "," ... ")"   layouts with strides: their concatenation
    tree     ::= int | "(" tree "," ... ")"
    tiler    ::= layout | tree | "<" tiler "," ... ">"

CuTe's mark of a static integer, as in ``_8``, is skipped. :mod:`parse` makes layouts of the trees, and checks them.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

from evt.diagnostics import Diagnostic, Source, Span
from evt.errors import LayoutError
from evt.layout.tree import MAX_DEPTH, IntTuple

_MAX_TEXT = 10_000
_MAX_DIGITS = 40
_TOKEN = re.compile(r"\s*(Sw|_?[-+]?[0-9]+|[(){}<>:,o])", re.ASCII)
_EXAMPLE = "write for example (8,8):(8,1)"
_Part = TypeVar("_Part")


@dataclass(frozen=True, slots=True)
class Strided:
    """A layout ``shape:stride``."""

    shape: IntTuple
    stride: IntTuple


@dataclass(frozen=True, slots=True)
class Swizzled:
    """A swizzle ``Sw<bits,base,shift>``, or ``swizzle o offset o layout`` if ``layout`` is not None."""

    bits: int
    base: int
    shift: int
    offset: int = 0
    layout: IntTuple | Strided | None = None


#: A tiler: an extent, a layout, or a tuple of tilers.
Tiling: TypeAlias = "int | Strided | tuple[Tiling, ...]"


def read_any(text: str) -> IntTuple | Strided | Swizzled:
    """Return the layout, swizzle or swizzled layout of a text. Raise LayoutError (E0671) for its syntax."""
    reader = _Reader(text)
    result = reader.any()
    reader.end()
    return result


def read_layout(text: str) -> tuple[IntTuple, IntTuple | None]:
    """Return the shape and the stride of a layout's text, None without a stride. Raise LayoutError (E0671)."""
    reader = _Reader(text)
    result = reader.layout()
    reader.end()
    return (result.shape, result.stride) if isinstance(result, Strided) else (result, None)


def read_tiler(text: str) -> Tiling:
    """Return the tiler of a text: a layout, or for each mode an integer or a tiler. Raise LayoutError (E0671)."""
    reader = _Reader(text)
    result = reader.tiler()
    reader.end()
    return result


class _Reader:
    """Recursive descent over the tokens, as deep as trees may be."""

    def __init__(self, text: str) -> None:
        if not isinstance(text, str):
            raise LayoutError(Diagnostic("E0671", f"a text is read, not a {type(text).__name__}", help=_EXAMPLE))
        self._source = Source(text[:_MAX_TEXT], "<layout>")
        self._tokens: list[tuple[str, Span]] = []
        self._next = self._depth = 0
        end = len(text.rstrip())
        if end > _MAX_TEXT:
            raise self._error(f"the text has {end} characters", Span(0, 1), f"{_MAX_TEXT} are read")
        at = 0
        while at < end:
            match = _TOKEN.match(text, at)
            if match is None:
                at += len(text[at:]) - len(text[at:].lstrip())
                raise self._error(f"the character {text[at]!r} has no place in a layout", Span(at, at + 1))
            self._tokens.append((match[1], Span(*match.span(1))))
            at = match.end()
        self._tokens.append(("", Span(end, end + 1)))

    def any(self) -> IntTuple | Strided | Swizzled:
        if self._word != "Sw":
            return self.layout()
        self._take("Sw")
        self._take("<")
        bits, base, shift = self._integer(), self._then(",", self._integer), self._then(",", self._integer)
        self._take(">")
        if not self._word:
            return Swizzled(bits, base, shift)
        offset = self._then("o", self._integer)
        return Swizzled(bits, base, shift, offset, self._then("o", self.layout))

    def tiler(self) -> Tiling:
        if self._word == "<":
            return self._list("<", ">", self.tiler)
        return self.layout()

    def end(self) -> None:
        if self._word:
            raise self._error(f"`{self._word}` stands after the end of the layout")

    def layout(self) -> IntTuple | Strided:
        """Read ``tree``, ``tree:tree`` or a tuple of layouts."""
        start = self._next
        if self._word == "(":
            parts = self._list("(", ")", self.layout)
            layouts = [part for part in parts if isinstance(part, Strided)]
            if layouts and len(layouts) != len(parts):
                message = "some parts of this tuple have strides and some have none"
                raise self._error(message, self._tokens[start][1], "give each a stride, as in (4:1,2:8)")
            if layouts:
                return Strided(tuple(each.shape for each in layouts), tuple(each.stride for each in layouts))
            shape: IntTuple = tuple(part for part in parts if not isinstance(part, Strided))
        else:
            shape = self._integer()
        if self._word != ":":
            return shape
        stride = self._then(":", self._tree)
        return Strided(shape, stride)

    def _tree(self) -> IntTuple:
        return self._list("(", ")", self._tree) if self._word == "(" else self._integer()

    def _list(self, first: str, last: str, part: Callable[[], _Part]) -> tuple[_Part, ...]:
        if self._depth == MAX_DEPTH:
            raise self._error(f"the brackets nest more than {MAX_DEPTH} deep", help="flatten the layout")
        self._depth += 1
        opened = self._tokens[self._next][1]
        self._take(first)
        parts = [part()]
        while self._word == ",":
            parts.append(self._then(",", part))
        if not self._word:
            raise self._error("this bracket is not closed", opened, f"add `{last}`")
        self._take(last)
        self._depth -= 1
        return tuple(parts)

    def _integer(self) -> int:
        word = self._word
        if not word or word[-1] not in "0123456789":
            raise self._error(f"an integer is missing before `{word}`" if word else "an integer is missing at the end")
        if len(word) > _MAX_DIGITS:
            raise self._error(f"an integer of {len(word)} digits", help=f"{_MAX_DIGITS} digits are read")
        self._next += 1
        return int(word.replace("_", ""))

    def _then(self, word: str, part: Callable[[], _Part]) -> _Part:
        self._take(word)
        return part()

    def _take(self, word: str) -> None:
        if self._word != word:
            found = f"found `{self._word}`" if self._word else "the text ends"
            raise self._error(f"expected `{word}`, {found}")
        self._next += 1

    @property
    def _word(self) -> str:
        return self._tokens[self._next][0]

    def _error(self, message: str, span: Span | None = None, help: str = _EXAMPLE) -> LayoutError:
        span = span or self._tokens[self._next][1]
        return LayoutError(Diagnostic("E0671", message, span, label="here", help=help, source=self._source))
