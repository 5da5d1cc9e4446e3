"""A program as a value, and what follows from it: plain functions over a frozen :class:`Spec`.

In the order of the data: :mod:`given` (reading arguments of the public functions), :mod:`check` (whether a graph is a
program), :mod:`spec` (the value), :mod:`make` (from text, or from a graph), :mod:`stored` (what a pickle contains),
:mod:`graphs` (with types, and optimised), :mod:`problem` (the planner's input), :mod:`traced` (what PyTorch's graphs
keep).
"""

from evt.spec.graphs import optimised_for, optimised_graph, typed_for, typed_graph
from evt.spec.make import LOOP, from_dag, from_text
from evt.spec.problem import Shapes, common_signature, grouped_problem, options, packed_problem, problem_sizes
from evt.spec.spec import Spec
from evt.spec.traced import Traced, in_digits, read_spec, result_type, traced

__all__ = [
    "LOOP",
    "Shapes",
    "Spec",
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
    "read_spec",
    "result_type",
    "traced",
    "typed_for",
    "typed_graph",
]
