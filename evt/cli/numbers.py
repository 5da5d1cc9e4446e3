"""The numbers of the command line: sizes, shapes, and the geometry of a convolution."""

from __future__ import annotations

import re
from typing import Any

import click
from click.shell_completion import CompletionItem

_LARGEST = 2**31 - 1
_NUMBER, _NUMBER_OR_PAIR = r"[0-9]{1,18}", r"[0-9]{1,18}(?::[0-9]{1,18})?"


class Numbers(click.ParamType):  # type: ignore[type-arg]  # generic since click 8.4
    """Whole numbers: ``1``, or ``1,2``, one for each dimension.

    ``words`` are also accepted, and ``0:1,2:1`` if ``pairs`` is set.
    """

    name = "numbers"

    def __init__(self, *, words: tuple[str, ...] = (), pairs: bool = False) -> None:
        self._words, self._pairs = words, pairs

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        return [CompletionItem(word) for word in self._words if word.startswith(incomplete)]

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        text = str(value).strip()
        if text in self._words:
            return text
        parts = [part.strip() for part in text.split(",")]
        if not all(re.fullmatch(_NUMBER_OR_PAIR if self._pairs else _NUMBER, part) for part in parts):
            examples = ["1", "1,2", *self._words, *["0:1,2:1"] * self._pairs]
            self.fail(
                f"{value!r} is not valid; write for example {', '.join(examples[:-1])} or {examples[-1]}.", param, ctx
            )
        if ":" in text:
            pairs = (part.partition(":") for part in parts)
            return tuple((int(before), int(after or before)) for before, _, after in pairs)
        numbers = tuple(map(int, parts))
        return numbers[0] if len(numbers) == 1 else numbers


class Dims(click.ParamType):  # type: ignore[type-arg]  # generic since click 8.4
    """A shape: ``2,64,28,28``."""

    name = "dims"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, ...]:
        if isinstance(value, tuple):
            return value
        parts = [part.strip() for part in str(value).split(",")]
        if not all(re.fullmatch(_NUMBER, part) and 0 < int(part) <= _LARGEST for part in parts):
            self.fail(f"{value!r} is not a shape; write for example 2,64,28,28.", param, ctx)
        return tuple(map(int, parts))


class Extent(click.ParamType):  # type: ignore[type-arg]  # generic since click 8.4
    """An extent, ``128``, or one for each group, ``128,64,0``. A single extent is not 0."""

    name = "extent"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int | tuple[int, ...]:
        if isinstance(value, int | tuple):
            return value
        parts = [part.strip() for part in str(value).split(",")]
        if not all(re.fullmatch(r"-?[0-9]{1,100}", part) for part in parts):
            self.fail(f"{value!r} is not a valid integer; for groups, write for example 128,64,0.", param, ctx)
        numbers = tuple(map(int, parts))
        least = 1 if len(numbers) == 1 else 0
        for number in numbers:
            if not least <= number <= _LARGEST:
                self.fail(f"{number} is not in the range {least}<=x<={_LARGEST}.", param, ctx)
        return numbers if len(numbers) > 1 else numbers[0]
