"""The inputs and outputs of a program as text: ``format_interface(dag) -> lines``, in the words of the language.

::

    gemm(A: f16*[m, k]*, B: f16*[k, n]*)
    in  alpha: f32*
    in  C: f16[m, n] = 0
    out D: f16*[m, n]*
    * inferred, not written in the program

An asterisk follows an inferred type and inferred modes. A type that depends on a call's operands is omitted if the
operands are unknown.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from evt.ir.convolution import CONVOLUTIONS
from evt.ir.dag import Dag
from evt.ir.dtype import DType
from evt.ir.node import Inferred, Input, Output, written
from evt.ir.number import decimal

MARK = "*"
NOTE = f"{MARK} inferred, not written in the program"


def declaration(name: str, dtype: DType | None = None, modes: Sequence[str] = (), flexible: bool = False) -> str:
    """Return a name with its type and modes, as a program declares it; a scalar has no subscript."""
    return _written(name, dtype, modes, (), flexible)


def format_interface(dag: Dag) -> tuple[str, ...]:
    """Return the lines of a program's interface: the operation, inputs and outputs, and the meaning of the mark."""
    lines = (
        f"{dag.operation}({', '.join(_operands(dag))})",
        *(f"in  {_value(value)}" for value in dag.inputs),
        *(f"out {_value(value)}" for value in dag.outputs),
    )
    return (*lines, NOTE) if any(MARK in line for line in lines) else lines


def in_one_line(dag: Dag, operation: str, operand_modes: Iterable[Sequence[str]]) -> str:
    """Return the interface of a program whose types may be unknown; ``operation`` is its name for the product."""
    operands = _operands(dag) or [
        _operand(dag, name, None, modes, ("modes",)) for name, modes in zip("AB", operand_modes, strict=True)
    ]
    inputs, outputs = (", ".join(map(_value, values)) for values in (dag.inputs, dag.outputs))
    text = f"{operation}({', '.join(operands)}): {inputs}{' ' if inputs else ''}-> {outputs}"
    return f"{text}; {MARK} inferred" if MARK in text else text


def _operands(dag: Dag) -> list[str]:
    return [_operand(dag, each.name, each.dtype, each.modes, each.inferred) for each in dag.operands]


def _operand(dag: Dag, name: str, dtype: DType | None, modes: Sequence[str], inferred: Sequence[Inferred]) -> str:
    """Return A or B as text. In convolutions they have no subscript, because their memory order is fixed."""
    return _written(name, dtype, () if dag.operation in CONVOLUTIONS else modes, inferred)


def _value(value: Input | Output) -> str:
    flexible = isinstance(value, Input) and value.flexible
    text = _written(value.name, value.dtype, value.modes, value.inferred, flexible)
    if isinstance(value, Input) and value.default is not None:
        text += f" = {decimal(value.default)}"
    return text


def _written(
    name: str, dtype: DType | None, modes: Sequence[str], inferred: Sequence[Inferred] = (), flexible: bool = False
) -> str:
    names = ", ".join(written(mode) + "?" * (flexible and mode != "l") for mode in modes)
    kind = f": {dtype}{_mark(inferred, 'type')}" if dtype else ""
    if not modes:  # a scalar; inferred ones are marked once
        return name + (kind or _mark(inferred, "modes"))
    return f"{name}{kind}[{names}]{_mark(inferred, 'modes')}"


def _mark(inferred: Sequence[Inferred], what: Inferred) -> str:
    return MARK if what in inferred else ""
