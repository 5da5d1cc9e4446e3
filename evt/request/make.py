"""Requests from text and from graphs: ``from_text(source, operation, keywords) -> Request``, ``from_dag(...)``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

from evt.diagnostics import Diagnostic, hint, quoted, shown
from evt.errors import ArgumentError, TargetError
from evt.ir import Dag, lower
from evt.ir.convolution import CONVOLUTIONS, GEOMETRY, Convolution
from evt.ir.dag import prune
from evt.ir.lower import OPERATIONS, unknown_operation
from evt.ir.missing import MISSING_SETTINGS
from evt.language import parse
from evt.request.check import check_graph
from evt.request.given import read_text
from evt.request.graphs import operands_of, typed_for
from evt.request.request import Request
from evt.settings import Settings

#: The grouped route that launches one kernel per group, on every target. The planner knows the other routes.
LOOP = "loop"


def from_text(source: object, operation: object, keywords: Mapping[str, Any], *, grouped: bool = False) -> Request:
    """Return the request of a text. ``keywords`` are the keywords of Settings and of a convolution's geometry.

    Raise TargetError (E0501) for an unknown operation or grouped route, ArgumentError (E0601, E0602, E0607) for
    keywords, and ProgramError.
    """
    settings, geometry = _read_keywords(operation, keywords)
    _check_operation(operation)
    if grouped and settings.route not in (None, LOOP):
        _check_route(settings.route)
    dag = lower(parse(read_text(source)), str(operation))
    if grouped and dag.operation in CONVOLUTIONS:
        message = f"the program's header says {dag.operation}, and groups consist of matrix products"
        raise TargetError(Diagnostic("E0501", message, help="omit the header, or write `gemm`"))
    return _request(dag, settings, geometry, grouped)


def _check_route(name: str) -> None:
    """Raise TargetError (E0501) unless the planner has a grouped route with this name."""
    from evt.plan import ROUTES

    routes = [route.name for route in ROUTES if {"grouped", "ragged"} & {*route.shapes}]
    if name not in routes:
        message = f"there is no grouped route `{name}`"
        raise TargetError(Diagnostic("E0501", message, help=hint(name, [*routes, LOOP], "routes")))


def from_dag(dag: object, keywords: Mapping[str, Any]) -> Request:
    """Return the request of a graph, which holds the operation; see :func:`from_text`.

    Nodes that no output needs are dropped. Raise ProgramError (E0412) for a graph that is not a program.
    """
    if not isinstance(dag, Dag):
        raise ArgumentError(Diagnostic("E0607", f"`dag` is {shown(dag)}; expected a graph of evt.ir.Builder"))
    settings, geometry = _read_keywords(dag.operation, keywords)
    _check_operation(dag.operation)
    check_graph(dag)
    untyped = Dag(**{each.name: getattr(dag, each.name) for each in fields(Dag)})
    return _request(replace(prune(untyped), inputs=dag.inputs), settings, geometry)


def _read_keywords(operation: object, keywords: Mapping[str, Any]) -> tuple[Settings, dict[str, Any]]:
    geometry = {name: value for name, value in keywords.items() if name in GEOMETRY}
    others = {name: value for name, value in keywords.items() if name not in GEOMETRY}
    for name in others:
        if (known := MISSING_SETTINGS.get(name)) is not None:
            message = f"there is no setting `{name}`: {known.why}"
            raise ArgumentError(Diagnostic("E0602", message, help=known.instead))
    convolves = isinstance(operation, str) and operation in CONVOLUTIONS
    return Settings.of(GEOMETRY if convolves else (), **others), geometry


def _check_operation(operation: object) -> None:
    if not isinstance(operation, str) or operation not in OPERATIONS:
        message = f"there is no operation {quoted(operation)}"
        raise TargetError(Diagnostic("E0501", message, help=unknown_operation(shown(operation))))


def _request(dag: Dag, settings: Settings, geometry: Mapping[str, Any], grouped: bool = False) -> Request:
    """Return the request of validated parts. Raise the errors of type inference."""
    convolution = None
    if dag.operation in CONVOLUTIONS:
        convolution = Convolution.of(dag.operation, geometry)
    elif geometry:
        message = f"`{next(iter(geometry))}` is for convolutions, and the operation is {dag.operation}"
        raise ArgumentError(Diagnostic("E0602", message, help="use evt.conv2d or --op conv2d, or omit it"))
    request = Request(dag, settings, convolution, grouped)
    typed_for(request, operands_of(request, None, None))  # its mistakes do not depend on the operands' types
    return request
