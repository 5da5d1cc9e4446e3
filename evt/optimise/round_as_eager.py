"""Rounding as eager PyTorch rounds: ``numerics="match_eager"``."""

from __future__ import annotations

from collections.abc import Sequence

from evt.functions import TABLE
from evt.ir.dag import TypedDag
from evt.ir.dtype import B1, BF16, F16, F32, F64, I32, DType
from evt.ir.node import Acc, Apply, Cast, Const, Extent, Interleave, Load, Node, Pick, ReduceBlocks
from evt.optimise.rewrite import TypedBuilder

_TWO, _THREE = Const.of(2.0), Const.of(3.0)


def round_as_eager(dag: TypedDag) -> TypedDag:
    """Round ``f(x) -> f16(f(x))`` and ``acc -> f16(acc)`` where PyTorch stores the value in f16 (or bf16).

    Eager PyTorch stores every operation's result in the promoted type of its operands. Numbers and tensors without
    dimensions do not promote within their kind. The product has the type of A, or the type of D for 8-bit operands.
    """
    builder, renamed = TypedBuilder(dag), list[int]()
    held: list[DType | None] = []  # the type in which PyTorch stores a value; None for a number, which does not promote
    for node in builder.walk(dag):
        op, operands = dag[node], dag.arguments(node)
        types = [held[operand] for operand in operands]
        arguments = [renamed[operand] for operand in operands]
        if isinstance(op, Apply):
            dtype = _result(builder, op, arguments, types)
            new = _operation(builder, op, arguments, types, dtype)
        else:
            dtype = _held(dag, op, node, types)
            new = builder.add(op, *arguments)
            new = _rounded(builder, new, dtype) if isinstance(op, Acc | ReduceBlocks) else new
        renamed.append(new)
        held.append(dtype)
    return builder.typed()


def _operation(
    builder: TypedBuilder, op: Apply, arguments: list[int], types: Sequence[DType | None], dtype: DType | None
) -> int:
    """Return an operation as PyTorch computes it, with the intermediate roundings.

    Integers are converted to the type of the floats in the operation, and a number in a comparison to the tensor's
    type. ``number / x`` is ``number * (1 / x)``. ``x ** 3`` is ``x * x * x``, whose products PyTorch's CUDA kernels
    round one by one.
    """

    def apply(function: str, *operands: int) -> int:
        return _rounded(builder, builder.add(Apply(function), *operands), dtype)

    row, found = TABLE[op.function], _promoted([each for each in types if each is not None])
    predicate = row.result == "predicate"
    for slot, held in enumerate(types):
        converted = predicate if held is None else not held.is_float
        if converted and slot not in row.conditions:
            arguments[slot] = _rounded(builder, arguments[slot], found)
    if predicate:
        return builder.add(op, *arguments)
    if op.function == "div" and types[0] is None and dtype is not None and found is not None and found.is_float:
        return apply("mul", apply("rcp", arguments[1]), arguments[0])
    if dtype is not None and _is_product(builder, op, arguments):
        x = arguments[0]
        squared = apply("mul", x, x)
        return squared if builder[arguments[1]] == _TWO else apply("mul", squared, x)
    return apply(op.function, *arguments)


def _rounded(builder: TypedBuilder, value: int, dtype: DType | None) -> int:
    return builder.add(Cast(dtype), value) if dtype in (F16, BF16) else value


def _result(builder: TypedBuilder, op: Apply, arguments: list[int], types: Sequence[DType | None]) -> DType | None:
    """Return the type in which PyTorch stores the result of an operation."""
    row = TABLE[op.function]
    if row.result == "predicate":
        return B1
    values = [dtype for slot, dtype in enumerate(types) if slot not in row.conditions]
    found = _promoted([dtype for dtype in values if dtype is not None])
    if found is None:
        return None
    whole = builder.domain(op.function, tuple(arguments)) == I32 or _is_product(builder, op, arguments)
    return found if found.is_float or whole else F32


def _is_product(builder: TypedBuilder, op: Apply, arguments: Sequence[int]) -> bool:
    """Return whether an operation is a power that PyTorch computes as a product."""
    return op.function == "pow" and builder[arguments[1]] in (_TWO, _THREE)


def _held(dag: TypedDag, op: Node, node: int, operands: Sequence[DType | None]) -> DType | None:
    """Return the type in which PyTorch stores a value that is not an operation's result."""
    value = dag.types[node]
    match op:
        case Const() | Extent():
            return None
        case Load(name):
            return value.dtype if dag.input[name].modes else None
        case Acc():
            operand = dag.operands[0].dtype
            if operand.is_float and operand.bits == 8:
                return dag.primary.dtype
            return operand if operand in (F16, BF16) else value.dtype
        case Pick() | ReduceBlocks():
            return operands[0]
        case Interleave():
            return _promoted([dtype for dtype in operands if dtype is not None])
        case _:
            return value.dtype


def _promoted(types: Sequence[DType]) -> DType | None:
    """Return torch.promote_types of several types; 8-bit floats are computed in f32."""
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
