"""Removal of casts that cannot change a value."""

from __future__ import annotations

from evt.functions import TABLE, Fact
from evt.ir.dag import TypedDag
from evt.ir.dtype import B1, BF16, BOOL, E4M3, E5M2, F16, F32, F64, I4, I8, I32, I64, TF32, U4, U8, DType
from evt.ir.node import Apply, Cast, Pick, ReduceBlocks
from evt.optimise.rewrite import TypedBuilder, on, rewrite
from evt.optimise.rounding import is_exact

_FLOATS = frozenset({TF32, F32, F64})
#: The types that have every value of a type, except the type itself. Casts to e5m2 saturate: they give no infinity.
_WIDER: dict[DType, frozenset[DType]] = {
    F64: frozenset(),
    F32: frozenset({F64}),
    TF32: frozenset({F32, F64}),
    F16: _FLOATS,
    BF16: _FLOATS,
    E4M3: _FLOATS | {F16, BF16},
    E5M2: _FLOATS | {F16, BF16},
    I64: frozenset(),
    I32: frozenset({F64}),
    I8: _FLOATS | {F16, BF16, I32},
    U8: _FLOATS | {F16, BF16, I32},
    I4: _FLOATS | {F16, BF16, I32, I8},
    U4: _FLOATS | {F16, BF16, I32, I8, U8},
    BOOL: _FLOATS | {F16, BF16, E4M3, E5M2, I32, I8, U8, B1},
    B1: _FLOATS | {F16, BF16, E4M3, E5M2, I32, I8, U8},
}
#: The depth to which definitions are followed.
_DEPTH = 4


def casts(dag: TypedDag) -> TypedDag:
    """Apply the rule to every cast."""
    return rewrite(dag, unchanged)


@on(Cast)
def unchanged(builder: TypedBuilder, op: Cast, operands: tuple[int, ...]) -> int | None:
    """Remove a cast without effect: ``f16(relu(f16(x))) -> relu(f16(x))``, ``f32(C) -> C`` for an f16 C.

    ``f16(C) -> f32(C)`` for an i8 C is a mere conversion.
    """
    x, have = operands[0], builder.types[operands[0]]
    if have.constant or builder.constant(x) is not None or not holds(builder, x, op.dtype):
        return None
    if have.dtype.compute == op.dtype.compute:
        return x
    plain = Cast(op.dtype.compute)
    return None if plain == op else builder.add(plain, x)


def holds(builder: TypedBuilder, node: int, dtype: DType, depth: int = _DEPTH) -> bool:
    """Return whether a type has every value that a node may have, so that a cast to it is the identity."""
    value = builder.constant(node)
    if value is not None:
        return is_exact(dtype, value)
    op, have = builder[node], builder.types[node].dtype
    if dtype in _WIDER[have] or (have == dtype and (dtype != E5M2 or isinstance(op, Cast))):
        return True
    if not depth:
        return False

    def operands_hold(*slots: int) -> bool:
        return all(holds(builder, builder.arguments(node)[slot], dtype, depth - 1) for slot in slots)

    match op:
        case Cast(to) if to == to.compute:  # a conversion that is itself exact
            return (to == dtype or to in _WIDER[dtype]) and operands_hold(0)
        case Pick() | ReduceBlocks("max" | "min"):
            return operands_hold(0)
        case Apply(function):
            row = TABLE[function]
            if Fact.SELECTING in row.facts or (Fact.CLOSED in row.facts and dtype.is_float):
                return operands_hold(*(slot for slot in range(len(row.parameters)) if slot not in row.conditions))
    return False
