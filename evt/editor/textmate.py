"""The TextMate grammar, which colours programs in editors: ``textmate_grammar() -> JSON document``.

It is made from the tables of the language, so that it knows every word. ``python -m evt.editor.textmate`` prints it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any

from evt.editor.words import FORMS, KEYWORDS, NAMES
from evt.functions import TABLE
from evt.ir.dtype import BY_NAME
from evt.ir.lower import OPERATIONS

_NAME = r"[A-Za-z_][A-Za-z0-9_]*"
_CALLED = r"(?='*\s*(?:\[[^\]\n]*\])?\s*\()"


def _words(words: Iterable[str]) -> str:
    return rf"\b(?:{'|'.join(sorted(words))})\b"


def _patterns() -> Iterator[tuple[str, str]]:
    """Yield scopes and their patterns. The first pattern that matches at a place decides."""
    yield "comment.line.number-sign.evt", r"#.*$"
    yield "constant.numeric.evt", r"(?:\b[0-9]+\.[0-9]*|\.[0-9]+|\b[0-9]+)(?:[eE][+-]?[0-9]+)?"
    yield "keyword.control.evt", _words(KEYWORDS)
    yield "support.type.evt", _words(BY_NAME)
    yield "keyword.other.operation.evt", rf"(?:^|(?<=;))\s*{_words(OPERATIONS)}(?=\s*\()"
    yield "support.function.evt", _words({*FORMS, *TABLE.names()}) + _CALLED
    yield "entity.name.function.evt", rf"\b{_NAME}{_CALLED}"
    yield "constant.language.evt", _words(["inf"])
    yield "variable.language.evt", _words({*NAMES} - {"inf"})
    yield "variable.other.evt", rf"\b{_NAME}\b"
    yield "keyword.operator.comparison.evt", r"<=|>=|==|!=|<|>"
    yield "keyword.operator.logical.evt", r"&&|\|\||!"
    yield "keyword.operator.arithmetic.evt", r"\*\*|[-+*/%]"
    yield "keyword.operator.derivative.evt", r"'"
    yield "keyword.operator.optional.evt", r"\?"
    yield "keyword.operator.assignment.evt", r"="
    yield "punctuation.separator.evt", r"[,:]"
    yield "punctuation.terminator.evt", r";"
    yield "punctuation.bracket.evt", r"[()\[\]]"


def textmate_grammar() -> dict[str, Any]:
    """Return the grammar as a JSON document."""
    return {
        "name": "evt",
        "scopeName": "source.evt",
        "fileTypes": ["evt"],
        "patterns": [{"name": scope, "match": pattern} for scope, pattern in _patterns()],
    }


if __name__ == "__main__":
    print(json.dumps(textmate_grammar(), indent=2))
