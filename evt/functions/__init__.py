"""The functions of the language, in one table: name, parameters, meaning, C++, derivatives, facts, text.

Everything that evt knows about a function is its :class:`Function` row: rules and planners name functions, as
``x - x -> 0`` does, but what is true of a function they ask its row.
`codegen/include/evt/functions.hpp` is the C++ of the rows, `functions_fast.hpp` that of their fast variants.
:func:`function` adds a row of the user's own.
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
