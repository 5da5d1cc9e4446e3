"""The types of A and B that kernels multiply: ``check_operand_types(dag, operands)``."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from evt.diagnostics import Diagnostic
from evt.ir.convolution import CONVOLUTIONS
from evt.ir.dag import Dag
from evt.ir.dtype import MIXED_OPERANDS, OPERANDS, DType, converts
from evt.ir.node import Operand
from evt.ir.origin import at


def are_multiplied(a: DType, b: DType, *, convolved: bool) -> bool:
    """Return whether a kernel multiplies operands of two types."""
    return a == b or frozenset({a, b}) in MIXED_OPERANDS or (not convolved and converts(a, b))


def check_operand_types(dag: Dag, operands: Sequence[Operand]) -> Iterable[Diagnostic]:
    """Yield operands of types that no kernel multiplies (E0308)."""
    for operand in operands:
        if operand.dtype not in OPERANDS:
            allowed = ", ".join(map(str, OPERANDS))
            message = f"operand `{operand.name}` is {operand.dtype}, which tensor cores do not multiply"
            yield at(operand.span, dag.source, Diagnostic("E0308", message, help=f"use one of: {allowed}"))
    a, b = operands
    if not are_multiplied(a.dtype, b.dtype, convolved=dag.operation in CONVOLUTIONS):
        message = (
            f"`{a.name}` is {a.dtype} and `{b.name}` is {b.dtype}: the tensor cores do not multiply these two types"
        )
        help_text = "convert one of them; e4m3 with e5m2, i8 with u8, and a B of 8 bits with f16 or bf16 are supported"
        yield at(b.span, dag.source, Diagnostic("E0308", message, help=help_text))
