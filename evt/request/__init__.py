"""A program as a value, and what follows from it: plain functions over a frozen :class:`Request`.

In the order of the data: :mod:`given` (reading arguments of the public functions), :mod:`check` (whether a graph is a
program), :mod:`request` (the value), :mod:`make` (from text, or from a graph), :mod:`stored` (what a pickle contains),
:mod:`graphs` (with types, and optimised), :mod:`problem` (the planner's input), :mod:`traced` (what PyTorch's graphs
keep).
"""

from evt.request.graphs import optimised_for, optimised_graph, typed_for, typed_graph
from evt.request.make import LOOP, from_dag, from_text
from evt.request.problem import Shapes, common_signature, grouped_problem, options, packed_problem, problem_sizes
from evt.request.request import Request
from evt.request.traced import Traced, in_digits, read_request, result_type, traced

__all__ = [
    "LOOP",
    "Request",
    "Shapes",
    "Traced",
    "common_signature",
    "from_dag",
    "from_text",
    "grouped_problem",
    "in_digits",
    "optimised_for",
    "optimised_graph",
    "options",
    "packed_problem",
    "problem_sizes",
    "read_request",
    "result_type",
    "traced",
    "typed_for",
    "typed_graph",
]
