"""Rounding points of stores: those that outputs of integers and bits imply made explicit, those of floats left out."""

from __future__ import annotations

from evt.ir.dag import TypedDag
from evt.ir.dtype import F32
from evt.ir.node import Cast, Const, Node, Reduce, Store
from evt.optimise.rewrite import TypedBuilder, rewrite


def place_casts(dag: TypedDag) -> TypedDag:
    """``store(x) -> store(i8(x))`` where the output is i8, u8, i32 or b1 and the value is not: it rounds and saturates.

    ``store(f16(x)) -> store(x)`` where the output is f16 and nothing else reads the cast: floats are rounded to
    nearest by the store as well.
    """
    stored = {_only_stored(dag, node) for node in range(len(dag))}

    def rule(builder: TypedBuilder, op: Node, operands: tuple[int, ...]) -> int | None:
        if not isinstance(op, Store):
            return None
        dtype, value = dag.output[op.name].dtype, builder[operands[0]]
        assert dtype is not None
        if dtype.is_float:
            return builder.add(op, builder.arguments(operands[0])[0]) if op.name in stored else None
        if isinstance(value, Const | Reduce) or builder.types[operands[0]].dtype == dtype:
            return None
        return builder.add(op, builder.add(Cast(dtype), operands[0]))

    return rewrite(dag, rule)


def _only_stored(dag: TypedDag, node: int) -> str | None:
    """The output of a store whose value is a rounding of f32 to the output's type that only this store reads."""
    op = dag[node]
    if not isinstance(op, Store):
        return None
    dtype, value = dag.output[op.name].dtype, dag.arguments(node)[0]
    if dtype == F32 or dag[value] != Cast(dtype) or len(dag.users[value]) > 1:  # type: ignore[arg-type]
        return None
    return op.name if dag.types[dag.arguments(value)[0]].dtype.compute == F32 else None
