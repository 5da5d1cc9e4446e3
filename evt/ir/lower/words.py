"""Reserved words, and readers of subscripts, types and numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence

from evt.functions.single import round_f32
from evt.ir.dtype import BY_NAME, F32, F64, TYPES, DType
from evt.ir.lower.report import SourceDiagnostics
from evt.ir.missing import unknown_type
from evt.ir.node import IMAGES, MODES, base, divisor
from evt.language import tree as syntax

#: Names that are scalars unless they are declared otherwise.
GREEK = frozenset(
    {
        *("alpha", "beta", "gamma", "delta", "epsilon", "zeta", "eta", "theta", "iota", "kappa"),
        *("lambda", "mu", "nu", "xi", "omicron", "pi", "rho", "sigma", "tau", "upsilon"),
        *("phi", "chi", "psi", "omega"),
    }
)


def is_greek(name: str) -> bool:
    """Return whether a name is the name of a Greek letter, perhaps numbered: ``alpha``, ``beta1``."""
    return name.rstrip("0123456789") in GREEK


#: Functions that are not elementwise, and therefore not in the table, with examples.
SPECIAL = {
    "iota": "iota(m)",
    "size": "size(n)",
    "matmul": "matmul(A, up)",
    "rand": "rand(seed, offset)",
    "dropout": "dropout(x, p, seed, offset)",
    "even": "even(x)",
    "odd": "odd(x)",
    "interleave": "interleave(x, y)",
    "swap": "swap(x)",
    "sum": "sum[n](x)",
}
#: The constant that is larger than any number.
INFINITY = "inf"
#: Other spellings of infinity and NaN, with the evt spelling.
NOT_NUMBERS = {
    **dict.fromkeys(("infinity", "INF", "Inf", "Infinity"), "write `inf`"),
    **dict.fromkeys(("nan", "NaN", "NAN"), "there is no constant NaN; test for one with `isnan(x)`"),
}
#: Truth values of other languages, with the evt spelling.
_TRUTHS = {"true": "write `1`", "True": "write `1`", "false": "write `0`", "False": "write `0`"}
#: The digits of the longest integer that is read exactly. Every 64-bit type has fewer.
_LONGEST_INTEGER = 400
_F32_RANGE = "f32 holds magnitudes from 1.4e-45 to 3.4e38"
#: Widths of the column blocks that a kernel can reduce, and distances of paired columns.
FOLD_WIDTHS = (8, 16, 32, 64, 128)
PAIR_BLOCKS = (1, 8, 16, 32)
#: Blocks of m, n and k that share a factor of an operand.
FACTOR_BLOCKS = tuple(f"{mode}/{width}" for mode in ("m", "n", "k") for width in (16, 32, 64, 128, 256, 512))
#: Modes of fewer columns: pairs, and blocks of columns or of pairs.
FEWER_COLUMNS = ("n/2", *(f"n/{width}" for width in (*FOLD_WIDTHS, 2 * FOLD_WIDTHS[-1])))


def read_modes(report: SourceDiagnostics, subscript: syntax.Subscript, summed: bool = False) -> tuple[str, ...] | None:
    """Return the modes of a subscript, or None after a report. ``summed`` allows k, and blocks if one is of k."""
    allowed = (*MODES, *FEWER_COLUMNS, *(["k"] if summed else []))
    if not summed and "m" not in (mode.name for mode in subscript.modes):  # results of reductions
        allowed = (*allowed, IMAGES, *(mode.name for mode in subscript.modes if _is_group(mode.name)))
    if summed and any(mode.subscript is None and mode.name.startswith("k/") for mode in subscript.modes):
        allowed = (*MODES, *FACTOR_BLOCKS)
    names = tuple(mode.name if mode.subscript is None else _read_index(report, mode) for mode in subscript.modes)
    for mode, name in zip(subscript.modes, names, strict=True):
        if not name:
            return None
        if mode.subscript is None and mode.name not in allowed:
            hint = "the modes are m (rows), n (columns) and l (batch); n/2, n/32 and the like are fewer columns"
            if gather := _gather(subscript, mode):
                hint += f"; with places from the vector `{mode.name}`, write `{gather}`"
            if summed and FACTOR_BLOCKS[0] not in allowed and mode.name.startswith(("m/", "m%")):
                places = ", ".join("block[m]" if each is mode else syntax.format_mode(each) for each in subscript.modes)
                hint = "inputs have no blocks of rows; with the number of each row's block in an input `block`, "
                hint += f"write `[{places}]`"
            if mode.name == "k":
                hint = "the product has summed over k; only mainloop fusions have it: `A = s[k] * A`"
            if mode.name.startswith("k/"):
                widths = ", ".join(each for each in FACTOR_BLOCKS if base(each) == "k")
                hint = f"only factors of operands have blocks of k, `A = s[m, k/128] * A`: one of {widths}"
            report("E0301", f"there is no mode `{mode.name}` here", mode.span, "unknown mode", hint)
            return None
    if len(set(map(base, names))) != len(names):
        report("E0301", "a subscript names a mode once", subscript.span, "repeated")
        return None
    return names


def _is_group(name: str) -> bool:
    """Return whether a mode is blocks of at least two columns, ``n/10``."""
    return base(name) == "n" and name == f"n/{divisor(name)}" and divisor(name) > 1


def _gather(subscript: syntax.Subscript, mode: syntax.Mode) -> str:
    """Return a subscript whose mode is a name that may be an index, ``[m, places]`` -> ``[m, places[n]]``, or ""."""
    modes = [each.name for each in subscript.modes]
    free = [each for each in ("m", "n") if each not in map(base, modes)]
    if len(mode.name) < 2 or not mode.name.isidentifier() or mode.optional or not free:
        return ""
    along = "n" if "n" in free and modes.index(mode.name) == len(modes) - 1 > 0 else free[0]
    texts = [f"{mode.name}[{along}]" if each is mode else syntax.format_mode(each) for each in subscript.modes]
    return f"[{', '.join(texts)}]"


def _read_index(report: SourceDiagnostics, mode: syntax.Mode) -> str:
    """Return the mode of an index, ``index[m]``; "" after a report."""
    assert mode.subscript is not None
    written = syntax.format_mode(mode)
    *batch, inner = [each.name for each in mode.subscript.modes] or [""]
    plain = all(each.subscript is None and not each.optional for each in mode.subscript.modes)
    if plain and inner in ("m", "n", "k") and batch in ([], ["l"]):
        return f"{mode.name}[{inner}]"
    hint = f"an index is a vector along rows or columns: `{mode.name}[m]`, `{mode.name}[n]`; with batches `[l, m]`"
    report("E0301", f"`{written}` names neither rows nor columns", mode.span, "not an index", hint)
    return ""


def is_flexible(report: SourceDiagnostics, subscript: syntax.Subscript, names: tuple[str, ...]) -> bool:
    """Return whether the subscript is a vector that may be passed as a single value, ``[m?]``."""
    marked = [mode for mode in subscript.modes if mode.optional]
    if marked and [mode for mode in names if mode != "l"] not in (["m"], ["n"]):
        mode = marked[0].name
        hint = f"write `[{mode}?]`" if mode in ("m", "n") else f"write `{mode}`"
        report("E0301", f"`{mode}?` stands alone", marked[0].span, "vector or single value", hint)
    elif marked and "l" in names and names[0] != "l":
        report("E0301", "the batches of such a vector come first", subscript.span, "", "write `[l, m?]`")
    elif marked and marked[0].name == "l":
        report("E0301", "the batch mode is not optional", marked[0].span, "", "write `l`")
    return bool(marked)


def read_reduced_modes(report: SourceDiagnostics, subscript: syntax.Subscript) -> tuple[str, ...] | None:
    """Return the modes that a reduction names, in the order of MODES, or None after a report.

    A reduction within blocks has the modes of its result: ``m/p`` for ``m%p``, ``n/10`` for ``m, n%10``. ``n%32`` alone
    remains: elements can read it.
    """
    names = [mode.name for mode in subscript.modes]
    blocks = [f"n%{width}" for width in FOLD_WIDTHS]
    modes = [_block_of(name) for name in names]
    if len(set(map(base, modes))) != len(modes) or any(mode.optional for mode in subscript.modes) or not names:
        report("E0301", "a reduction names each mode once", subscript.span, "", "`sum[n](x)`, `max[m, n](abs(x))`")
        return None
    if names == ["l"]:
        report("E0301", "reducing over batches alone is not supported", subscript.span, "", "reduce over m or n too")
        return None
    if len(names) == 1 and names[0] in blocks:
        return (names[0],)
    grouped = "m" in map(base, modes) and all(mode in MODES or mode == IMAGES or _is_group(mode) for mode in modes)
    if not (set(names) <= set(MODES) or grouped):
        hint = f"reduce over m, n and l, or within blocks of columns: {', '.join(f'`{block}`' for block in blocks)}"
        if any(base(mode) == "n" for mode in modes if mode not in MODES):
            hint += "; with m, blocks of any width: `sum[m, n%10](x)`"
        report("E0301", f"cannot reduce over `[{', '.join(names)}]`", subscript.span, "", hint)
        return None
    return tuple(sorted(modes, key=lambda mode: MODES.index(base(mode))))


def _block_of(name: str) -> str:
    """Return the mode of the blocks that a reduction names, ``n/10`` for ``n%10``; "" for a mode of fewer elements."""
    return name.replace("%", "/") if "/" not in name else ""


def read_dtype(
    report: SourceDiagnostics, identifier: syntax.Identifier | None, types: Sequence[DType] = TYPES
) -> DType | None:
    """Return the type with a name; None for none or after a report. ``types`` are the types to suggest."""
    if identifier is None:
        return None
    dtype = BY_NAME.get(identifier.text)
    if dtype is None:
        message, hint = unknown_type(identifier.text, types)
        report("E0303", message, identifier.span, "unknown type", hint)
    return dtype


def read_number(
    report: SourceDiagnostics, constant: syntax.Constant | syntax.Number, dtype: DType | None = None
) -> float | None:
    """Return the value of a literal, or None after a report.

    A literal without a decimal point is an int if an integer or truth type is declared, so that it keeps 64 bits. A
    constant of a formula is a double. A literal without a decimal point that no double equals is refused.
    """
    sign, word = (-1.0, constant.text[1:]) if constant.text.startswith("-") else (1.0, constant.text)
    if word == INFINITY:
        return sign * math.inf
    if not word[0].isdigit() and not word.startswith("."):
        hint = (NOT_NUMBERS | _TRUTHS).get(word, "write a number, or `inf`")
        report("E0107", f"`{word}` is not a constant", constant.span, "not a number", hint)
        return None
    value = float(constant.text)
    whole = int(constant.text) if word.isdigit() and len(word) <= _LONGEST_INTEGER else None
    if dtype is not None and not dtype.is_float:
        return value if whole is None else whole
    kept = value if dtype == F64 else round_f32(value)
    mantissa = constant.text.lower().partition("e")[0]
    if not math.isfinite(kept) or (kept == 0 and any(digit in mantissa for digit in "123456789")):
        range_ = "f64 holds magnitudes from 4.9e-324 to 1.8e308" if dtype == F64 else _F32_RANGE
        hint = range_ + ("" if kept == 0 else "; infinity is `inf`")
        message = f"`{constant.text}` cannot be represented in {dtype if dtype == F64 else F32}"
        report("E0107", message, constant.span, "not representable", hint)
        return None
    if isinstance(constant, syntax.Number) and whole is not None and value != whole:
        message = f"`{constant.text}` is an integer that no double equals, and constants of formulas are doubles"
        report("E0107", message, constant.span, "not exact", f"write `{value!r}` for the nearest double")
        return None
    return value
