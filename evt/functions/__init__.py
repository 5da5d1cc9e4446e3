"""The functions of the language, in one table: name, parameters, PyTorch definition, C++, derivatives, facts, text.

The :class:`Function` row holds everything that evt knows about a function. Rules and planners may name functions, as in
``x - x -> 0``, but read a function's properties from its row. `codegen/include/evt/functions.hpp` has the C++ of the
rows, `functions_fast.hpp` and `functions_eager.hpp` the C++ of their variants. :func:`function` adds a row for a
user's function.
"""

from __future__ import annotations

from evt.functions.registry import function
from evt.functions.row import TRANSCENDENTAL, Comparison, Fact, Function, Parameter
from evt.functions.table import BINARY, FUNCTIONS, TABLE, UNARY, lookup

__all__ = [
    "BINARY",
    "FUNCTIONS",
    "TABLE",
    "TRANSCENDENTAL",
    "UNARY",
    "Comparison",
    "Fact",
    "Function",
    "Parameter",
    "function",
    "lookup",
]
