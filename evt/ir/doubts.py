"""Warnings for valid programs that probably mean something else: ``doubts(dag) -> warnings``."""

from __future__ import annotations

from evt.diagnostics import Diagnostic
from evt.ir.dag import TypedDag
from evt.ir.lower.words import GREEK
from evt.ir.node import Input

#: Words of names that usually mean a single value.
_SINGLE = frozenset(
    {
        *("scale", "scaling", "factor", "multiplier", "coef", "coeff", "coefficient", "ratio", "gain", "slope"),
        *("eps", "p", "s", "t", "prob", "probability", "rate", "lr", "momentum", "decay", "temperature", "temp"),
        *("threshold", "thresh", "cutoff", "clip", "cap", "softcap", "limit", "bound", "lower", "upper"),
        *("lo", "hi", "low", "high", "minimum", "maximum", "const", "constant", "scalar", "zp", "step", "seed"),
        *GREEK,
    }
)


def doubts(dag: TypedDag) -> tuple[Diagnostic, ...]:
    """Return a warning (W0401) for each input that is inferred to be a matrix and has the name of a scalar."""
    return tuple(_matrix(dag, value) for value in dag.inputs if _reads_like_a_scalar(value))


def _reads_like_a_scalar(value: Input) -> bool:
    words = {word.rstrip("0123456789") for word in value.name.lower().split("_")}
    return value.is_tile and "modes" in value.inferred and not words.isdisjoint(_SINGLE)


def _matrix(dag: TypedDag, value: Input) -> Diagnostic:
    name = value.name
    message = f"`{name}` is a matrix [m, n], because it is undeclared and has no subscript"
    hint = f"declare a scalar: `in {name}: f32`; or write the modes: `{name}[m]`, `{name}[n]`, `{name}[m, n]`"
    return Diagnostic("W0401", message, value.span, "one value for every element", hint, source=dag.source)
