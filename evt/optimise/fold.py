"""Constant folding, in the compute type."""

from __future__ import annotations

import math

from evt.functions import TABLE
from evt.ir.dag import Builder, TypedDag
from evt.ir.node import Apply, Const, Node
from evt.optimise.rewrite import rewrite


def fold(dag: TypedDag) -> TypedDag:
    """``f(constants) -> constant``, each step rounded to f32 as the kernel would."""
    return rewrite(dag, fold_constants)


def fold_constants(builder: Builder, op: Node, operands: tuple[int, ...]) -> int | None:
    """``mul(2, 3) -> 6``. Results that are not finite stay as they are written."""
    if not isinstance(op, Apply):
        return None
    values = [constant.value for constant in map(builder.__getitem__, operands) if isinstance(constant, Const)]
    if len(values) != len(operands):
        return None
    try:
        result = Const.of(TABLE[op.function].fold(*values))
    except (ArithmeticError, ValueError):  # 1/0, log(-1), overflow
        return None
    return builder.add(result) if math.isfinite(result.value) else None
