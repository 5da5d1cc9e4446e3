"""A graph as a program's text: ``formula(dag) -> str``, in the user's language.

A value that is read once is written where it is read; other values get the names ``v1``, ``v2``...
"""

from __future__ import annotations

from itertools import count
from typing import TypeAlias

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
    Index,
    Input,
    Interleave,
    Load,
    Output,
    Pick,
    Random,
    Reduce,
    ReduceBlocks,
    Scale,
    Store,
    reduced_text,
    shown,
)
from evt.ir.number import decimal

#: Functions that are written as operators: the symbol and its precedence.
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

#: Parts of a text: words, and values with the precedence of their reader.
_Parts: TypeAlias = list["str | tuple[int, int]"]


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
        free = (name for number in count(1) if (name := f"v{number}") not in taken)
        for node, readers in enumerate(reads):
            if readers > 1 and dag.arguments(node):
                self.names[node] = next(free)

    def lines(self) -> list[str]:
        dag, lines = self.dag, []
        if dag.operands:
            operands = ", ".join(f"{each.name}: {each.dtype}[{shown(each.modes)}]" for each in dag.operands)
            lines.append(f"{dag.operation}({operands})")
        declared = [_declared(each) for each in dag.inputs if not each.batchable]  # other inputs need no declaration
        lines += [f"in {', '.join(declared)}"] if declared else []
        lines.append(f"out {', '.join(map(_declared, dag.outputs))}")
        for node, (op, _) in enumerate(dag.table):
            if isinstance(op, Store):
                lines.append(f"{_target(dag.output[op.name])} = {self.read(dag.arguments(node)[0], 0)}")
            elif isinstance(op, Feed) and op.name not in dag.scales:
                lines.append(f"{op.name} = {self.read(dag.arguments(node)[0], 0)}")
            elif isinstance(op, Scale):
                element = self.read(dag.arguments(dag.feeds[op.name])[0], 6) if op.name in dag.feeds else op.name
                lines.append(f"{op.name} = {self.read(dag.arguments(node)[0], 5)}*{element}")
            elif node in self.names:
                lines.append(f"{self.names[node]} = {self.text(self.write(node)[0])}")
        return lines

    def read(self, node: int, binding: int) -> str:
        """Return a value as text for a reader of this precedence."""
        return self.text([(node, binding)])

    def text(self, parts: _Parts) -> str:
        """Return the text of these parts, iteratively, because values may nest thousands deep."""
        words: list[str] = []
        stack = parts[::-1]
        while stack:
            part = stack.pop()
            if isinstance(part, str):
                words.append(part)
            elif part[0] in self.names:
                words.append(self.names[part[0]])
            else:
                inner, mine = self.write(part[0])
                stack += (inner if mine >= part[1] else ["(", *inner, ")"])[::-1]
        return "".join(words)

    def write(self, node: int) -> tuple[_Parts, int]:
        """Return the parts of a value's text, and the precedence of its outermost operator."""
        op, operands = self.dag[node], self.dag.arguments(node)

        def call(name: str, *more: object) -> tuple[_Parts, int]:
            arguments: _Parts = [*((operand, 0) for operand in operands), *map(str, more)]
            parts: _Parts = []
            for argument in arguments:
                parts += [", ", argument]
            return [f"{name}(", *parts[1:], ")"], _ATOM

        def word(text: str, binding: int = _ATOM) -> tuple[_Parts, int]:
            return [text], binding

        match op:
            case Acc("B"):
                return word("acc")
            case Acc(name):
                return word(f"matmul(A, {name})")
            case Element(name) | Load(name):
                return word(name)
            case Const():
                return word(*_number(op.value))
            case Apply("neg"):
                return ["-", (operands[0], 7)], 6
            case Apply(function) if function in _OPERATORS:
                symbol, binding = _OPERATORS[function]
                between = f" {symbol} " if binding < 5 else symbol
                return [(operands[0], binding + (binding == 3)), between, (operands[1], binding + 1)], binding
            case Apply("pow") if isinstance(self.dag[operands[1]], Const):
                return [(operands[0], _ATOM), "**", (operands[1], _ATOM)], 8
            case Apply("logical_not"):
                return ["!", (operands[0], 7)], 2
            case Apply(function):
                return call(TABLE[function].name)
            case Cast(dtype):
                return call(str(dtype))
            case Reduce(kind, modes):
                return call(f"{kind}[{reduced_text(modes)}]")
            case ReduceBlocks(kind, width):
                return call(f"{kind}[n%{width}]")
            case Pick(member, block):
                return call(("even", "odd")[member], *((block,) if block > 1 else ()))
            case Interleave(block):
                return call("interleave", *((block,) if block > 1 else ()))
            case Index(mode):
                return word(f"iota({mode})")
            case Extent(mode):
                return word(f"size({mode})")
            case Random():
                return call("rand")
            case Store() | Feed() | Scale():
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
