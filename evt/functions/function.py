"""What a row of the function table is."""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from evt.functions import scalar


class Fact(enum.Enum):
    """An algebraic fact. Its law holds in f32 to the bit, for both zeros and NaN too; all NaN count as one.

    With hyper-parameters the law is about the first argument, the others being any finite values.
    """

    COMMUTATIVE = "f(x, y) = f(y, x)"
    ASSOCIATIVE = "f(f(x, y), z) = f(x, f(y, z))"
    IDEMPOTENT_BINARY = "f(x, x) = x"
    IDEMPOTENT = "f(f(x)) = f(x)"
    INVOLUTION = "f(f(x)) = x"
    ODD = "f(-x) = -f(x)"
    EVEN = "f(-x) = f(x)"
    ZERO_TO_ZERO = "abs(f(zero)) = 0"  # either zero; the result may be the other one
    NON_NEGATIVE = "abs(f(x)) = f(x)"  # neither below zero nor -0


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter of a function; without a default it has to be given."""

    name: str
    default: float | None = None

    def __str__(self) -> str:
        return self.name if self.default is None else f"{self.name}={self.default:g}"


@dataclass(frozen=True, slots=True)
class Function:
    """One row: everything that evt knows about a function."""

    name: str
    parameters: tuple[Parameter, ...]
    text: str
    """One sentence with the formula, for the docs."""
    torch: Callable[..., Any]
    """The meaning, `f(torch, *tensors)`, in the tensors' own dtype. A constant is a 0-d tensor."""
    cxx: str
    """The C++ expression, a template over `{0}`, `{1}`..., each used once."""
    stock: str | None
    """The CUTLASS functor which gives the same bits on `cutlass::Array<float, N>`, or None."""
    facts: frozenset[Fact]
    aliases: tuple[str, ...]

    @property
    def required(self) -> int:
        """How many arguments have to be given."""
        return sum(parameter.default is None for parameter in self.parameters)

    def fold(self, *arguments: float) -> float:
        """The same meaning on Python floats; never raises. The caller rounds to the compute type."""
        return float(self.torch(scalar, *arguments))

    def __str__(self) -> str:
        return f"{self.name}({', '.join(map(str, self.parameters))})"


def define(
    signature: str,
    text: str,
    torch: Callable[..., Any],
    *facts: Fact,
    cxx: str | None = None,
    stock: str | None = None,
    aliases: tuple[str, ...] = (),
) -> Function:
    """A row, from its signature as a user would read it: `leaky_relu(x, negative_slope=0.01)`."""
    name, _, rest = signature.removesuffix(")").partition("(")
    fields = (field.partition("=") for field in rest.split(", "))
    parameters = tuple(Parameter(key, float(default) if default else None) for key, _, default in fields)
    slots = ", ".join(f"{{{slot}}}" for slot in range(len(parameters)))
    return Function(name, parameters, text, torch, cxx or f"evt::fn::{name}({slots})", stock, frozenset(facts), aliases)
