"""The request, a program as an immutable value, and the functions over it.

In the order of the data: :mod:`given` reads arguments of the public functions; :mod:`check` validates graphs from
builders; :mod:`request` is the value; :mod:`make` makes it from text or from a graph; :mod:`stored` converts it for
pickles; :mod:`graphs` adds types and optimises; :mod:`shapes` has the extents; :mod:`problem` makes the planner's
input, and is imported on demand, with the planner; :mod:`traced` represents a request in PyTorch's graphs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from evt.request.graphs import STAGES, graph_at, optimised_for, optimised_graph, typed_for, typed_graph
from evt.request.make import LOOP, from_dag, from_text
from evt.request.request import GROUPED, Request
from evt.request.shapes import Shapes, problem_sizes
from evt.request.traced import Traced, in_digits, read_request, result_type, traced

if TYPE_CHECKING:
    from evt.request.problem import common_signature, grouped_problem, options, packed_problem, surveyed

__all__ = [
    "GROUPED",
    "LOOP",
    "STAGES",
    "Request",
    "Shapes",
    "Traced",
    "common_signature",
    "from_dag",
    "from_text",
    "graph_at",
    "grouped_problem",
    "in_digits",
    "optimised_for",
    "optimised_graph",
    "options",
    "packed_problem",
    "problem_sizes",
    "read_request",
    "result_type",
    "surveyed",
    "traced",
    "typed_for",
    "typed_graph",
]


def __getattr__(name: str) -> Any:
    """Return a name of :mod:`problem`, which imports the planner."""
    if name not in ("common_signature", "grouped_problem", "options", "packed_problem", "surveyed"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from evt.request import problem

    return getattr(problem, name)
