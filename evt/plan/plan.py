"""The plan: everything that a template prints, decided. Frozen; templates decide nothing.

A plan names C++ types and expressions; it holds no graph and no target logic.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from evt.plan.config import Config
from evt.plan.functor import Functor
from evt.plan.target import Target

#: Version of ``evt_arguments`` and ``evt_run``; a library of another version is rebuilt, never called.
ABI = 1

FieldKind = Literal["size", "pointer", "number"]


@dataclass(frozen=True, slots=True)
class Field:
    """One 8-byte member of ``evt_arguments``: a size or stride (int64), a pointer, or a number (double).

    ``tensor`` and ``role`` say what the runtime puts there: ("C", "pointer"), ("C", "m") for the stride of
    mode m in elements, ("alpha", "value"), ("", "k") for an extent, ("", "swizzle") for a scheduler setting.
    """

    name: str
    kind: FieldKind
    tensor: str
    role: str

    @property
    def type(self) -> str:
        """The member's C++ type."""
        return {"size": "std::int64_t", "pointer": "void const*", "number": "double"}[self.kind]


@dataclass(frozen=True, slots=True)
class OperandPlan:
    """A or B as the kernel sees it: C++ element, layout (tag or stride type), alignment in elements."""

    element: str
    layout: str
    alignment: int
    pointer: str
    stride: str
    batch_stride: str
    leading: str


@dataclass(frozen=True, slots=True)
class Node:
    """One visitor node as text: ``kind`` names the macro that prints its type from the other fields.

    ``arguments`` are (member of the node's CUTLASS Arguments, expression that fills it); a node without any has
    none to fill. ``operands`` index earlier nodes.
    """

    kind: str
    name: str
    element: str = ""
    stride: str = ""
    alignment: int = 1
    functor: str = ""
    output: str = ""
    arguments: tuple[tuple[str, str], ...] = ()
    operands: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Tensor:
    """C or D of a collective; ``element`` is ``void`` for a C that is not there."""

    element: str
    layout: str
    alignment: int
    arguments: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Plan:
    """A kernel, ready to print.

    ``headers`` are those of ours (in ``codegen/include/evt``) that it needs; ``program`` and ``description`` are
    comment lines and ``remark`` ends one; ``rows`` and ``columns`` are the modes along the kernel's own rows and
    columns; ``elements_per_access`` is the width of the 2.x epilogue's accesses; ``shared_memory`` is
    estimated, in bytes.
    """

    family: Literal["2x", "3x"]
    target: Target
    config: Config
    program: tuple[str, ...]
    description: str
    remark: str
    rows: str
    columns: str
    headers: tuple[str, ...]
    a: OperandPlan
    b: OperandPlan
    source: Tensor
    destination: Tensor
    functors: tuple[Functor, ...]
    nodes: tuple[Node, ...]
    tree: bool
    fields: tuple[Field, ...]
    shared_memory: int
    elements_per_access: int
    schema: str
