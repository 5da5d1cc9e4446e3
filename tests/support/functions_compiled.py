"""The C++ functions as a library, compiled for the host or a GPU, and how near PyTorch's their results have to be."""

from __future__ import annotations

import ctypes
import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from evt.functions import TABLE, Fact, Function
from evt.reference import functions

INCLUDE = Path(__file__).parents[2] / "codegen/include"
HEADERS = """
#include "evt/functions.hpp"
#include "evt/functions.hpp"
#include "evt/functions_eager.hpp"
#include "evt/functions_fast.hpp"
"""
WHOLE_AND_HALF = (0.0, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 6.0, 20.0, 88.0, 100.0)
EXTREMES = (2.0**-149, 3 * 2.0**-149, 2.0**-126, 1e-20, 8388609.0, 1e20, 3.4028235e38, math.inf)
POSITIVE = (*WHOLE_AND_HALF, *EXTREMES)
SPECIAL = torch.tensor([*POSITIVE, *(-x for x in POSITIVE), math.nan])


@dataclass(frozen=True)
class Bound:
    """The tolerance of a result: in ulps of the exact one, of x and of an intermediate value, and absolutely."""

    ulps: float = 2.0
    of_x: float = 0.0
    of_term: Callable[..., torch.Tensor] | None = None
    least: float = 2.0**-149
    least64: float = 0.0

    def absolute(self, kind: str) -> float:
        """Return the absolute bound; in f64, unless given, the f32 bound scaled by the types' least numbers."""
        return self.least if kind != "f64" else self.least64 or self.least * 2.0 ** (149 - 1074)


BOUNDS = {
    "fma": Bound(0.501),  # and the double rounding of the float64 reference
    **dict.fromkeys(("add", "sub", "mul", "div", "neg", "square", "sqrt", "rcp"), Bound(0.5)),
    **dict.fromkeys(("min", "max", "clamp", "abs", "sign", "floor", "ceil", "round", "relu"), Bound(0, least=0)),
    "tanh": Bound(3),  # glibc's tanhf
    "tanhshrink": Bound(2, of_x=3),  # x - tanh(x) cancels near 0, as in PyTorch
    "hardswish": Bound(3),  # x + 3, two products and the sixth are rounded
    "sigmoid": Bound(2, least=2.0**-126),  # exp(-x) overflows below -88.7, where the result is denormal
    "silu": Bound(4, of_x=1, least=2.0**-119),  # the same; and the exponent is rounded, as in gelu_tanh
    "mish": Bound(4, least=2.0**-140),  # exp(x) is denormal below -87
    "gelu": Bound(2, of_x=1),  # Phi has an absolute bound, also where x < 0; so has 1 + erf in PyTorch
    "gelu_slope": Bound(2, least=2.0**-22, least64=2.0**-51),  # it cancels near x = -0.75
    "gelu_tanh_slope": Bound(4, least=2.0**-21, least64=2.0**-50),  # the same
    "erfc": Bound(4),  # glibc's erfcf
    "lerp": Bound(of_term=lambda a, b, weight: (b - a) * (weight.abs() + 1)),  # the difference is rounded first
    "logit": Bound(3, least=2.0**-22, least64=2.0**-51),  # the quotient is rounded near 1, as in PyTorch
    "logaddexp": Bound(3, least=2.0**-22, least64=2.0**-51),  # the sum of two terms of different signs
    "sinc": Bound(3, least=2.0**-50, least64=2.0**-51),  # PyTorch rounds pi * x, and misses the zeros by that
    "copysign": Bound(0, least=0),
    "where": Bound(0, least=0),
    "gelu_tanh": Bound(4, of_x=1),  # the exponent is rounded, and is large only where the result vanishes
}
# The sign of a zero is IEEE's for the family of max; PyTorch's depends on order, length and device.
ANY_ZERO = {"max", "min", "clamp", "relu", "relu6", "hardtanh", "hardsigmoid"}
OTHERS = {
    "leaky_relu": ((0.25,), (-0.5,)),
    "elu": ((2.5,), (-2.0,)),
    "celu": ((2.5,), (0.3,)),
    "softplus": ((2.0, 5.0),),
    "hardtanh": ((-0.5, 3.0), (0.0, 6.0)),
    "rrelu": ((0.25, 0.75),),
    "hardshrink": ((1.5,), (-0.5,)),
    "softshrink": ((1.5,), (0.0,)),
}
#: The rows' expressions, and the functions of the header by name in each type that they compute in.
KINDS = {
    **dict.fromkeys(("cxx", "f32"), torch.float32),
    "f64": torch.float64,
    "i32": torch.int32,
    **dict.fromkeys(("fast", "eager"), torch.float32),
}
SUFFIX = {torch.float32: "f", torch.float64: "", torch.int32: ""}
CXX = {torch.float32: "float", torch.float64: "double", torch.int32: "int32_t", torch.bool: "bool"}


