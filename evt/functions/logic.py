"""Comparisons, truth values and the choice between two values. `t` is `torch`, or its mirror `evt.functions.scalar`."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

from evt.functions.row import Comparison, Fact, Function, aten, define


def _comparison(
    name: str,
    symbol: str,
    words: str,
    alias: str,
    compare: Callable[[Any, Any], Any],
    comparison: Comparison,
    *facts: Fact,
) -> Function:
    return define(
        f"{name}(x, y)",
        f"Whether `x {symbol} y`: {words}.",
        lambda t, x, y: compare(x, y),
        Fact.JUMPS,
        Fact.INTEGER,
        *facts,
        instructions=1,
        derivatives=("0", "0"),
        targets=(
            *(f"operator.{name}", *aten(name, "Tensor"), f"torch.ops.aten.{name}.Scalar"),
            *((f"torch.{alias}", f"Tensor.{alias}") if alias else ()),
        ),
        result="predicate",
        cxx=f"({{0}} {symbol} {{1}})",
        comparison=comparison,
        aliases=(alias,) if alias else (),
    )


LOGIC = (
    _comparison("lt", "<", "false if either is NaN", "less", operator.lt, Comparison("gt", "ge", "min")),
    _comparison("le", "<=", "false if either is NaN", "less_equal", operator.le, Comparison("ge", "gt", "min")),
    _comparison("gt", ">", "false if either is NaN", "greater", operator.gt, Comparison("lt", "le", "max")),
    _comparison("ge", ">=", "false if either is NaN", "greater_equal", operator.ge, Comparison("le", "lt", "max")),
    _comparison("eq", "==", "false if either is NaN", "", operator.eq, Comparison("eq", "ne"), Fact.COMMUTATIVE),
    _comparison(
        "ne", "!=", "true if either is NaN", "not_equal", operator.ne, Comparison("ne", "eq"), Fact.COMMUTATIVE
    ),
    define(
        "logical_and(x, y)",
        "True if `x` and `y` are true; a number is true unless it is 0.",
        lambda t, x, y: t.logical_and(x, y),
        Fact.COMMUTATIVE,
        Fact.ASSOCIATIVE,
        instructions=1,
        derivatives=("0", "0"),
        targets=aten("logical_and"),
        result="predicate",
        conditions=(0, 1),
        cxx="({0} && {1})",
    ),
    define(
        "logical_or(x, y)",
        "True if `x` or `y` is true, or both; a number is true unless it is 0.",
        lambda t, x, y: t.logical_or(x, y),
        Fact.COMMUTATIVE,
        Fact.ASSOCIATIVE,
        instructions=1,
        derivatives=("0", "0"),
        targets=aten("logical_or"),
        result="predicate",
        conditions=(0, 1),
        cxx="({0} || {1})",
    ),
    define(
        "logical_not(x)",
        "True if `x` is false; a number is false if it is 0.",
        lambda t, x: t.logical_not(x),
        instructions=1,
        derivatives=("0",),
        targets=aten("logical_not"),
        result="predicate",
        conditions=(0,),
        cxx="(!({0}))",
    ),
    define(
        "where(condition, x, y)",
        "`x` where the condition is true, else `y`.",
        lambda t, condition, x, y: t.where(condition != 0, x, y),
        Fact.INTEGER,
        Fact.SELECTING,
        instructions=1,
        derivatives=("0", "where(condition, 1, 0)", "where(condition, 0, 1)"),
        targets=(
            *("torch.where", "Tensor.where(x, condition, y)", "torch.ops.aten.where.self"),
            *(f"torch.ops.aten.where.{overload}" for overload in ("ScalarSelf", "ScalarOther", "Scalar")),
        ),
        conditions=(0,),
    ),
    define(
        "isnan(x)",
        "Whether `x` is NaN: `x != x`.",
        lambda t, x: t.isnan(x),
        Fact.JUMPS,
        Fact.EVEN,
        instructions=1,
        derivatives=("0",),
        targets=aten("isnan"),
        result="predicate",
    ),
    define(
        "isinf(x)",
        "Whether `x` is infinite: `|x| == inf`.",
        lambda t, x: t.isinf(x),
        Fact.JUMPS,
        Fact.EVEN,
        instructions=1,
        derivatives=("0",),
        targets=aten("isinf"),
        result="predicate",
    ),
    define(
        "isfinite(x)",
        "True if `x` is neither infinite nor NaN: `|x| < inf`.",
        lambda t, x: t.isfinite(x),
        Fact.JUMPS,
        Fact.EVEN,
        instructions=1,
        derivatives=("0",),
        targets=("torch.isfinite", "Tensor.isfinite", "torch.ops.aten.isfinite.default"),
        result="predicate",
    ),
)
