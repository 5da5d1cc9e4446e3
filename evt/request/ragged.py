"""Groups of consecutive rows as one program: ``ragged_request(request) -> Request``.

The mode l counts the groups. B and the inputs without rows have one value for each group.
"""

from __future__ import annotations

from dataclasses import replace

from evt.ir import Dag, Input
from evt.ir.node import base
from evt.request.request import Request, remembered


@remembered
def ragged_request(request: Request) -> Request:
    """Return the program of all groups of a grouped program."""
    return replace(request.member, dag=with_groups(request.dag))


def with_groups(dag: Dag) -> Dag:
    """Return a graph whose inputs without rows have the mode l."""
    inputs = tuple(replace(value, modes=("l", *value.modes)) if _has_groups(value) else value for value in dag.inputs)
    return replace(dag, inputs=inputs)


def _has_groups(value: Input) -> bool:
    return not {"m", "l"} & set(map(base, value.modes))


def is_ragged(request: Request) -> bool:
    """Return whether the user selected a route for groups of consecutive rows."""
    from evt.plan import ROUTES

    return any(route.name == request.settings.route for route in ROUTES if "ragged" in route.shapes)
