"""Rounding points of stores and operands: made explicit for integers and bits, removed for floats."""

from __future__ import annotations

from evt.ir.dag import TypedDag
from evt.ir.dtype import B1, BF16, BOOL, E4M3, E5M2, F32, F64, I32, U8, DType
from evt.ir.node import Cast, Const, Element, Feed, Reduce, Store
from evt.ir.operand_types import multiplied_type
from evt.optimise.rewrite import TypedBuilder, on, rewrite


def place_casts(dag: TypedDag) -> TypedDag:
    """Place the casts that stores imply.

    ``store(x) -> store(i8(x))`` if the output is i8, u8, i32 or b1 and the value is not: the cast rounds and saturates.
    ``store(x) -> store(u8(b1(x)))`` if the output is bool, whose bytes are 0 and 1. ``store(2) -> store(f64(2))``,
    likewise for i32: a stored constant would otherwise be an f32 in the kernel. ``store(x) -> store(e5m2(x))`` for an
    e5m2 that is stored as it was loaded: it may be infinite. ``store(x) -> store(f32(x))`` if the output is bf16 or an
    8-bit float and x an integer or a truth value: CUTLASS truncates integers to bf16, and converts to 8-bit floats four
    at a time, in which its arrays of bool are packed.

    ``store(f16(x)) -> store(x)`` if the output is f16 and nothing else reads the cast: the store also rounds floats to
    nearest. An operand's feed into the product is treated likewise, with the type that it is multiplied as. An
    unchanged operand needs no feed: ``feed A(A) ->`` nothing.
    """
    stored = {_only_stored(dag, node) for node in range(len(dag))}

    @on(Store, Feed)
    def rule(builder: TypedBuilder, op: Store | Feed, operands: tuple[int, ...]) -> int | None:
        dtype, value = _dtype(dag, op), builder[operands[0]]
        if dtype == BOOL:
            return None if isinstance(value, Reduce) else _byte(builder, op, operands[0])
        if isinstance(op, Feed) and value == Element(op.name):
            return operands[0]
        if isinstance(value, Const):
            narrow = dtype.is_float and (dtype != F64 or builder.default == F64)
            return None if narrow else builder.add(op, builder.add(Cast(dtype), operands[0]))
        if dtype == E5M2 == builder.types[operands[0]].dtype and not isinstance(value, Cast):
            return builder.add(op, builder.add(Cast(dtype), operands[0]))
        if dtype.is_float and op in stored:
            return builder.add(op, builder.arguments(operands[0])[0])
        whole = builder.types[operands[0]].dtype.compute in (I32, B1) and not isinstance(value, Reduce)
        if isinstance(op, Store) and dtype in (BF16, E4M3, E5M2) and whole:
            return builder.add(op, builder.add(Cast(F32), operands[0]))
        if dtype.is_float:
            return None
        if isinstance(value, Reduce) or builder.types[operands[0]].dtype == dtype:
            return None
        return builder.add(op, builder.add(Cast(dtype), operands[0]))

    return rewrite(dag, rule)


def _byte(builder: TypedBuilder, op: Store | Feed, value: int) -> int | None:
    """Return a store of a truth value as a byte; None if it already is one."""
    if builder[value] == Cast(U8) and builder.types[builder.arguments(value)[0]].dtype.compute == B1:
        return None
    truth = value if builder.types[value].dtype.compute == B1 else builder.add(Cast(B1), value)
    return builder.add(op, builder.add(Cast(U8), truth))


def _dtype(dag: TypedDag, op: Store | Feed) -> DType:
    """Return the type that a sink rounds to."""
    if isinstance(op, Feed):
        return multiplied_type(dag.operands, op.name)
    dtype = dag.output[op.name].dtype
    assert dtype is not None
    return dtype


def _only_stored(dag: TypedDag, node: int) -> Store | Feed | None:
    """Return the store or feed if only it reads the value, a rounding of f32 to its type."""
    op = dag[node]
    if not isinstance(op, Store | Feed):
        return None
    dtype, value = _dtype(dag, op), dag.arguments(node)[0]
    if dtype == F32 or dag[value] != Cast(dtype) or len(dag.users[value]) > 1:
        return None
    rounded = dag.arguments(value)[0]
    stores_alike = dag.types[rounded].dtype.compute == F32 and dag.types[rounded].dtype != dtype
    return op if stores_alike and not isinstance(dag[rounded], Const) else None
