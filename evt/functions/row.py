"""The definition of a row of the function table."""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from evt.functions import scalar, single


class Fact(enum.Enum):
    """An algebraic fact. Its law holds bit for bit in f32, for both zeros and for NaN; all NaNs count as equal.

    With hyper-parameters the law is about the first argument, and the others are any finite values. The laws of a row
    with INTEGER also hold in i32.
    """

    COMMUTATIVE = "f(x, y) = f(y, x)"
    ASSOCIATIVE = "f(f(x, y), z) = f(x, f(y, z))"
    IDEMPOTENT_BINARY = "f(x, x) = x"
    IDEMPOTENT = "f(f(x)) = f(x)"
    INVOLUTION = "f(f(x)) = x"
    ODD = "f(-x) = -f(x)"
    EVEN = "f(-x) = f(x)"
    ZERO_TO_ZERO = "abs(f(zero)) = 0"  # a zero may change its sign
    NON_NEGATIVE = "abs(f(x)) = f(x)"  # neither below zero nor -0
    WHOLE = "f(whole) = whole"  # for a number without a fraction; other numbers are rounded to one
    SELECTING = "f(x, y) is x, y or 0"  # except conditions: a type that has the operands has the result
    CLOSED = "f(x) is a number of every float type that has x"
    JUMPS = "a small change of x may change f(x) much"  # so the type to which x is rounded matters
    INTEGER = "over i32 the same law"  # no separate law: i32 operands give an i32 or a truth value, and wrap


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter of a function; a parameter without a default is required."""

    name: str
    default: float | None = None

    def __str__(self) -> str:
        return self.name if self.default is None else f"{self.name}={self.default:g}"


@dataclass(frozen=True, slots=True)
class StockFunctor:
    """A functor of CUTLASS that is bitwise equal to a row on `cutlass::Array<float, N>`.

    ``members`` are its arguments: a number, or the name of the row's parameter, which must then be a constant. A
    functor without members serves a compute node; a stock epilogue takes an activation, with or without members. A
    functor that ``is_slow`` takes much longer than the row's C++ and may differ in rounding: it is used only for a
    requested stock epilogue.
    """

    name: str
    members: tuple[tuple[str, float | str], ...] = ()
    is_activation: bool = False
    is_slow: bool = False


@dataclass(frozen=True, slots=True)
class Comparison:
    """A comparison's relation to other rows, by their names."""

    converse: str
    """`x f y` is `y converse x`."""
    opposite: str
    """The comparison that is true where this one is false, if neither operand is NaN; for equality also if one is."""
    chosen: str = ""
    """For an order: the function that equals `where(x f y, x, y)` if neither operand is NaN."""


