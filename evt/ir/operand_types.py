"""The types of A and B that kernels multiply: ``check_operand_types(dag, operands)``."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from evt.diagnostics import Diagnostic
from evt.ir.convolution import CONVOLUTIONS
from evt.ir.dag import Dag
from evt.ir.dtype import MIXED_OPERANDS, OPERANDS, PACKED_OPERANDS, DType, converts
from evt.ir.node import Operand
from evt.ir.origin import at

#: Pairs of different types that kernels multiply, in words.
MAY_DIFFER = "e4m3 with e5m2, i8 with u8, and a B of 4 or 8 bits with f16 or bf16"


def are_multiplied(a: DType, b: DType, *, convolved: bool) -> bool:
    """Return whether a kernel multiplies operands of two types."""
    return a == b or frozenset({a, b}) in MIXED_OPERANDS or (not convolved and converts(a, b))


def multiplied_type(operands: Sequence[Operand], name: str) -> DType:
    """Return the type that an operand's elements are multiplied as: A's for a B that is converted to it."""
    a, b = operands
    return a.dtype if name == a.name or converts(a.dtype, b.dtype) else b.dtype


def check_operand_types(dag: Dag, operands: Sequence[Operand]) -> Iterable[Diagnostic]:
    """Yield operands of types that no kernel multiplies, or else a pair of types that none multiplies (E0308)."""
    a, b = operands
    multiplied = ((a, OPERANDS), (b, (*OPERANDS, *PACKED_OPERANDS)))
    refused = [operand for operand, types in multiplied if operand.dtype not in types]
    for operand in refused:
        allowed = ", ".join(map(str, OPERANDS))
        message = f"operand `{operand.name}` is {operand.dtype}, which tensor cores do not multiply"
        packed = f"; {operand.dtype} is a type of `{b.name}` alone" if operand.dtype in PACKED_OPERANDS else ""
        yield at(operand.span, dag.source, Diagnostic("E0308", message, help=f"use one of: {allowed}{packed}"))
    if not refused and not are_multiplied(a.dtype, b.dtype, convolved=dag.operation in CONVOLUTIONS):
        message = (
            f"`{a.name}` is {a.dtype} and `{b.name}` is {b.dtype}: the tensor cores do not multiply these two types"
        )
        help_text = f"convert one of them; {MAY_DIFFER} are supported"
        yield at(b.span, dag.source, Diagnostic("E0308", message, help=help_text))
