"""Operators of eager PyTorch: a product with its scales and addend, and powers by numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from .dtypes import compute
from .number import Number

if TYPE_CHECKING:
    from .evaluator import Evaluator

    Store = Callable[["Value"], "Value"]


@dataclass(frozen=True)
class Value:
    """A number with its type in the language.

    ``constant``: it is made of literals only, and takes the type of the other operand; ``literal``: it is a literal.
    ``columns``: it varies along n, which a single column does not show; ``fewer``: it has one column for this number of
    columns.
    ``held`` is the dtype in which eager PyTorch would hold it, none of a number. ``part`` is its part in an operator of
    a product: the unrounded product, a loaded tensor, or one times a number.
    """

    number: Number
    type: str
    constant: bool = False
    literal: bool = False
    columns: bool = False
    held: str = ""
    fewer: int = 1
    part: Product | Addend | None = None


@dataclass(frozen=True)
class Product:
    """An unrounded product, with the number that scales it and the count of the scales of 8-bit floats."""

    value: Value
    alpha: Value | None = None
    factors: int = 0


@dataclass(frozen=True)
class Addend:
    """A loaded tensor, the number that scales it, and its modes."""

    value: Value
    modes: frozenset[str]
    beta: Value | None = None


def of_product(evaluator: Evaluator, function: str, values: Sequence[Value]) -> Value | None:
    """Return the result of a product's operator that this operation ends, or None.

    These are addmm (a factor is a number), linear (the addend is a vector of columns) and _scaled_mm.
    """
    here = next((each for each in values if isinstance(each.part, Product)), None)
    if here is None or function not in ("add", "mul"):
        return None
    other = values[1] if values[0] is here else values[0]
    if other is here:
        return None
    product, addend = here.part, other.part
    if function == "mul":
        scales = not other.held or (
            isinstance(addend, Addend) and addend.beta is None and other.held == "f32" and len(addend.modes) <= 1
        )
        if evaluator.eighths and product.factors < 2 and scales:
            raw = evaluator.applied("mul", [product.value, other])
            result = evaluator.hold(raw, here.held)
            return replace(result, part=Product(raw, None, product.factors + 1))
        if not evaluator.eighths and product.alpha is None and not other.held:
            return replace(evaluator.eagerly(function, values), part=Product(product.value, other))
        return None
    if evaluator.program.operation.startswith("conv") or not isinstance(addend, Addend):
        return None
    scaled = product.alpha is not None or addend.beta is not None
    if addend.value.held != here.held or ("m" in addend.modes and (evaluator.eighths or not scaled)):
        return None
    term = addend.value if addend.beta is None else evaluator.applied("mul", [addend.value, addend.beta])
    if product.alpha is None:
        return evaluator.hold(evaluator.applied("add", [product.value, term]), here.held)
    return evaluator.hold(evaluator.applied("fma", [product.value, product.alpha, term]), here.held)


def power(evaluator: Evaluator, x: Value, literal: Value, common: str, stored: Store) -> Value | None:
    """Return a power by a literal, which halves round to their type, or None for one without its own formula."""
    exponent = literal.number.x.item()
    if compute(common) not in ("f32", "f64") and exponent not in (2.0, 3.0):
        return None
    if exponent in (0.5, -0.5):
        return stored(evaluator.applied("sqrt" if exponent > 0 else "rsqrt", [x]))
    if exponent == -1.0:
        return stored(evaluator.applied("rcp", [x]))
    if exponent in (2.0, 3.0, -2.0):
        product = stored(evaluator.applied("mul", [x, x]))
        if exponent == 2.0:
            return product
        last = ("mul", [product, x]) if exponent == 3.0 else ("rcp", [product])
        return stored(evaluator.applied(*last))
    if common in ("f16", "bf16"):
        return stored(evaluator.applied("pow", [x, replace(evaluator.cast(common, literal), constant=True)]))
    return None


def divided(evaluator: Evaluator, total: Value, count: Value) -> Value:
    """Return a mean: a quotient, also in eager PyTorch, where a division by a number multiplies elsewhere."""
    result = evaluator.applied("div", [total, count])
    return evaluator.hold(result, total.held) if evaluator.eager else result
