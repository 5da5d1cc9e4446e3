r"""The content of a node's drawing: kind, name, type, and the names of its operand slots.

All text that leaves this module is printable: control characters and line ends are shown as escapes (``\n``,
``\u202e``), so that a format has only its own special characters to escape.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

from evt.functions import TABLE, Fact
from evt.functions.single import round_f32, shortest
from evt.ir import (
    Acc,
    Apply,
    Cast,
    Const,
    Dag,
    Element,
    Extent,
    Feed,
    Index,
    Interleave,
    Load,
    Pick,
    Random,
    Reduce,
    ReduceBlocks,
    Scale,
    Store,
    TypedDag,
)
from evt.ir.dtype import DType
from evt.ir.node import reduced_text, written

Kind = Literal["acc", "load", "const", "apply", "cast", "reduce", "fold", "pick", "index", "random", "store"]


@dataclass(frozen=True, slots=True)
class Colour:
    """The colours of a kind of node; text on ``fill`` is :data:`INK`."""

    fill: str
    line: str


INK = "#0f172a"
QUIET = "#64748b"
PAPER = "#ffffff"

PALETTE: Mapping[Kind, Colour] = MappingProxyType(
    {
        "acc": Colour("#ffedd5", "#ea580c"),
        "load": Colour("#dbeafe", "#2563eb"),
        "const": Colour("#f1f5f9", "#94a3b8"),
        "apply": Colour("#fefce8", "#ca8a04"),
        "cast": Colour("#f3e8ff", "#9333ea"),
        "reduce": Colour("#ffe4e6", "#e11d48"),
        "fold": Colour("#fce7f3", "#db2777"),
        "pick": Colour("#cffafe", "#0891b2"),
        "index": Colour("#e0e7ff", "#4f46e5"),
        "random": Colour("#ecfccb", "#65a30d"),
        "store": Colour("#dcfce7", "#16a34a"),
    }
)


@dataclass(frozen=True, slots=True)
class Box:
    """One node. ``type`` is empty before type inference; ``ports`` name operands whose order matters."""

    kind: Kind
    name: str
    type: str = ""
    default: str = ""
    ports: tuple[str, ...] = ()

    @property
    def title(self) -> str:
        """Name and default: the line of a node whose type is shown separately."""
        return f"{self.name} = {self.default}" if self.default else self.name

    @property
    def label(self) -> str:
        """``relu``, ``alpha: f32 = 1``, ``C: f16[m, n]``, ``0.5``: tensors and scalars with their types."""
        if not self.type or self.kind not in ("acc", "load", "store"):
            return self.title
        separator = "" if self.type.startswith("[") else ": "
        declared = f"{self.name}{separator}{self.type}"
        return f"{declared} = {self.default}" if self.default else declared


def boxes(dag: Dag) -> tuple[Box, ...]:
    """Return the box of every node, by id."""
    return tuple(_box(dag, node) for node in range(len(dag)))


def edges(dag: Dag) -> Iterator[tuple[int, int, int]]:
    """Yield every edge once as (operand, user, slot), ordered by user and slot."""
    for user in range(len(dag)):
        for slot, operand in enumerate(dag.arguments(user)):
            yield operand, user, slot


def heading(dag: Dag) -> str:
    """Return the operation: ``gemm(A: f16[m, k], B: f16[k, n])``."""
    operands = (f"{printable(each.name)}: {_type(each.dtype, each.modes)}" for each in dag.operands)
    return f"{printable(dag.operation)}({', '.join(operands)})" if dag.operands else printable(dag.operation)


def printable(text: str) -> str:
    """Return the text with unprintable characters escaped."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


def _box(dag: Dag, node: int) -> Box:
    inferred = dag.types[node] if isinstance(dag, TypedDag) else None
    # Constants take the type of their operation.
    of_value = _type(inferred.dtype, inferred.modes) if inferred and not inferred.constant else ""
    match dag[node]:
        case Acc(name):
            return Box("acc", "acc" if name == "B" else f"matmul(A, {printable(name)})", of_value)
        case Load(name):
            source = dag.input[name]
            default = "" if source.default is None else _decimal(source.default)
            return Box("load", printable(name), _type(source.dtype, source.modes, source.flexible), default)
        case Const() as constant:
            return Box("const", decimal(constant), of_value)
        case Apply(function):
            row = TABLE[function]
            ordered = len(row.parameters) > 1 and Fact.COMMUTATIVE not in row.facts
            ports = tuple(printable(each.name) for each in row.parameters) if ordered else ()
            return Box("apply", printable(function), of_value, ports=ports)
        case Cast(dtype):
            return Box("cast", f"cast {dtype}", of_value)
        case Reduce(kind, modes):
            return Box("reduce", f"{kind}[{reduced_text(modes)}]", of_value)
        case ReduceBlocks(kind, width):
            return Box("fold", f"{kind}[n%{width}]", of_value)
        case Pick(member, distance):
            name = "odd" if member else "even"
            return Box("pick", name if distance == 1 else f"{name}, {distance} apart", of_value)
        case Interleave(distance):
            name = "interleave"
            return Box("pick", name if distance == 1 else f"{name}, {distance} apart", of_value, ports=("x", "y"))
        case Index(mode):
            return Box("index", f"iota({mode})", of_value)
        case Extent(mode):
            return Box("index", f"size({mode})", of_value)
        case Random():
            return Box("random", "rand", of_value, ports=("seed", "offset"))
        case Element(name):
            return Box("acc", printable(name), of_value)
        case Feed(name):
            operand = next((each for each in dag.operands if each.name == name), None)
            return Box("store", printable(name), _type(operand.dtype, operand.modes) if operand else "")
        case Scale(name):
            return Box("store", f"scale of {printable(name)}", "")
        case Store(name):
            output = dag.output[name]
            return Box("store", printable(name), _type(output.dtype, output.modes))


def _type(dtype: DType | None, modes: Sequence[str], flexible: bool = False) -> str:
    names = (printable(written(mode)) + "?" * (flexible and mode != "l") for mode in modes)
    shape = f"[{', '.join(names)}]" if modes else ""
    return f"{dtype or ''}{shape}"


def decimal(constant: Const) -> str:
    """Return the shortest decimal that reads back as this number: as an f32 if it is one."""
    value = constant.value
    return _decimal(float(shortest(value)) if math.isfinite(value) and round_f32(value) == value else value)


def _decimal(value: float) -> str:
    return repr(value).removesuffix(".0")
