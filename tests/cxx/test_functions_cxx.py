"""The C++ functions, compiled for the host, give what PyTorch gives."""

from __future__ import annotations

import ctypes
import math
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from evt.functions import TABLE, Fact, Function

GXX = shutil.which("g++") or ""
INCLUDE = Path(__file__).parents[2] / "codegen/include"
FLAGS = ["-O2", "-std=c++17", "-Wall", "-Wextra", "-Werror", "-ffp-contract=off", "-shared", "-fPIC"]
LOOP = """
#include "evt/functions.hpp"
#include "evt/functions.hpp"
#define LOOP(NAME, ...)                                                                      \\
  extern "C" void NAME(float const* a, [[maybe_unused]] float const* b,                      \\
                       [[maybe_unused]] float const* c, float* y, int n) {                   \\
    for (int i = 0; i < n; ++i) y[i] = __VA_ARGS__;                                          \\
  }
"""
WHOLE_AND_HALF = (0.0, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 6.0, 20.0, 88.0, 100.0)
EXTREMES = (2.0**-149, 3 * 2.0**-149, 2.0**-126, 1e-20, 8388609.0, 1e20, 3.4028235e38, math.inf)
POSITIVE = (*WHOLE_AND_HALF, *EXTREMES)
SPECIAL = torch.tensor([*POSITIVE, *(-x for x in POSITIVE), math.nan])


@dataclass(frozen=True)
class Bound:
    """How far a result may be from the exact one: in ulps of it, in ulps of x, and absolutely."""

    ulps: float = 2.0
    of_x: float = 0.0
    least: float = 2.0**-149


BOUNDS = {
    "fma": Bound(0.501),  # and the double rounding of the float64 reference
    **dict.fromkeys(("add", "sub", "mul", "div", "neg", "square", "sqrt", "rcp"), Bound(0.5)),
    **dict.fromkeys(("min", "max", "clamp", "abs", "sign", "floor", "ceil", "round", "relu"), Bound(0, least=0)),
    "tanh": Bound(3),  # glibc's tanhf
    "tanhshrink": Bound(2, of_x=3),  # x - tanh(x) cancels near 0, as in PyTorch
    "hardswish": Bound(3),  # x + 3, two products and the sixth are rounded
    "sigmoid": Bound(2, least=2.0**-126),  # exp(-x) overflows below -88.7, where the result is denormal
    "silu": Bound(3, least=2.0**-119),  # the same
    "mish": Bound(4, least=2.0**-140),  # exp(x) is denormal below -87
    "gelu": Bound(2, of_x=1),  # 1 + erf cancels where x < 0, as in PyTorch and CUTLASS
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
}


@dataclass(frozen=True)
class Case:
    """A function with its hyper-parameters; the required parameters come from arrays."""

    function: Function
    hyper: tuple[float, ...]

    @property
    def symbol(self) -> str:
        return re.sub(r"\W", "_", f"{self.function.name}{self.hyper}")

    @property
    def cxx(self) -> str:
        inputs = ("a[i]", "b[i]", "c[i]")[: self.function.required]
        value = self.function.cxx.format(*inputs, *(f"{constant!r}f" for constant in self.hyper))
        return f"LOOP({self.symbol}, {value})\n"


def cases() -> Iterator[Case]:
    for function in TABLE.values():
        yield Case(function, tuple(p.default for p in function.parameters if p.default is not None))
        yield from (Case(function, hyper) for hyper in OTHERS.get(function.name, ()))


CASES = tuple(cases())
each_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.symbol)
pytestmark = [pytest.mark.cxx, pytest.mark.skipif(not GXX, reason="g++ is not on PATH")]


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    folder = tmp_path_factory.mktemp("functions")
    source, binary = folder / "functions.cpp", folder / "functions.so"
    source.write_text(LOOP + "".join(case.cxx for case in CASES), encoding="utf-8")
    subprocess.run([GXX, *FLAGS, f"-I{INCLUDE}", str(source), "-o", str(binary)], check=True)
    return ctypes.CDLL(str(binary))