#: Instructions of a function that consists of exponentials, logarithms or error functions.
TRANSCENDENTAL = 16


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
    """The C++ expression on f32, a template over `{0}`, `{1}`..., each used once.

    For evt's own rows, `evt::fn::NAME(...)` computes in f64 too, and in i32 where INTEGER is a fact.
    """
    stock: StockFunctor | None
    facts: frozenset[Fact]
    aliases: tuple[str, ...]
    derivatives: tuple[str, ...] = ()
    """The partial derivative along each parameter, a formula of the language over the parameters. Empty for a function
    registered without any; "" for a parameter without one.
    """
    result_derivative: str = ""
    """The derivative along the first parameter as a formula over the result, `y`, and the other parameters.

    Gradients prefer it, because results are often stored; it may differ where they are rounded. "" if there is none.
    """
    targets: tuple[str, ...] = ()
    """The targets that compute this row in a torch.fx graph: `torch...`, `operator...` or `Tensor...` (methods).

    A target takes the row's parameters in their order; `f(c, a, b)` gives another order, `f(key=value)` required
    keyword arguments. A module has the parameters after the first as attributes.
    """
    result: Literal["value", "predicate"] = "value"
    """A predicate returns a truth value: C++ and torch `bool`."""
    conditions: frozenset[int] = frozenset()
    """The positions of parameters that are truth values."""
    fast: str | None = None
    """A faster and less accurate C++ expression on f32, of `functions_fast.hpp`, or None. Used with fast_math only."""
    eager: str = ""
    """The formula of PyTorch's CUDA kernel in f32, for the docs, if its bits differ from `cxx`; else ""."""
    comparison: Comparison | None = None
    instructions: int = TRANSCENDENTAL
    """A rough cost on a GPU: enough to compare epilogues. A user's function is assumed to be expensive."""
    stalls: int = 0
    """The instructions that a warp could issue while it waits for branches of the exact code, for each element.

    Machine code of nvcc 13.0, scaled to 59 kernels with log1p and a quotient on an H100, 2026-11.
    """
    requires: str = ""
    """The relation of constant arguments that PyTorch demands: `lower <= upper`, `lambd >= 0`; "" for none."""
    source: str = ""
    """C++ definitions that the `cxx` of a user's function needs; the C++ of evt's rows is in `functions.hpp`."""

    @property
    def cxx_eager(self) -> str:
        """The C++ expression on f32 with the bits of PyTorch's CUDA kernel, for numerics="eager"."""
        return self.cxx.replace("evt::fn::", "evt::fn::eager::", 1) if self.eager else self.cxx

    @property
    def required(self) -> int:
        """The number of required arguments."""
        return sum(parameter.default is None for parameter in self.parameters)

    def fold(self, *arguments: float) -> float:
        """Return the definition's value on Python floats, in double precision. Never raise."""
        return float(self.torch(scalar, *arguments))

    def fold_f32(self, *arguments: float) -> float:
        """Return the definition's value on f32 numbers, each step rounded as the reference rounds it."""
        return float(self.torch(single, *map(single.Single, arguments)))

    def __str__(self) -> str:
        return f"{self.name}({', '.join(map(str, self.parameters))})"


def define(
    signature: str,
    text: str,
    torch: Callable[..., Any],
    *facts: Fact,
    instructions: int,
    stalls: int = 0,
    derivatives: tuple[str, ...],
    targets: Sequence[str],
    result_derivative: str = "",
    result: Literal["value", "predicate"] = "value",
    conditions: Sequence[int] = (),
    cxx: str | None = None,
    fast: bool = False,
    eager: str = "",
    stock: StockFunctor | None = None,
    comparison: Comparison | None = None,
    requires: str = "",
    aliases: tuple[str, ...] = (),
) -> Function:
    """Return a row, from a signature as users write it: `leaky_relu(x, negative_slope=0.01)`."""
    name, _, rest = signature.removesuffix(")").partition("(")
    fields = (field.partition("=") for field in rest.split(", "))
    parameters = tuple(Parameter(key, float(default) if default else None) for key, _, default in fields)
    slots = ", ".join(f"{{{slot}}}" for slot in range(len(parameters)))
    return Function(
        name,
        parameters,
        text,
        torch,
        cxx or f"evt::fn::{name}({slots})",
        stock,
        frozenset(facts),
        aliases,
        derivatives,
        result_derivative,
        tuple(targets),
        result,
        frozenset(conditions),
        f"evt::fn::fast::{name}({slots})" if fast else None,
        eager,
        comparison,
        instructions,
        stalls,
        requires,
    )


def activation(functor: str, *, is_slow: bool = False, **members: float | str) -> StockFunctor:
    """Return one of CUTLASS's activations, with its arguments."""
    return StockFunctor(f"cutlass::epilogue::thread::{functor}", tuple(members.items()), True, is_slow)


def aten(name: str, overload: str = "default") -> tuple[str, str, str]:
    """Return the targets for a function that PyTorch has as a function, a method and an operator."""
    return f"torch.{name}", f"Tensor.{name}", f"torch.ops.aten.{name}.{overload}"


def layer(name: str, module: str, operator: str = "") -> tuple[str, str, str]:
    """Return the targets for an activation: the function of torch.nn.functional, the operator and the module."""
    return f"torch.nn.functional.{name}", f"torch.ops.aten.{operator or name}.default", f"torch.nn.{module}"
