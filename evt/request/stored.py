"""The content of a pickled program: text and numbers, no compiled code, and no class of evt but the program's.

The graph is stored as text, so that other versions of evt can read a pickle of this form. The program's text and each
value's place in it are stored too. Users' functions are not stored, because they are code: they must be registered
before a program is loaded.
"""

from __future__ import annotations

import hashlib
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any, TypeVar

from evt.diagnostics import Diagnostic, Source, Span
from evt.errors import ArgumentError, EvtError
from evt.functions import TABLE, Function
from evt.ir import Apply, Dag, Input, Operand, Output, format_dag, infer, parse_dag
from evt.ir.convolution import CONVOLUTIONS, Convolution
from evt.ir.dtype import F16
from evt.ir.lower import OPERATIONS
from evt.ir.node import INFERRED, OFFSETS, Inferred
from evt.ir.origin import Foreign, Origin, Place
from evt.request.check import check_graph
from evt.settings import Settings
from evt.version import __version__

#: The origin of a value: its place in the text and the places of the calls that led to it, innermost first; or the name
#: of another graph's node.
_Origin = list[tuple[int, int]] | str | None
_Places = dict[str, list[_Origin]]
_Value = TypeVar("_Value", Operand, Input, Output)

#: Exceptions from reading a damaged state.
_DAMAGE = (EvtError, LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError)
#: The version of the form. Other versions are refused.
FORM = 2


def write_state(
    dag: Dag,
    settings: Settings,
    convolution: Convolution | None,
    functions: Sequence[Function],
    grouped: bool = False,
    ragged: bool = False,
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
        **({"ragged": True} if ragged else {}),
        "functions": {row.name: (str(row), _digest(row)) for row in functions},
    }


def read_state(state: object) -> tuple[Dag, Settings, Convolution | None, bool, bool]:
    """Return the program that :func:`write_state` wrote.

    Raise ArgumentError: E0613 for a state that is damaged or has an unknown form, E0657 if a user's function is not
    registered or has different C++.
    """
    if not isinstance(state, Mapping):
        raise unreadable({}, f"it is {type(state).__name__}, not the state of a program")
    if state.get("form") != FORM:
        raise unreadable(state, f"its form is {state.get('form')!r}, and this version reads {FORM}")
    try:
        missing = list(_missing_functions(state["functions"], state["graph"]))
        if not missing:
            return _program(state)
    except _DAMAGE as error:
        reason = error.diagnostics[0].message if isinstance(error, EvtError) else str(error)
        raise unreadable(state, reason or type(error).__name__) from error
    raise ArgumentError(missing)


def _program(state: Mapping[str, Any]) -> tuple[Dag, Settings, Convolution | None, bool, bool]:
    """Return the program of a state. Raise one of :data:`_DAMAGE` for an invalid state."""
    dag, geometry, grouped = parse_dag(state["graph"]), state["convolution"], state["grouped"]
    if dag.operation not in OPERATIONS:
        raise ValueError(f"there is no operation `{dag.operation}`")
    for name in (op.function for op, _ in dag.table if isinstance(op, Apply)):
        if name not in TABLE:
            raise ValueError(f"there is no function `{name}`")
    check_graph(dag)
    modes = OPERATIONS[dag.operation]
    infer(dag, dag.operands or (Operand("A", F16, modes[0]), Operand("B", F16, modes[1])))
    source = None if state["source"] is None else _source(*state["source"])
    placed = _read_places(replace(dag, source=source), state["places"])
    convolution = None if geometry is None else _convolution(dag.operation, geometry)
    if not isinstance(grouped, bool) or (dag.operation in CONVOLUTIONS and (grouped or convolution is None)):
        raise ValueError(f"it is not a program of {dag.operation}")
    ragged = state.get("ragged", False)
    if not isinstance(ragged, bool) or (ragged and (grouped or dag.operation != "gemm" or OFFSETS not in dag.input)):
        raise ValueError("it has no groups of rows")
    return placed, Settings.of(**state["settings"]), convolution, grouped, ragged


