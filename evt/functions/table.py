"""The table of rows by name, which grows as users register functions."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence

from evt.functions.activation import ACTIVATIONS
from evt.functions.arithmetic import ARITHMETIC, ROUNDING, WRAPPING
from evt.functions.elementary import ELEMENTARY
from evt.functions.logic import LOGIC
from evt.functions.row import Function


class Table(Mapping[str, Function]):
    """The rows by name, in the order of the docs: a live view that only :meth:`add` changes.

    A change replaces the mappings as a whole, so that another thread sees either the old or the new table.
    """

    __slots__ = ("_aliases", "_rows", "lock")

    def __init__(self, rows: Sequence[Function]) -> None:
        self._rows = {row.name: row for row in rows}
        self._aliases = {alias: row for row in rows for alias in row.aliases}
        #: Held while a row is checked and added.
        self.lock = threading.RLock()

    def __getitem__(self, name: str) -> Function:
        return self._rows[name]

    def __contains__(self, name: object) -> bool:
        return name in self._rows

    def __iter__(self) -> Iterator[str]:
        return iter(self._rows)

    def __len__(self) -> int:
        return len(self._rows)

    def __repr__(self) -> str:
        return f"<the table of {len(self)} functions>"

    def lookup(self, name: str) -> Function | None:
        """Return the row of a name in a program; of several that replaced each other, the last."""
        return self._aliases.get(name) or self._rows.get(name)

    def names(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys((*self._rows, *self._aliases)))

    def add(self, row: Function) -> None:
        """Add a row whose names are free."""
        with self.lock:
            taken = {name for name in (row.name, *row.aliases) if self.lookup(name) is not None}
            if taken:
                raise ValueError(f"there are rows named {', '.join(sorted(taken))}")
            self._aliases = {**self._aliases, **dict.fromkeys(row.aliases, row)}
            self._rows = {**self._rows, row.name: row}

    def supersede(self, row: Function) -> None:
        """Add a row that takes over the names of an earlier one; existing programs keep the earlier row."""
        with self.lock:
            self._aliases = {**self._aliases, **dict.fromkeys(row.aliases, row)}
            self._rows = {**self._rows, row.name: row}

    def remove(self, name: str) -> None:
        """Remove a row. Only tests do this, because kernels may have been compiled with the row."""
        with self.lock:
            self._aliases = {alias: row for alias, row in self._aliases.items() if row.name != name}
            self._rows = {key: row for key, row in self._rows.items() if key != name}


class Names(Sequence[str]):
    """Every name and alias of a table, live."""

    __slots__ = ("_table",)

    def __init__(self, table: Table) -> None:
        self._table = table

    # Sequence's overloads distinguish an index from a slice.
    def __getitem__(self, index):  # type: ignore[no-untyped-def]
        return self._table.names()[index]

    def __iter__(self) -> Iterator[str]:
        return iter(self._table.names())

    def __len__(self) -> int:
        return len(self._table.names())

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and self._table.lookup(name) is not None

    def __repr__(self) -> str:
        return repr(self._table.names())


TABLE = Table((*ARITHMETIC, *ROUNDING, *WRAPPING, *ELEMENTARY, *ACTIVATIONS, *LOGIC))
"""The rows by name, in the order of the docs. Live: a registered function is a row."""

UNARY = {"-": "neg", "!": "logical_not"}
"""The rows of the operators of one operand."""

BINARY = {
    "+": "add",
    "-": "sub",
    "*": "mul",
    "/": "div",
    "**": "pow",
    "<": "lt",
    "<=": "le",
    ">": "gt",
    ">=": "ge",
    "==": "eq",
    "!=": "ne",
    "&&": "logical_and",
    "||": "logical_or",
}
"""The rows of the operators of two operands."""

FUNCTIONS = Names(TABLE)
"""Every name that a program may call, live."""


def lookup(name: str) -> Function | None:
    """Return the row of a name or alias."""
    return TABLE.lookup(name)
