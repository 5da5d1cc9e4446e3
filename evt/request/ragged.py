"""Groups of consecutive rows as one program: ``ragged_request(request) -> Request``.

The mode l counts the groups. B and the inputs without rows have one value for each group. The input
:data:`evt.ir.node.OFFSETS` has the ends of the groups.
"""

from __future__ import annotations

from dataclasses import replace

from evt.diagnostics import Diagnostic
from evt.errors import ArgumentError
from evt.ir import Dag, Input
from evt.ir.dtype import I32
from evt.ir.node import OFFSETS, base
from evt.request.request import Request, remembered

#: The ends of groups of rows.
ENDS = Input(OFFSETS, I32, ("l",))


@remembered
def ragged_request(request: Request) -> Request:
    """Return the program of all groups of a grouped program. Raise ArgumentError (E0602)."""
    if OFFSETS in request.dag.input:
        message = f"the program's input `{OFFSETS}` has the name of an argument"
        raise ArgumentError(Diagnostic("E0602", message, help="give the input another name"))
    return replace(request.member, dag=with_groups(request.dag), ragged=True)


def with_groups(dag: Dag) -> Dag:
    """Return a graph whose inputs without rows have the mode l, and that reads the ends of the groups."""
    inputs = (replace(each, modes=(*_of_group(each), *each.modes), batchable=False) for each in dag.inputs)
    return replace(dag, operation="gemm", inputs=(*inputs, ENDS))


def _of_group(value: Input) -> tuple[str, ...]:
    return () if {"m", "l"} & set(map(base, value.modes)) else ("l",)


def selects_ragged(request: Request) -> bool:
    """Return whether the user selected a route for groups of consecutive rows."""
    from evt.plan import ROUTES

    return any(route.name == request.settings.route for route in ROUTES if "ragged" in route.shapes)
