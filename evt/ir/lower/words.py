"""Words with a meaning, and reading what is written with them: subscripts, types, numbers."""

from __future__ import annotations

import math

from evt.ir.dtype import BY_NAME, DType
from evt.ir.lower.report import Report
from evt.ir.node import MODES, Const
from evt.language import tree as syntax

#: Scalars, where nothing else is written.
GREEK = frozenset(
    {
        *("alpha", "beta", "gamma", "delta", "epsilon", "zeta", "eta", "theta", "iota", "kappa"),
        *("lambda", "mu", "nu", "xi", "omicron", "pi", "rho", "sigma", "tau", "upsilon"),
        *("phi", "chi", "psi", "omega"),
    }
)
#: Functions of the language that are refused as not supported yet, so that nothing else takes their names.
PLANNED_FUNCTIONS = ("where", "isnan", "sum", "iota", "dropout")
NOT_FINITE = frozenset({"nan", "inf", "infinity", "NaN", "INF", "Inf", "NAN", "Infinity"})


def read_modes(report: Report, subscript: syntax.Subscript) -> tuple[str, ...] | None:
    """The modes of a subscript, or None after reporting."""
    names = tuple(mode.name for mode in subscript.modes)
    for mode in subscript.modes:
        if mode.name not in MODES:
            hint = "the modes are m (rows), n (columns) and l (batch)"
            report("E0301", f"there is no mode `{mode.name}` here", mode.span, "unknown mode", hint)
            return None
        if mode.optional:
            report.unsupported(f"`{mode.name}?` (vector or scalar at call time) is", mode.span)
            return None
    if len(set(names)) != len(names):
        report("E0301", "a subscript names a mode once", subscript.span, "repeated")
        return None
    return names


def read_dtype(report: Report, identifier: syntax.Identifier | None) -> DType | None:
    """The type of a name; None where there is none or after reporting."""
    if identifier is None:
        return None
    dtype = BY_NAME.get(identifier.text)
    if dtype is None:
        guess = report.guess(identifier.text, BY_NAME)
        hint = f"did you mean `{guess}`?" if guess else "types: f64 f32 tf32 f16 bf16 e4m3 e5m2 i32 i8 u8 b1"
        report("E0303", f"there is no type `{identifier.text}`", identifier.span, "unknown type", hint)
    return dtype


def read_number(report: Report, constant: syntax.Constant | syntax.Number) -> float | None:
    """The f32 value of a literal, or None after reporting."""
    try:
        value = float(constant.text)
        rounded = Const.of(value).value
    except (ValueError, OverflowError):
        rounded = value = math.inf
    mantissa = constant.text.lower().partition("e")[0]
    if not math.isfinite(rounded) or (rounded == 0 and any(digit in mantissa for digit in "123456789")):
        report(
            "E0107",
            f"`{constant.text}` is not a finite f32 number",
            constant.span,
            "not representable",
            "f32 holds magnitudes from 1.4e-45 to 3.4e38",
        )
        return None
    return rounded
