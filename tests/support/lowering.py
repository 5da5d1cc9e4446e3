"""A text as a graph, or the mistakes in it."""

from __future__ import annotations

import pytest

from evt.diagnostics import Diagnostic
from evt.errors import ProgramError
from evt.ir import Dag, lower, verify
from evt.language import parse


def dag(text: str, operation: str = "gemm") -> Dag:
    lowered = lower(parse(text), operation)
    verify(lowered)
    return lowered


def nodes(text: str) -> list[str]:
    """Return the lines of the graph's nodes."""
    return [line for line in str(dag(text)).splitlines() if line.startswith("%")]


def mistakes(text: str) -> list[Diagnostic]:
    with pytest.raises(ProgramError) as caught:
        dag(text)
    return list(caught.value.diagnostics)


def marked(text: str) -> list[tuple[str, str]]:
    """Each mistake's code and the text that it points at."""
    return [(each.code, text[each.span.start : each.span.end]) for each in mistakes(text) if each.span]


def inputs(text: str) -> dict[str, tuple[str, ...]]:
    return {each.name: each.modes for each in dag(text).inputs}
