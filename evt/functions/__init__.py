"""The functions of the language, in one table: name, parameters, meaning, C++, algebraic facts, text.

Everything that evt knows about a function is its :class:`Function` row; no other module names one.
`codegen/include/evt/functions.hpp` is the C++ of the rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from evt.functions.activation import ACTIVATIONS
from evt.functions.arithmetic import ARITHMETIC, ELEMENTARY
from evt.functions.function import Fact, Function, Parameter

TABLE: Mapping[str, Function] = MappingProxyType({row.name: row for row in (*ARITHMETIC, *ELEMENTARY, *ACTIVATIONS)})
"""The rows by name, in the order of the docs."""

_ALIASES = {alias: row for row in TABLE.values() for alias in row.aliases}

FUNCTIONS: tuple[str, ...] = (*TABLE, *_ALIASES)
"""Every name that a program may call."""


def lookup(name: str) -> Function | None:
    """The row of a name or alias."""
    return TABLE.get(name) or _ALIASES.get(name)


__all__ = ["FUNCTIONS", "TABLE", "Fact", "Function", "Parameter", "lookup"]
