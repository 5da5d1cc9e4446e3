"""What a pickle of a program holds: text and numbers, nothing compiled, and no class of evt's but the program's.

The graph is kept as text, so that a pickle is read by other versions of evt, as long as the form is the same. Functions
of the user's own are not kept, since their meaning is code: they have to be registered where a program is loaded.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from evt.diagnostics import Diagnostic, Source
from evt.errors import ArgumentError, EvtError
from evt.functions import TABLE, Function
from evt.ir import Apply, Dag, format_dag, lower, parse_dag
from evt.ir.convolution import Convolution
from evt.language import parse
from evt.settings import Settings
from evt.version import __version__

#: The form; another one is not read.
FORM = 1


def write_state(
    dag: Dag, settings: Settings, convolution: Convolution | None, grouped: bool, functions: Sequence[Function]
) -> dict[str, object]:
    """Return a program as built-in types."""
    return {
        "form": FORM,
        "evt": __version__,
        "graph": format_dag(dag),
        "source": None if dag.source is None else (dag.source.text, dag.source.name),
        "settings": asdict(settings),
        "convolution": None if convolution is None else asdict(convolution),
        "grouped": grouped,
        "functions": {row.name: (str(row), _digest(row)) for row in functions},
    }


def read_state(state: Mapping[str, Any]) -> tuple[Dag, Settings, Convolution | None, bool]:
    """Return the program that :func:`write_state` wrote.

    Raises ArgumentError: E0613 for what another version wrote that this one does not read, E0657 where a function of
    the user's own is not registered, or with another C++.
    """
    if state.get("form") != FORM:
        raise _unreadable(state, f"its form is {state.get('form')!r}, and this version reads {FORM}")
    _check_functions(state["functions"])
    try:
        geometry = state["convolution"]
        return (
            _graph(state["graph"], state["source"]),
            Settings.of(**state["settings"]),
            None if geometry is None else Convolution(**geometry),
            state["grouped"],
        )
    except (EvtError, LookupError, TypeError, ValueError) as error:
        reason = error.diagnostics[0].message if isinstance(error, EvtError) else str(error)
        raise _unreadable(state, reason) from error


def _graph(text: str, source: tuple[str, str] | None) -> Dag:
    """The graph; from its source, where that still means this graph, so that mistakes are shown in it."""
    dag = parse_dag(text)
    for name in (op.function for op, _ in dag.table if isinstance(op, Apply)):
        if name not in TABLE:
            raise ValueError(f"there is no function `{name}`")
    if source is None:
        return dag
    try:
        lowered = lower(parse(Source(*source)), dag.operation)
    except EvtError:
        lowered = None
    if lowered == dag:
        return lowered
    return replace(dag, source=Source(*source))


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
    """What tells a function's signature and C++ from another's; what it is in PyTorch has no text."""
    return hashlib.sha256(f"{row}\0{row.source}".encode()).hexdigest()[:16]


def _unreadable(state: Mapping[str, Any], reason: str) -> ArgumentError:
    message = f"the program was stored by evt {state.get('evt')}, and evt {__version__} does not read it: {reason}"
    return ArgumentError(Diagnostic("E0613", message, help="make it from its formula, and store it again"))
