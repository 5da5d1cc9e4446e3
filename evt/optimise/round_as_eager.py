"""Rounding where eager PyTorch rounds: ``numerics="match_eager"``."""

from __future__ import annotations

from collections.abc import Sequence

from evt.functions import TABLE
from evt.ir.dag import TypedDag
from evt.ir.dtype import B1, BF16, F16, F32, F64, I32, DType
from evt.ir.node import Acc, Apply, Cast, Const, Fold, Load, Node, Pick
from evt.optimise.rewrite import TypedBuilder, retype


def round_as_eager(dag: TypedDag) -> TypedDag:
    """``f(x) -> f16(f(x))`` and ``acc -> f16(acc)`` where PyTorch would hold the value in f16 (or bf16).

    Eager PyTorch stores every operation's result in the type that its operands promote to; numbers and tensors
    without dimensions do not promote within their kind. The product has the type of A, or D's for 8-bit operands.
    """
    builder, renamed = TypedBuilder(dag), list[int]()
    held: list[DType | None] = []  # the type in which PyTorch holds a value; None: a number, which does not promote
    for node in range(len(dag)):
        op, operands = dag[node], dag.arguments(node)
        dtype = _held(dag, op, node, [held[operand] for operand in operands])
        arguments = [renamed[operand] for operand in operands]
        if isinstance(op, Apply) and TABLE[op.function].result == "predicate":
            # A number is compared in the tensor's type.
            found = _promoted([each for each in (held[operand] for operand in operands) if each is not None])
            if found in (F16, BF16):
                pairs = zip(operands, arguments, strict=True)
                arguments = [builder.add(Cast(found), a) if held[o] is None else a for o, a in pairs]
        new = builder.add(op, *arguments)
        if isinstance(op, Acc | Apply | Fold) and dtype in (F16, BF16):
            new = builder.add(Cast(dtype), new)
        renamed.append(new)
        held.append(dtype)
    return retype(dag, builder)


def _held(dag: TypedDag, op: Node, node: int, operands: Sequence[DType | None]) -> DType | None:
    value = dag.types[node]
    match op:
        case Const():
            return None
        case Load(name):
            return None if dag.input[name].is_scalar else value.dtype
        case Acc():
            operand = dag.operands[0].dtype
            if operand.is_float and operand.bits == 8:
                return dag.output["D"].dtype
            return operand if operand in (F16, BF16) else value.dtype
        case Apply(function):
            if value.dtype == B1:
                return B1
            row = TABLE[function]
            types = [dtype for slot, dtype in enumerate(operands) if slot not in row.conditions]
            found = _promoted([dtype for dtype in types if dtype is not None])
            if found is None:
                return None
            return found if value.dtype == I32 or found.is_float else F32
        case Pick() | Fold():
            return operands[0]
        case _:
            return value.dtype


def _promoted(types: Sequence[DType]) -> DType | None:
    """torch.promote_types of several types; 8-bit floats are computed in f32."""
    if not types:
        return None
    floats = {dtype for dtype in types if dtype.is_float}
    if not floats:
        return I32 if I32 in types or len(set(types)) > 1 else types[0]
    if F64 in floats:
        return F64
    if floats in ({F16}, {BF16}):
        return next(iter(floats))
    return F32