def call(library: ctypes.CDLL, case: Case, *inputs: torch.Tensor) -> torch.Tensor:
    arrays = [tensor.contiguous() for tensor in inputs]
    result = torch.full_like(arrays[0], 12345.0)
    a, b, c, y = (ctypes.c_void_p(t.data_ptr()) for t in (*arrays, *arrays[:1] * (3 - len(arrays)), result))
    library[case.symbol](a, b, c, y, ctypes.c_int(result.numel()))
    return result


def samples(arity: int) -> list[torch.Tensor]:
    """All combinations of the special values, then 20,000 random ones at several scales."""
    generator = torch.Generator().manual_seed(3)
    special = torch.cartesian_prod(*[SPECIAL] * arity).reshape(-1, arity)
    scales = torch.tensor([1e-30, 1e-3, 0.3, 1.0, 3.0, 10.0, 40.0, 1e4]).repeat(2500).unsqueeze(1)
    return list(torch.cat([special, torch.randn(20000, arity, generator=generator) * scales]).T)


def ulp(x: torch.Tensor) -> torch.Tensor:
    """The distance between float32 neighbours at x, in float64."""
    _, exponent = torch.frexp(x.double().abs().clamp(2.0**-126, 2.0**127))
    return torch.ldexp(torch.ones_like(x, dtype=torch.float64), exponent - 24)


def same(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Where two float32 tensors are equal to the bit, all NaN being one."""
    return (x.view(torch.int32) == y.view(torch.int32)) | (x.isnan() & y.isnan())


@each_case
def test_agrees_with_pytorch(library: ctypes.CDLL, case: Case) -> None:
    bound = BOUNDS.get(case.function.name, Bound())
    inputs = samples(case.function.required)
    result = call(library, case, *inputs)
    hyper = [torch.full_like(inputs[0], value) for value in case.hyper]
    exact = case.function.torch(torch, *(tensor.double() for tensor in (*inputs, *hyper)))
    single = case.function.torch(torch, *inputs, *hyper)
    rounded = exact.float()

    allowed = bound.ulps * ulp(rounded) + bound.of_x * ulp(inputs[0]) + bound.least
    near = (result.double() - exact).abs() <= allowed
    zero = (result == 0) & (rounded == 0)
    sign = (result.signbit() == single.signbit()) | torch.tensor(case.function.name in ANY_ZERO)
    good = same(result, rounded) | same(result, single) | (near & (~zero | sign)) | (zero & sign)
    wrong = [tensor[~good][:5].tolist() for tensor in (*inputs, result, exact, single)]
    assert bool(good.all()), f"{int((~good).sum())} wrong: inputs, ours, exact, PyTorch = {wrong}"


@pytest.mark.parametrize(
    ("case", "fact"),
    [(case, fact) for case in CASES for fact in Fact if fact in case.function.facts],
    ids=lambda value: getattr(value, "symbol", None) or value.name,
)
def test_facts_hold_to_the_bit(library: ctypes.CDLL, case: Case, fact: Fact) -> None:
    names = [name for name in ("x", "y", "z", "zero") if re.search(rf"\b{name}\b", fact.value)]
    inputs = [torch.tensor([0.0, -0.0])] if names == ["zero"] else samples(len(names))
    scope = {"f": lambda *tensors: call(library, case, *tensors), **dict(zip(names, inputs, strict=True))}
    left, right = (eval(side, scope) for side in fact.value.split(" = "))
    assert bool(same(left, torch.as_tensor(right, dtype=torch.float32)).all())


@pytest.mark.parametrize(("x", "y"), [(0.0, -0.0), (-0.0, 0.0)])
def test_zeros_are_ordered(library: ctypes.CDLL, x: float, y: float) -> None:
    pair = torch.tensor([x]), torch.tensor([y])
    by_name = {case.function.name: case for case in CASES}
    assert not call(library, by_name["max"], *pair).signbit().item()
    assert call(library, by_name["min"], *pair).signbit().item()
    assert not call(library, by_name["relu"], pair[0]).signbit().item()
