"""The ABI of a kernel: the members of its arguments, in the order in which planning adds them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from typing import Literal

from evt.ir.node import OFFSETS

#: Version of a kernel's arguments and functions; a library of another version is rebuilt, never called.
ABI = 2

FieldKind = Literal["size", "pointer", "number", "integer"]

#: The order of members by kind: pointers and numbers change with every call and come first.
_ORDER: tuple[FieldKind, ...] = ("pointer", "number", "integer", "size")


@dataclass(frozen=True, slots=True)
class Field:
    """One 8-byte member of a kernel's arguments: a size or stride (int64), a pointer, a number (double) or an i64.

    ``tensor`` and ``role`` name the value that the runtime stores there: ("C", "pointer"), ("C", "m") for the stride of
    mode m in elements, ("x", "extent m") for the rows that an index may name, ("alpha", "value"), ("", "k") for an
    extent, ("", "workspace") for the workspace, ("", "swizzle") for a scheduler setting.
    """

    name: str
    kind: FieldKind
    tensor: str
    role: str

    def __str__(self) -> str:
        return self.name


class Fields:
    """The members that a kernel needs; each is added once, when planning first asks for it.

    ``names`` are the names of tensors in the kernel.
    """

    def __init__(self, names: Mapping[str, str], first: Sequence[Field]) -> None:
        self.names = names
        self._members = dict.fromkeys(first)

    @property
    def members(self) -> tuple[Field, ...]:
        """The members in the order of the arguments."""
        return tuple(sorted(self._members, key=lambda each: _ORDER.index(each.kind)))

    def copy(self) -> Fields:
        """Return a copy that grows separately."""
        made = copy(self)
        made._members = dict(self._members)
        return made

    def add(self, field: Field) -> Field:
        self._members.setdefault(field)
        return field

    def pointer(self, tensor: str) -> Field:
        """Return the address of a tensor, or of the one element of a scalar."""
        return self.add(Field(self.names.get(tensor, tensor), "pointer", tensor, "pointer"))

    def stride(self, tensor: str, mode: str) -> Field:
        """Return the stride of a tensor along a mode, in elements."""
        return self.add(Field(f"stride_{mode}_of_{self.names.get(tensor, tensor)}", "size", tensor, mode))

    def varies(self, tensor: str, mode: str) -> Field:
        """Return a member that is not 0 if the call gives a vector along a mode, and 0 if it gives a single value."""
        return self.stride(tensor, mode)

    def extent_of(self, tensor: str, mode: str) -> Field:
        """Return the extent of a tensor's mode that an index selects from."""
        return self.add(Field(f"extent_{mode}_of_{self.names[tensor]}", "size", tensor, f"extent {mode}"))

    def number(self, scalar: str, kind: Literal["number", "integer"] = "number") -> Field:
        """Return the value of a scalar."""
        return self.add(Field(f"value_of_{self.names[scalar]}", kind, scalar, "value"))

    def size(self, role: str) -> Field:
        """Return an extent, or a setting of the scheduler."""
        return self.add(Field(role, "size", "", role))

    def extent(self, mode: str) -> Field:
        """Return the extent of a mode."""
        return self.size(mode)

    def ends(self) -> Field:
        """Return the address of the ends of groups of rows."""
        return self.add(Field("ends", "pointer", OFFSETS, "ends"))

    def workspace(self) -> Field:
        """Return the memory that the kernel works in."""
        return self.add(Field("workspace", "pointer", "", "workspace"))


class GroupFields(Fields):
    """The members of a grouped kernel: a tensor's members are rows of its table, with a word for each group."""

    def __init__(self, names: Mapping[str, str]) -> None:
        table = Field("table", "pointer", "", "table")
        workspace = Field("workspace", "pointer", "", "workspace")
        super().__init__(names, (table, workspace, Field("groups", "size", "", "groups")))
        self._rows = dict.fromkeys(Field(mode, "size", "", mode) for mode in ("m", "n", "k"))

    @property
    def rows(self) -> tuple[Field, ...]:
        """The rows of the table, in order."""
        return tuple(self._rows)

    def copy(self) -> GroupFields:
        made = super().copy()
        assert isinstance(made, GroupFields)
        made._rows = dict(self._rows)
        return made

    def add(self, field: Field) -> Field:
        if not field.tensor:
            return super().add(field)
        self._rows.setdefault(field)
        return field

    def number(self, scalar: str, kind: Literal["number", "integer"] = "number") -> Field:
        """Return the value of a scalar, always a double: the runtime converts an i64 to the i32 of the kernel."""
        return super().number(scalar)

    def extent(self, mode: str) -> Field:
        return next(row for row in self._rows if (row.tensor, row.role) == ("", mode))

    def varies(self, tensor: str, mode: str) -> Field:
        """Return a member for all groups: an input is a vector in every group, or a single value in every group."""
        return self.add(Field(f"{self.names[tensor]}_varies", "size", "", f"varies {tensor}"))


def mangle(inputs: Sequence[str], outputs: Sequence[str]) -> dict[str, str]:
    """Return C++ names for the user's names: prefixed, to avoid keywords and macros, and of bounded length.

    A shortened name is longer than every unshortened name and ends in its position, so no two names are equal.
    """
    names: dict[str, str] = {}
    for prefix, group in (("in", inputs), ("out", outputs)):
        for index, name in enumerate(group):
            short = name if len(name) <= 40 else f"{name[:40]}_{index}"
            names[name] = f"{prefix}_{short}"
    return names
