"""A graph as a program's text: ``formula(dag) -> str``, what a user could have written.

A value that is read once stands where it is read, others have names, ``v1``, ``v2``.
"""

from __future__ import annotations

from evt.functions import TABLE
from evt.ir.dag import Dag
from evt.ir.dtype import DType
from evt.ir.node import (
    Acc,
    Apply,
    Cast,
    Const,
    Element,
    Extent,
    Feed,
    Fold,
    Index,
    Input,
    Interleave,
    Load,
    Output,
    Pick,
    Random,
    Reduce,
    Store,
    shown,
)
from evt.ir.number import decimal

#: Functions that are written as operators: the symbol, and how tightly it binds.
_OPERATORS = {
    "logical_or": ("||", 1),
    "logical_and": ("&&", 2),
    "lt": ("<", 3),
    "le": ("<=", 3),
    "gt": (">", 3),
    "ge": (">=", 3),
    "eq": ("==", 3),
    "ne": ("!=", 3),
    "add": ("+", 4),
    "sub": ("-", 4),
    "mul": ("*", 5),
    "div": ("/", 5),
}
_ATOM = 9


def formula(dag: Dag) -> str:
    """Return the program's text, with a header if the graph declares its operands."""
    return "\n".join(_Printer(dag).lines())


class _Printer:
    def __init__(self, dag: Dag) -> None:
        self.dag = dag
        self.names: dict[int, str] = {}
        reads = [0] * len(dag)
        for _, operands in dag.table:
            for operand in operands:
                reads[operand] += 1
        taken = {*dag.input, *dag.output}
        for node, count in enumerate(reads):
            if count > 1 and dag.arguments(node):
                name = next(f"v{i}" for i in range(1, len(dag) + len(taken) + 1) if f"v{i}" not in taken)
                taken.add(name)
                self.names[node] = name

    def lines(self) -> list[str]:
        dag, lines = self.dag, []
        if dag.operands:
            operands = ", ".join(f"{each.name}: {each.dtype}[{shown(each.modes)}]" for each in dag.operands)
            lines.append(f"{dag.operation}({operands})")
        declared = [_declared(each) for each in dag.inputs if not each.batchable]  # others need no declaration
        lines += [f"in {', '.join(declared)}"] if declared else []
        lines.append(f"out {', '.join(map(_declared, dag.outputs))}")
        for node, (op, _) in enumerate(dag.table):
            if isinstance(op, Store):
                lines.append(f"{_target(dag.output[op.name])} = {self.read(dag.arguments(node)[0], 0)}")
            elif isinstance(op, Feed):
                lines.append(f"{op.name} = {self.read(dag.arguments(node)[0], 0)}")
            elif node in self.names:
                lines.append(f"{self.names[node]} = {self.write(node)[0]}")
        return lines

    def read(self, node: int, binding: int) -> str:
        """Return a value where something reads it that binds so tightly."""
        if node in self.names:
            return self.names[node]
        text, mine = self.write(node)
        return text if mine >= binding else f"({text})"

    def write(self, node: int) -> tuple[str, int]:
        """Return a value's text, and how tightly its outermost operator binds."""
        op, operands = self.dag[node], self.dag.arguments(node)

        def call(name: str, *more: object) -> tuple[str, int]:
            return f"{name}({', '.join([*(self.read(each, 0) for each in operands), *map(str, more)])})", _ATOM

        match op:
            case Acc():
                return "acc", _ATOM
            case Element(name):
                return name, _ATOM
            case Load(name):
                return name, _ATOM
            case Const():
                return _number(op.value)
            case Apply("neg"):
                return f"-{self.read(operands[0], 7)}", 6
            case Apply(function) if function in _OPERATORS:
                symbol, binding = _OPERATORS[function]
                left, right = self.read(operands[0], binding + (binding == 3)), self.read(operands[1], binding + 1)
                return f"{left} {symbol} {right}" if binding < 5 else f"{left}{symbol}{right}", binding
            case Apply("pow") if isinstance(self.dag[operands[1]], Const):
                return f"{self.read(operands[0], _ATOM)}**{self.read(operands[1], _ATOM)}", 8
            case Apply("logical_not"):
                return f"!{self.read(operands[0], 7)}", 2
            case Apply(function):
                return call(TABLE[function].name)
            case Cast(dtype):
                return call(str(dtype))
            case Reduce(kind, modes):
                return call(f"{kind}[{', '.join(modes)}]")
            case Fold(kind, width):
                return call(f"{kind}[n%{width}]")
            case Pick(member, block):
                return call(("even", "odd")[member], *((block,) if block > 1 else ()))
            case Interleave(block):
                return call("interleave", *((block,) if block > 1 else ()))
            case Index(mode):
                return f"iota({mode})", _ATOM
            case Extent(mode):
                return f"size({mode})", _ATOM
            case Random():
                return call("rand")
            case Store() | Feed():
                raise ValueError("a statement has no value")


def _number(value: float) -> tuple[str, int]:
    text = decimal(value)
    return text, 6 if text.startswith("-") else _ATOM


def _declared(value: Input | Output) -> str:
    dtype: DType | None = value.dtype
    modes = [
        f"{mode}?" if isinstance(value, Input) and value.flexible and mode != "l" else mode for mode in value.modes
    ]
    text = f"{value.name}" + (f": {dtype}" if dtype is not None else "")
    text += f"[{shown(modes)}]" if modes or isinstance(value, Input) else ""
    if isinstance(value, Input) and value.default is not None:
        text += f" = {_number(value.default)[0]}"
    return text


def _target(output: Output) -> str:
    return f"{output.name}[{shown(output.modes)}]" if output.is_indexed else output.name
