"""The functions of the language, in one table: name, parameters, meaning, C++, derivatives, facts, text.

All that evt knows about a function is in its :class:`Function` row: rules and planners name functions, as
``x - x -> 0`` does, but ask the row for what is true of a function.
`codegen/include/evt/functions.hpp` has the C++ of the rows, `functions_fast.hpp` the C++ of their fast variants.
:func:`function` adds a row for a user's function.
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
