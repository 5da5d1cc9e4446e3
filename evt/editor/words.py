"""The words of the language, with their forms and meanings. The rows of functions describe themselves."""

from __future__ import annotations

from dataclasses import dataclass

from evt.ir.node import PLACES, REDUCTIONS

#: Words that begin a statement.
KEYWORDS = {
    "in": ("in NAME: TYPE[MODES] = DEFAULT", "Declares inputs. A declaration without a subscript is a scalar."),
    "out": ("out NAME: TYPE[MODES]", "Declares outputs, in the order of the results of a call."),
    "def": ("def NAME(PARAMETERS) = FORMULA", "Defines a function, which is inlined at each call."),
}
#: Predefined names.
NAMES = {
    "acc": "The matrix product, before the epilogue: f32; f64 for f64 operands; i32 for integers.",
    "A": "The left operand. An assignment to it changes its elements before the product.",
    "B": "The right operand. An assignment to it changes its elements before the product.",
    "inf": "Infinity.",
}
MODES = {
    "m": "The rows of the product.",
    "n": "The columns of the product.",
    "k": "The dimension that the product sums over. Only formulas of A and B have it.",
    "l": "The batches.",
}


@dataclass(frozen=True, slots=True)
class Form:
    """A function that is not elementwise: its form and its meaning."""

    form: str
    text: str

    @property
    def name(self) -> str:
        return self.form.partition("(")[0].partition("[")[0]


def _forms(*rows: tuple[str, str]) -> dict[str, Form]:
    forms = (Form(*row) for row in rows)
    return {form.name: form for form in forms}


#: Functions that are not elementwise, and reductions.
FORMS = _forms(
    ("sum[n](x)", "The sum over modes, or over aligned blocks of columns: `sum[m, n](x)`, `sum[n%32](x)`."),
    ("max[n](x)", "The largest value over modes, or over aligned blocks of columns. `max(x, y)` compares two values."),
    ("min[n](x)", "The least value over modes, or over aligned blocks of columns. `min(x, y)` compares two values."),
    ("mean[n](x)", "The mean over modes, or over aligned blocks of columns."),
    ("var[n](x)", "The variance over modes, `sum((x - mean)**2)/count`; `var[n](x, 1)` divides by `count - 1`."),
    ("argmax[n](x)", "The column of the largest value of each row; `argmax[m](x)` is the row in each column."),
    ("argmin[n](x)", "The column of the least value of each row; `argmin[m](x)` is the row in each column."),
    ("iota(m)", "The element's row (`m`), column (`n`) or batch (`l`)."),
    ("size(n)", "The extent of a mode: `m`, `n`, `k` or `l`."),
    ("matmul(A, up)", "The product of A and an input with the modes of B; the one of A and B is `acc`."),
    ("rand(seed, offset)", "Uniform random numbers in [0, 1)."),
    ("dropout(x, p, seed, offset)", "`where(rand(seed, offset) >= p, x/(1 - p), 0)`."),
    ("even(x)", "The first column of each pair. `even(x, 32)` pairs columns 32 apart."),
    ("odd(x)", "The second column of each pair. `odd(x, 32)` pairs columns 32 apart."),
    ("interleave(x, y)", "The columns of two values in turn: the inverse of `even` and `odd`."),
    ("swap(x)", "Each column's partner in its pair: `interleave(odd(x), even(x))`."),
)
#: Functions of :data:`FORMS` that take a subscript.
REDUCING = frozenset((*REDUCTIONS, *PLACES, "mean", "var"))