@dataclass(frozen=True)
class Case:
    """A function with its hyper-parameters; the required parameters come from arrays."""

    function: Function
    hyper: tuple[float, ...]

    @property
    def symbol(self) -> str:
        return re.sub(r"\W", "_", f"{self.function.name}{self.hyper}")

    @property
    def kinds(self) -> tuple[str, ...]:
        absent = [kind for kind in ("fast", "eager") if not getattr(self.function, kind)]
        whole = Fact.INTEGER in self.function.facts and all(map(float.is_integer, self.hyper))
        return tuple(kind for kind in KINDS if kind not in (*absent, *(() if whole else ("i32",))))

    def result(self, dtype: torch.dtype) -> torch.dtype:
        return torch.bool if self.function.result == "predicate" else dtype

    @property
    def cxx(self) -> str:
        return "".join(map(self.loop, self.kinds))

    def loop(self, kind: str) -> str:
        dtype, row = KINDS[kind], self.function
        inputs = [f"{each}[i]" for each in "abc"[: row.required]]
        inputs = [f"({each} != 0)" if slot in row.conditions else each for slot, each in enumerate(inputs)]
        whole = dtype == torch.int32
        constants = [f"{int(each) if whole else each!r}{SUFFIX[dtype]}" for each in self.hyper]
        template = {"cxx": row.cxx, "fast": row.fast or "", "eager": row.cxx_eager}.get(kind)
        value = (template or self.function_call).format(*inputs, *constants)
        return f"LOOP({self.symbol}_{kind}, {CXX[dtype]}, {CXX[self.result(dtype)]}, {value})\n"

    @property
    def function_call(self) -> str:
        slots = ", ".join(f"{{{slot}}}" for slot in range(len(self.function.parameters)))
        return f"evt::fn::{self.function.name}({slots})"

    def meaning(self, *inputs: torch.Tensor) -> torch.Tensor:
        """Return the result of PyTorch; of integers that of the reference, which does not raise for a divisor of 0."""
        arguments = [each != 0 if slot in self.function.conditions else each for slot, each in enumerate(inputs)]
        hyper = (torch.full_like(inputs[0], value) for value in self.hyper)
        mirror = torch if inputs[-1].is_floating_point() else functions
        result: torch.Tensor = self.function.torch(mirror, *arguments, *hyper)
        return result


def cases() -> Iterator[Case]:
    for function in TABLE.values():
        yield Case(function, tuple(p.default for p in function.parameters if p.default is not None))
        yield from (Case(function, hyper) for hyper in OTHERS.get(function.name, ()))


CASES = tuple(cases())


def source(loop: str) -> str:
    """Return the text of a library of all cases, each by ``LOOP(name, type, type of the result, expression)``."""
    return HEADERS + loop + "".join(case.cxx for case in CASES)


def call(library: ctypes.CDLL, case: Case, *inputs: torch.Tensor, kind: str = "cxx") -> torch.Tensor:
    """Call a case's function of a library, where the inputs are."""
    arrays = [tensor.to(KINDS[kind]).contiguous() for tensor in inputs]
    result = torch.empty(arrays[0].numel(), dtype=case.result(KINDS[kind]), device=arrays[0].device)
    a, b, c, y = (ctypes.c_void_p(t.data_ptr()) for t in (*arrays, *arrays[:1] * (3 - len(arrays)), result))
    assert not library[f"{case.symbol}_{kind}"](a, b, c, y, ctypes.c_int(result.numel()))
    return result


def samples(arity: int) -> list[torch.Tensor]:
    """All combinations of the special values, then 20,000 random ones at several scales."""
    generator = torch.Generator().manual_seed(3)
    special = torch.cartesian_prod(*[SPECIAL] * arity).reshape(-1, arity)
    scales = torch.tensor([1e-30, 1e-3, 0.3, 1.0, 3.0, 10.0, 40.0, 1e4]).repeat(2500).unsqueeze(1)
    return list(torch.cat([special, torch.randn(20000, arity, generator=generator) * scales]).T)


def ulp(x: torch.Tensor) -> torch.Tensor:
    """Return the distance between neighbours at x in its type, in float64."""
    single = x.dtype == torch.float32
    least, most, digits = (-126, 127, 24) if single else (-1022, 1023, 53)
    _, exponent = torch.frexp(x.double().abs().clamp(2.0**least, 2.0**most))
    return torch.ldexp(torch.ones_like(x, dtype=torch.float64), exponent - digits)


def same(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Return the elements in which two tensors are equal to the bit; all NaN count as one."""
    if not x.is_floating_point():
        return x == y
    bits = torch.int32 if x.dtype == torch.float32 else torch.int64
    return (x.view(bits) == y.view(bits)) | (x.isnan() & y.isnan())


def each_kind(*kinds: str) -> pytest.MarkDecorator:
    pairs = [(case, kind) for case in CASES for kind in kinds if kind in case.kinds]
    return pytest.mark.parametrize(("case", "kind"), pairs, ids=[f"{case.symbol}-{kind}" for case, kind in pairs])


def check(case: Case, kind: str, result: torch.Tensor, inputs: list[torch.Tensor], bound: Bound) -> None:
    """Compare a result with the exact one, or to the bit with PyTorch's."""
    if case.function.result == "predicate":
        assert torch.equal(result, case.meaning(*inputs))
        return
    exact = case.meaning(*(tensor.double() for tensor in inputs))
    own = case.meaning(*inputs)
    rounded = exact.to(result.dtype)

    slack = 1 if kind != "f64" else 4  # PyTorch's own f64 is not exact either
    allowed = slack * (bound.ulps * ulp(rounded) + bound.of_x * ulp(inputs[0])) + bound.absolute(kind)
    if bound.of_term is not None:
        allowed += slack * ulp(bound.of_term(*inputs))
    near = (result.double() - exact).abs() <= allowed
    zero = (result == 0) & (rounded == 0)
    sign = (result.signbit() == own.signbit()) | torch.tensor(case.function.name in ANY_ZERO)
    good = same(result, rounded) | same(result, own) | (near & (~zero | sign)) | (zero & sign)
    wrong = [tensor[~good][:5].tolist() for tensor in (*inputs, result, exact, own)]
    assert bool(good.all()), f"{int((~good).sum())} wrong: inputs, ours, exact, PyTorch = {wrong}"
