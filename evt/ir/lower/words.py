"""Words with a meaning, and reading subscripts, types and numbers."""

from __future__ import annotations

import math
import struct

from evt.ir.dtype import BY_NAME, DType
from evt.ir.lower.report import Report
from evt.ir.node import MODES, base
from evt.language import tree as syntax

#: Names that are scalars unless declared otherwise.
GREEK = frozenset(
    {
        *("alpha", "beta", "gamma", "delta", "epsilon", "zeta", "eta", "theta", "iota", "kappa"),
        *("lambda", "mu", "nu", "xi", "omicron", "pi", "rho", "sigma", "tau", "upsilon"),
        *("phi", "chi", "psi", "omega"),
    }
)
#: Functions that are not element-wise, and therefore not in the table, with what to write.
SPECIAL = {
    "iota": "iota(m)",
    "rand": "rand(seed, offset)",
    "dropout": "dropout(x, p, seed, offset)",
    "even": "even(x)",
    "odd": "odd(x)",
    "sum": "sum[n](x)",
}
NOT_FINITE = frozenset({"nan", "inf", "infinity", "NaN", "INF", "Inf", "NAN", "Infinity"})


#: Types of block-scaled formats (MX, NV), which quantising programs may name.
_SCALED = frozenset({"e2m1", "e2m3", "e3m2", "e8m0", "ue8m0", "ue4m3", "nvf4", "mxf4", "mxf6", "mxf8", "fp4", "fp6"})
#: Widths of the blocks of columns that are reduced within a kernel, and distances of paired columns.
FOLD_WIDTHS = (16, 32)
PAIR_BLOCKS = (1, 8, 16, 32)


def read_modes(report: Report, subscript: syntax.Subscript, summed: bool = False) -> tuple[str, ...] | None:
    """Return the modes of a tensor's subscript, or None after reporting; ``summed``: k may be among them."""
    allowed = (*MODES, "n/2", *(f"n/{width}" for width in FOLD_WIDTHS), *(["k"] if summed else []))
    names = tuple(mode.name for mode in subscript.modes)
    for mode in subscript.modes:
        if mode.name not in allowed:
            hint = "the modes are m (rows), n (columns) and l (batch); n/2, n/16 and n/32 are fewer columns"
            if mode.name == "k":
                hint = (
                    "the product has summed over k; it is a mode of what an operand is worked on with: `A = s[k] * A`"
                )
            report("E0301", f"there is no mode `{mode.name}` here", mode.span, "unknown mode", hint)
            return None
    if len(set(map(base, names))) != len(names):
        report("E0301", "a subscript names a mode once", subscript.span, "repeated")
        return None
    return names


def is_flexible(report: Report, subscript: syntax.Subscript, names: tuple[str, ...]) -> bool:
    """Return whether the subscript is that of a vector that may be given as a single value, ``[m?]``."""
    marked = [mode for mode in subscript.modes if mode.optional]
    if marked and [mode for mode in names if mode != "l"] not in (["m"], ["n"]):
        report("E0301", f"`{marked[0].name}?` stands alone", marked[0].span, "vector or single value", "write `[m?]`")
    elif marked and "l" in names and names[0] != "l":
        report("E0301", "the batches of such a vector come first", subscript.span, "", "write `[l, m?]`")
    elif marked and marked[0].name == "l":
        report("E0301", "the batch mode is not optional", marked[0].span, "", "write `l`")
    return bool(marked)


def read_reduced_modes(report: Report, subscript: syntax.Subscript) -> tuple[str, ...] | None:
    """Return the modes that a reduction names, in the order of MODES, or None after reporting."""
    names = [mode.name for mode in subscript.modes]
    blocks = [f"n%{width}" for width in FOLD_WIDTHS]
    if len(set(names)) != len(names) or any(mode.optional for mode in subscript.modes) or not names:
        report("E0301", "a reduction names each mode once", subscript.span, "", "`sum[n](x)`, `max[m, n](abs(x))`")
        return None
    if names == ["l"]:
        report("E0301", "a reduction over batches alone is not made here", subscript.span, "", "reduce over m or n too")
        return None
    if not set(names) <= set(MODES) and names not in [[block] for block in blocks]:
        hint = f"reduce over m, n and l, or within blocks of columns: {', '.join(f'`{block}`' for block in blocks)}"
        report("E0301", f"`[{', '.join(names)}]` is not reduced over", subscript.span, "", hint)
        return None
    return tuple(sorted(names, key=lambda name: MODES.index(name) if name in MODES else 0))


def read_dtype(report: Report, identifier: syntax.Identifier | None) -> DType | None:
    """Return the type with a name; None where there is none or after reporting."""
    if identifier is None:
        return None
    dtype = BY_NAME.get(identifier.text)
    if dtype is None:
        guess = report.guess(identifier.text, BY_NAME)
        if identifier.text in _SCALED:
            guess, hint = None, "4- and 6-bit floats and their scale types are not stored; scale e4m3 by blocks in f32"
            report("E0303", f"there is no type `{identifier.text}`", identifier.span, "not supported", hint)
            return None
        hint = f"did you mean `{guess}`?" if guess else "types: f64 f32 tf32 f16 bf16 e4m3 e5m2 i32 i8 u8 b1"
        report("E0303", f"there is no type `{identifier.text}`", identifier.span, "unknown type", hint)
    return dtype


def read_number(report: Report, constant: syntax.Constant | syntax.Number) -> float | None:
    """Return the value of a literal, or None after reporting."""
    try:
        value = float(constant.text)
        rounded: float = struct.unpack("<f", struct.pack("<f", value))[0]
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
    return value
