"""The request, a program as an immutable value, and the functions over it.

In the order of the data: :mod:`given` reads arguments of the public functions; :mod:`check` validates graphs from
builders; :mod:`request` is the value; :mod:`make` makes it from text or from a graph; :mod:`stored` converts it for
pickles; :mod:`graphs` adds types and optimises; :mod:`problem` makes the planner's input; :mod:`traced` represents it
in PyTorch's graphs.
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