def _source(text: object, name: object) -> Source:
    if not isinstance(text, str) or not isinstance(name, str):
        raise TypeError("its source is not a text with a name")
    return Source(text, name)


def _convolution(operation: str, stored: Mapping[str, Any]) -> Convolution:
    """Return the geometry of a convolution from its stored fields. Raise EvtError for an invalid geometry."""
    found = Convolution(**stored)
    left_out = ("operator", "rank", *(name for name, value in stored.items() if value in ((), [])))
    given = {name: value for name, value in stored.items() if name not in left_out}
    if given["padding"] is None:
        given["padding"] = "same"
    if operation not in CONVOLUTIONS or (found.operator, found.rank) != CONVOLUTIONS[operation]:
        raise ValueError(f"its geometry is not one of {operation}")
    return Convolution.of(operation, given)


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
    """Return the graph with its stored places. Raise ValueError if they do not match its values."""
    last = sys.maxsize if dag.source is None else len(dag.source.text)

    def origin(stored: _Origin) -> Origin | None:
        if stored is None or isinstance(stored, str):
            return None if stored is None else Foreign(stored)
        span, *calls = (_read_span(start, end, last) for start, end in stored)
        return Place(span, tuple(calls))

    marks: dict[str, tuple[Inferred, ...]] = {
        value.name: tuple(mark for mark in INFERRED if mark in str(stored))
        for value, stored in zip(_values(dag), places["inferred"], strict=True)
    }

    def placed(name: str, values: Iterable[_Value], member: str = "span") -> tuple[_Value, ...]:
        found: Iterable[dict[str, Any]] = (
            {member: place.span if isinstance(place, Place) else None} for place in map(origin, places[name])
        )
        marked = (replace(value, inferred=marks[value.name]) for value in values)
        return tuple(replace(value, **span) for value, span in zip(marked, found, strict=True))

    return replace(
        dag,
        operands=placed("operands", dag.operands),
        inputs=placed("defaults", placed("inputs", dag.inputs), "default_span"),
        outputs=placed("outputs", dag.outputs),
        origins=tuple(origin for _, origin in zip(dag.table, map(origin, places["nodes"]), strict=True)),
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


def _read_span(start: object, end: object, last: int) -> Span:
    if not (type(start) is type(end) is int and 0 <= start <= end <= last):
        raise ValueError("a place is outside of the text")
    return Span(start, end)


def _missing_functions(functions: Mapping[str, tuple[str, str]], graph: str) -> Iterator[Diagnostic]:
    """Yield the functions that are not registered here as they were when the program was stored."""
    applied = set(re.findall(r"^%\d+ = (\w+)", graph, re.MULTILINE))
    for name, (signature, digest) in functions.items():
        row = TABLE.get(name)
        if name not in applied:
            raise ValueError(f"its graph does not apply `{name}`")
        if row is None or not row.source:
            message = f"the program uses the function `{name}`, which is not registered here"
            help_text = f'call evt.function("{signature}", ...) before it is loaded'
            yield Diagnostic("E0657", message, help=help_text)
        elif _digest(row) != digest:
            message = f"the program uses a `{name}` that differs from the registered one"
            help_text = f'register the function that it was stored with: evt.function("{signature}", ...)'
            yield Diagnostic("E0657", message, help=help_text)


def _digest(row: Function) -> str:
    """Return a digest of a function's signature and C++. Its PyTorch definition has no text."""
    return hashlib.sha256(f"{row}\0{row.source}".encode()).hexdigest()[:16]


def unreadable(state: Mapping[str, Any], reason: str) -> ArgumentError:
    """Return the error (E0613) for a state that cannot be read."""
    message = f"the program was stored by evt {state.get('evt')}, and evt {__version__} cannot read it: {reason}"
    return ArgumentError(Diagnostic("E0613", message, help="make it from its formula, and store it again"))
