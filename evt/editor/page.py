"""The content of the playground: each function takes a program and its settings, and returns a JSON document.

The functions need neither PyTorch nor a compiler, so that they run in a browser. Places are offsets in UTF-16 units, in
which browsers count. A document of a program with mistakes has ``diagnostics`` alone.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

from evt.diagnostics import CODES, Diagnostic, Source, Span, page
from evt.editor.completion import complete
from evt.editor.document import Document
from evt.editor.hover import hover
from evt.errors import EvtError, LayoutError
from evt.ir.doubts import doubts
from evt.ir.interface import format_interface
from evt.ir.origin import Place, describe

#: The line before the part of an emitted file that depends on the formula.
_SECTION = "// YOUR EPILOGUE"
_ORIGIN = re.compile(r"\s*// (\d+:\d+ .*)")


class _Places:
    """Conversion between offsets of a text and UTF-16 units."""

    def __init__(self, text: str) -> None:
        self._units = [0]
        for character in text:
            self._units.append(self._units[-1] + (2 if ord(character) > 0xFFFF else 1))

    def units(self, span: Span) -> dict[str, int]:
        start, end = (self._units[min(offset, len(self._units) - 1)] for offset in (span.start, span.end))
        return {"from": start, "to": end}

    def offset(self, units: int) -> int:
        return next((at for at, found in enumerate(self._units) if found >= units), len(self._units) - 1)


def answer(method: str, arguments: str) -> str:
    """Return the document of a function of this module, as JSON; ``arguments`` are JSON too."""
    given = json.loads(arguments)
    try:
        found = METHODS[method](**given)
    except EvtError as error:
        found = {"ok": False, "diagnostics": [_diagnostic(each, given.get("text", "")) for each in error.diagnostics]}
    return json.dumps(found)


def check(text: str, operation: str, dtype: str) -> dict[str, Any]:
    """Return the diagnostics and warnings of a program, and the lines of its interface."""
    from evt.request import typed_graph

    dag = typed_graph(_program(text, operation).request, *_types(text, operation, dtype))
    return {
        "ok": True,
        "diagnostics": [_diagnostic(each, text) for each in doubts(dag)],
        "signature": "\n".join(format_interface(dag)),
    }


def cxx(text: str, operation: str, dtype: str, arch: str) -> dict[str, Any]:
    """Return the C++ of a kernel: the whole file, the part of the formula, and the links between lines and places.

    A link is the first and the last line of a part of the C++, from 0, and the place of its expression.
    """
    from evt.emission import emitted
    from evt.request import optimised_graph

    plan = _program(text, operation).plan(arch, *_types(text, operation, dtype))
    whole = emitted(plan).text
    lines = whole[whole.index(_SECTION) :].split("\n")[2:]
    while lines and not lines[0]:
        lines.pop(0)
    dag, places = optimised_graph(_program(text, operation).request, *_types(text, operation, dtype)), _Places(text)
    known = {describe(each, dag.source): each.site for each in dag.origins if isinstance(each, Place)}
    links = []
    for number, line in enumerate(lines):
        if (match := _ORIGIN.fullmatch(line)) and match[1] in known:
            ends = (at for at in range(number + 1, len(lines)) if not lines[at] or _ORIGIN.fullmatch(lines[at]))
            links.append({"first": number, "last": next(ends, len(lines)) - 1, **places.units(known[match[1]])})
    facts = {"target": plan.target.name, "route": plan.route, "config": plan.config.name}
    return {"ok": True, **facts, "text": "\n".join(lines), "whole": whole, "links": links}


def graph(text: str, operation: str, dtype: str, stage: str) -> dict[str, Any]:
    """Return the drawing of a graph, as SVG."""
    drawing = _program(text, operation).graph(stage, *_types(text, operation, dtype))
    return {"ok": True, "svg": drawing.to("svg")}


def explain(text: str, operation: str, dtype: str, arch: str) -> dict[str, Any]:
    """Return the explanation of the choice of a kernel, short and in detail."""
    explanation = _program(text, operation).explain(arch, *_types(text, operation, dtype))
    return {"ok": True, "text": str(explanation), "details": explanation.details()}


def gradient(text: str, operation: str, dtype: str) -> dict[str, Any]:
    """Return the forward and backward programs of autograd."""
    return {"ok": True, "text": str(_program(text, operation).gradient(*_types(text, operation, dtype)))}


def layout(layout: str) -> dict[str, Any]:
    """Return the drawing of a layout and its properties; an unreadable layout has diagnostics."""
    from evt.layout import Swizzle, draw_svg, is_contiguous, is_injective, parse

    found = parse(layout)
    if isinstance(found, Swizzle):
        remedy = "write `Sw<3,3,3> o 0 o (8,64):(64,1)`"
        raise LayoutError(Diagnostic("E0671", "a swizzle alone has no shape", help=remedy))
    facts = {"size": found.size, "cosize": found.cosize, "injective": is_injective(found)}
    return {"ok": True, "svg": draw_svg(found), "facts": {**facts, "contiguous": is_contiguous(found)}}


def describe_at(text: str, operation: str, offset: int) -> dict[str, Any]:
    """Return the text of the hover at a place, as Markdown, and the place of the word."""
    places = _Places(text)
    found = hover(_document(text, operation), places.offset(offset))
    return {"ok": True} if found is None else {"ok": True, "text": found.text, **places.units(found.span)}


def complete_at(text: str, operation: str, offset: int) -> dict[str, Any]:
    """Return the completions at a place."""
    found = complete(_document(text, operation), _Places(text).offset(offset))
    rows = [{"label": each.label, "type": each.kind, "detail": each.detail, "info": each.text} for each in found]
    return {"ok": True, "completions": rows}


def format_program(text: str, operation: str) -> dict[str, Any]:
    """Return the text in canonical layout, or the text itself if it has syntax errors."""
    return {"ok": True, "text": _document(text, operation).formatted() or text}


def help_page(code: str) -> dict[str, Any]:
    """Return the page of a diagnostic's code, as Markdown."""
    return {"ok": code in CODES, "text": page(code) if code in CODES else ""}


METHODS: Mapping[str, Callable[..., dict[str, Any]]] = {
    each.__name__: each
    for each in (check, cxx, graph, explain, gradient, layout, describe_at, complete_at, format_program, help_page)
}


@lru_cache(maxsize=8)
def _program(text: str, operation: str) -> Any:
    from evt.program import Program

    return Program(Source(text), operation)


@lru_cache(maxsize=8)
def _document(text: str, operation: str) -> Document:
    return Document(Source(text), operation)


def _types(text: str, operation: str, dtype: str) -> tuple[str | None, str | None]:
    """Return the types of A and B: of the header, if the program has one."""
    return (None, None) if _program(text, operation).request.dag.operands else (dtype, dtype)


def _diagnostic(diagnostic: Diagnostic, text: str) -> dict[str, Any]:
    places = _Places(text)
    return {
        "code": diagnostic.code,
        "severity": diagnostic.severity,
        "message": diagnostic.message,
        "help": diagnostic.help,
        "notes": list(diagnostic.notes),
        "label": diagnostic.label,
        **places.units(diagnostic.span or Span(0, 0)),
    }
