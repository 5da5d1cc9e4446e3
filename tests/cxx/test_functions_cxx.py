"""The C++ functions, compiled for the host, equal PyTorch's."""

from __future__ import annotations

import ctypes
import re
import shutil
import subprocess

import pytest
import torch

from evt.functions import Fact
from tests.support.functions_compiled import (
    BOUNDS,
    CASES,
    INCLUDE,
    KINDS,
    Bound,
    Case,
    call,
    check,
    each_kind,
    same,
    samples,
    source,
)

GXX = shutil.which("g++") or ""
FLAGS = ["-O2", "-std=c++17", "-Wall", "-Wextra", "-Werror", "-ffp-contract=off", "-shared", "-fPIC"]
LOOP = """
#define LOOP(NAME, T, R, ...)                                                                \\
  extern "C" int NAME(T const* a, [[maybe_unused]] T const* b,                               \\
                      [[maybe_unused]] T const* c, R* y, int n) {                            \\
    for (int i = 0; i < n; ++i) y[i] = __VA_ARGS__;                                          \\
    return 0;                                                                                \\
  }
"""
pytestmark = [pytest.mark.cxx, pytest.mark.skipif(not GXX, reason="g++ is not on PATH")]


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    folder = tmp_path_factory.mktemp("functions")
    text, binary = folder / "functions.cpp", folder / "functions.so"
    text.write_text(source(LOOP), encoding="utf-8")
    subprocess.run([GXX, *FLAGS, f"-I{INCLUDE}", str(text), "-o", str(binary)], check=True)
    return ctypes.CDLL(str(binary))


@each_kind("cxx", "f32", "f64")
def test_agrees_with_pytorch(library: ctypes.CDLL, case: Case, kind: str) -> None:
    inputs = [tensor.to(KINDS[kind]) for tensor in samples(case.function.required)]
    check(case, kind, call(library, case, *inputs, kind=kind), inputs, BOUNDS.get(case.function.name, Bound()))


@each_kind("f32", "fast", "eager")
def test_other_expressions_are_the_same_on_the_host(library: ctypes.CDLL, case: Case, kind: str) -> None:
    """The infix expressions and the functions to the bit; the variants nearly, where nothing cancels."""
    inputs = samples(case.function.required)
    expected, found = call(library, case, *inputs), call(library, case, *inputs, kind=kind)
    if kind == "f32":
        assert bool(same(found, expected).all())
    else:
        plain = inputs[0].abs().clamp(1e-3, 30) == inputs[0].abs()
        exact = torch.tensor(case.function.name == "gelu")
        close = found.isclose(expected, rtol=1e-4, atol=5e-4 if exact else 1e-5, equal_nan=True)
        assert bool((close | ~plain).all())


@each_kind("i32")
def test_integers_agree_with_pytorch(library: ctypes.CDLL, case: Case, kind: str) -> None:
    generator = torch.Generator().manual_seed(9)
    most = 2**31 - 1
    special = torch.tensor([0, 1, -1, 2, 5, 6, 7, -6, 46341, -65536, most, -most, -most - 1])
    grid = torch.cartesian_prod(*[special] * case.function.required).reshape(-1, case.function.required)
    values = torch.randint(-most - 1, most, (20000, case.function.required), generator=generator)
    values[::2] %= 50
    inputs = [column.int() for column in torch.cat([grid, values]).T]
    assert torch.equal(call(library, case, *inputs, kind=kind), case.meaning(*inputs))


def test_every_function_is_called_by_name_in_every_type() -> None:
    for case in CASES:
        assert {"cxx", "f32", "f64"} <= set(case.kinds)


#: Facts that are equations over these numbers, and over any for x, y and z.
LAWS = [fact for fact in Fact if " = " in fact.value]
NUMBERS = {"zero": torch.tensor([0.0, -0.0]), "whole": torch.tensor([-(2.0**30), -3.0, -0.0, 0.0, 1.0, 7.0, 2.0**25])}


@pytest.mark.parametrize(
    ("case", "fact"),
    [(case, fact) for case in CASES for fact in LAWS if fact in case.function.facts],
    ids=lambda value: getattr(value, "symbol", None) or value.name,
)
def test_facts_hold_to_the_bit(library: ctypes.CDLL, case: Case, fact: Fact) -> None:
    names = [name for name in ("x", "y", "z", *NUMBERS) if re.search(rf"\b{name}\b", fact.value)]
    inputs = [NUMBERS[name] for name in names if name in NUMBERS] or samples(len(names))
    scope = {"f": lambda *tensors: call(library, case, *tensors), **dict(zip(names, inputs, strict=True))}
    left, right = (eval(side, scope) for side in fact.value.split(" = "))
    assert bool(same(left, torch.as_tensor(right, dtype=left.dtype)).all())


@pytest.mark.parametrize(("x", "y"), [(0.0, -0.0), (-0.0, 0.0)])
def test_zeros_are_ordered(library: ctypes.CDLL, x: float, y: float) -> None:
    pair = torch.tensor([x]), torch.tensor([y])
    by_name = {case.function.name: case for case in CASES}
    assert not call(library, by_name["max"], *pair).signbit().item()
    assert call(library, by_name["min"], *pair).signbit().item()
    assert not call(library, by_name["relu"], pair[0]).signbit().item()
