"""The content of a pickled program: text and numbers, nothing compiled, and no class of evt's but the program's.

The graph is kept as text, so that other versions of evt can read a pickle of the same form; beside it are the program's
own text, and the place in it of every value. Users' functions are not kept, since their meaning is code: they have to
be registered where a program is loaded.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any, TypeVar

from evt.diagnostics import Diagnostic, Source, Span
from evt.errors import ArgumentError, EvtError
from evt.functions import TABLE, Function
from evt.ir import Apply, Dag, Input, Operand, Output, format_dag, parse_dag
from evt.ir.convolution import Convolution
from evt.ir.node import INFERRED, Inferred
from evt.ir.origin import Foreign, Origin, Place
from evt.settings import Settings
from evt.version import __version__

#: Where a value comes from: its place in the text and the places of the calls that led to it, innermost first; or
#: the name of another graph's node.
_Origin = list[tuple[int, int]] | str | None
_Places = dict[str, list[_Origin]]
_Value = TypeVar("_Value", Operand, Input, Output)

#: The version of the form; others are not read.
FORM = 2


def write_state(
    dag: Dag, settings: Settings, convolution: Convolution | None, grouped: bool, functions: Sequence[Function]
) -> dict[str, object]:
    """Return a program as built-in types."""
    return {
        "form": FORM,
        "evt": __version__,
        "graph": format_dag(dag),
        "places": _write_places(dag),
        "source": None if dag.source is None else (dag.source.text, dag.source.name),
        "settings": asdict(settings),
        "convolution": None if convolution is None else asdict(convolution),
        "grouped": grouped,
        "functions": {row.name: (str(row), _digest(row)) for row in functions},
    }


def read_state(state: Mapping[str, Any]) -> tuple[Dag, Settings, Convolution | None, bool]:
    """Return the program that :func:`write_state` wrote.

    Raise ArgumentError: E0613 for another version's state that this one cannot read, E0657 where a user's function is
    not registered, or has different C++.
    """
    if state.get("form") != FORM:
        raise _unreadable(state, f"its form is {state.get('form')!r}, and this version reads {FORM}")
    _check_functions(state["functions"])
    try:
        geometry = state["convolution"]
        return (
            _graph(state["graph"], state["places"], state["source"]),
            Settings.of(**state["settings"]),
            None if geometry is None else Convolution(**geometry),
            state["grouped"],
        )
    except (EvtError, LookupError, TypeError, ValueError) as error:
        reason = error.diagnostics[0].message if isinstance(error, EvtError) else str(error)
        raise _unreadable(state, reason) from error


def _graph(text: str, places: _Places, source: tuple[str, str] | None) -> Dag:
    """Return the graph, with its text and the places in it where mistakes are shown."""
    dag = parse_dag(text)
    for name in (op.function for op, _ in dag.table if isinstance(op, Apply)):
        if name not in TABLE:
            raise ValueError(f"there is no function `{name}`")
    return _read_places(replace(dag, source=None if source is None else Source(*source)), places)


def _values(dag: Dag) -> tuple[Operand | Input | Output, ...]:
    return *dag.operands, *dag.inputs, *dag.outputs


def _write_places(dag: Dag) -> _Places:
    return {
        "operands": [_write_span(value.span) for value in dag.operands],
        "inputs": [_write_span(value.span) for value in dag.inputs],
        "defaults": [_write_span(value.default_span) for value in dag.inputs],
        "outputs": [_write_span(value.span) for value in dag.outputs],
        "nodes": [_write_origin(origin) for origin in dag.origins],
        "inferred": [" ".join(value.inferred) for value in _values(dag)],
    }


def _read_places(dag: Dag, places: _Places) -> Dag:
    """Return the graph with its stored places. Raise ValueError where they do not match its values."""
    marks: dict[str, tuple[Inferred, ...]] = {
        value.name: tuple(mark for mark in INFERRED if mark in str(stored))
        for value, stored in zip(_values(dag), places["inferred"], strict=True)
    }

    def placed(name: str, values: Iterable[_Value], member: str = "span") -> tuple[_Value, ...]:
        found: Iterable[dict[str, Any]] = (
            {member: place.span if isinstance(place, Place) else None} for place in map(_read_origin, places[name])
        )
        marked = (replace(value, inferred=marks[value.name]) for value in values)
        return tuple(replace(value, **span) for value, span in zip(marked, found, strict=True))

    return replace(
        dag,
        operands=placed("operands", dag.operands),
        inputs=placed("defaults", placed("inputs", dag.inputs), "default_span"),
        outputs=placed("outputs", dag.outputs),
        origins=tuple(origin for _, origin in zip(dag.table, map(_read_origin, places["nodes"]), strict=True)),
    )


def _write_span(span: Span | None) -> _Origin:
    return None if span is None else _write_origin(Place(span))


def _write_origin(origin: Origin | None) -> _Origin:
    match origin:
        case Place(span, calls):
            return [(each.start, each.end) for each in (span, *calls)]
        case Foreign(name):
            return name
    return None


def _read_origin(stored: _Origin) -> Origin | None:
    if stored is None or isinstance(stored, str):
        return None if stored is None else Foreign(stored)
    span, *calls = (Span(start, end) for start, end in stored)
    return Place(span, tuple(calls))


def _check_functions(functions: Mapping[str, tuple[str, str]]) -> None:
    found = []
    for name, (signature, digest) in functions.items():
        row = TABLE.get(name)
        if row is None or not row.source:
            message = f"the program uses the function `{name}`, which is not registered here"
            help_text = f'call evt.function("{signature}", ...) before it is loaded'
            found.append(Diagnostic("E0657", message, help=help_text))
        elif _digest(row) != digest:
            message = f"the program uses another `{name}` than the one that is registered here"
            help_text = f'register the function that it was stored with: evt.function("{signature}", ...)'
            found.append(Diagnostic("E0657", message, help=help_text))
    if found:
        raise ArgumentError(found)


def _digest(row: Function) -> str:
    """Return a digest of a function's signature and C++; its PyTorch meaning has no text."""
    return hashlib.sha256(f"{row}\0{row.source}".encode()).hexdigest()[:16]


def _unreadable(state: Mapping[str, Any], reason: str) -> ArgumentError:
    message = f"the program was stored by evt {state.get('evt')}, and evt {__version__} does not read it: {reason}"
    return ArgumentError(Diagnostic("E0613", message, help="make it from its formula, and store it again"))
