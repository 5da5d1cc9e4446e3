"""Rounding where eager PyTorch rounds: ``numerics="match_eager"``."""

from __future__ import annotations

from collections.abc import Sequence

from evt.functions import TABLE
from evt.ir.dag import TypedDag
from evt.ir.dtype import B1, BF16, F16, F32, F64, I32, DType
from evt.ir.node import Acc, Apply, Cast, Const, Fold, Load, Node, Pick
from evt.optimise.rewrite import TypedBuilder


def round_as_eager(dag: TypedDag) -> TypedDag:
    """``f(x) -> f16(f(x))`` and ``acc -> f16(acc)`` where PyTorch would hold the value in f16 (or bf16).

    Eager PyTorch stores every operation's result in the type that its operands promote to; numbers and tensors
    without dimensions do not promote within their kind. The product has the type of A, or D's for 8-bit operands.
    """
    builder, renamed = TypedBuilder(dag), list[int]()
    held: list[DType | None] = []  # the type in which PyTorch holds a value; None: a number, which does not promote
    for node in range(len(dag)):
        op, operands = dag[node], dag.arguments(node)
        types = [held[operand] for operand in operands]
        dtype = _held(dag, op, node, types)
        arguments = [renamed[operand] for operand in operands]
        if isinstance(op, Apply):
            new = _operation(builder, op, arguments, types, dtype)
        else:
            new = builder.add(op, *arguments)
            new = _rounded(builder, new, dtype) if isinstance(op, Acc | Fold) else new
        renamed.append(new)
        held.append(dtype)
    return builder.typed()


def _operation(
    builder: TypedBuilder, op: Apply, arguments: list[int], types: Sequence[DType | None], dtype: DType | None
) -> int:
    """An operation as PyTorch does it, with the roundings in between.

    A number is compared in the tensor's type; ``number / x`` is ``number * (1 / x)``; ``x ** 3`` is ``x * x * x``,
    whose products PyTorch's CUDA kernels round one by one.
    """

    def apply(function: str, *operands: int) -> int:
        return _rounded(builder, builder.add(Apply(function), *operands), dtype)

    found = _promoted([each for each in types if each is not None])
    if TABLE[op.function].result == "predicate" and found is not None:
        numbers = zip(arguments, types, strict=True)
        return builder.add(op, *(_rounded(builder, a, found) if held is None else a for a, held in numbers))
    if op.function == "div" and types[0] is None and dtype is not None and found is not None and found.is_float:
        return apply("mul", apply("rcp", arguments[1]), arguments[0])
    if op.function == "pow" and dtype is not None and builder[arguments[1]] in (Const.of(2.0), Const.of(3.0)):
        x = arguments[0]
        squared = apply("mul", x, x)
        return squared if builder[arguments[1]] == Const.of(2.0) else apply("mul", squared, x)
    return apply(op.function, *arguments)


def _rounded(builder: TypedBuilder, value: int, dtype: DType | None) -> int:
    return builder.add(Cast(dtype), value) if dtype in (F16, BF16) else value


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
