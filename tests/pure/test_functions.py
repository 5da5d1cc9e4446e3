"""The function table: complete, consistent with the header, and meaning what PyTorch means."""

from __future__ import annotations

import ctypes
import itertools
import math
import random
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional

from evt.functions import FUNCTIONS, TABLE, Fact, Function, lookup

HEADER = Path(__file__).parents[2] / "codegen/include/evt/functions.hpp"
DESIGN = """
add sub mul div neg relu leaky_relu relu6 elu celu selu gelu gelu_tanh silu mish softplus softsign sigmoid
logsigmoid tanh hardtanh hardsigmoid hardswish tanhshrink clamp abs sign sqrt rsqrt rcp square exp exp2
expm1 log log1p log2 sin cos erf floor ceil round min max pow fma
"""

# PyTorch's function where it is not found under the row's own name in torch.nn.functional or torch.
NAMESAKES: dict[str, Callable[..., Any]] = {
    "neg": torch.neg,
    "fma": lambda a, b, c: torch.addcmul(c, a, b),
    "min": torch.minimum,
    "max": torch.maximum,
    "rcp": torch.reciprocal,
    "gelu_tanh": lambda x: functional.gelu(x, approximate="tanh"),
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
}
# Hyper-parameters other than the defaults.
OTHERS: dict[str, tuple[tuple[float, ...], ...]] = {
    "leaky_relu": ((0.25,), (-0.5,)),
    "elu": ((2.5,), (-2.0,)),
    "celu": ((2.5,), (0.3,)),
    "softplus": ((2.0, 5.0), (0.75, 30.0)),
    "hardtanh": ((-0.5, 3.0), (0.0, 6.0)),
    "clamp": ((-0.5, 3.0), (0.0, 6.0)),
}
TINY, LEAST, MOST, INF = 2.0**-126, 2.0**-149, (2.0 - 2.0**-23) * 2.0**127, math.inf
WHOLE_AND_HALF = (0.0, 0.25, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 6.0, 17.0, 100.0)
POSITIVE = (*WHOLE_AND_HALF, LEAST, 3 * LEAST, TINY, 2.0**-66, 2.0**66, MOST, INF)
SPECIAL = (*POSITIVE, *(-x for x in POSITIVE), math.nan)
each_function = pytest.mark.parametrize("function", TABLE.values(), ids=list(TABLE))


def f32(x: float) -> float:
    return ctypes.c_float(x).value


def same(x: float, y: float) -> bool:
    """Equal to the bit, all NaN being one."""
    return (x != x and y != y) or (x == y and math.copysign(1.0, x) == math.copysign(1.0, y))


def randoms(count: int) -> list[float]:
    generator = random.Random(7)
    return [f32(generator.gauss(0.0, 10.0 ** generator.uniform(-3, 2))) for _ in range(count)]


def hyper_parameters(function: Function) -> Sequence[tuple[float, ...]]:
    """What to give for the parameters after the tensors: the defaults, and others."""
    defaults = tuple(p.default for p in function.parameters if p.default is not None)
    return (*([] if function.name == "clamp" else [defaults]), *OTHERS.get(function.name, ()))


@each_function
def test_no_cell_is_empty(function: Function) -> None:
    assert TABLE[function.name] is function is lookup(function.name)
    assert all(name.isidentifier() for name in (function.name, *function.aliases))
    assert re.fullmatch(r"[^\n]*`[^\n]+\.", function.text)
    slots = re.findall(r"\{(\d+)\}", function.cxx)
    assert slots == [str(slot) for slot in range(len(function.parameters))]
    assert function.stock is None or function.stock.startswith("cutlass::")
    assert 1 <= function.required <= len(function.parameters)
    optional = [p.default is not None for p in function.parameters]
    assert optional == sorted(optional)


def test_every_function_of_the_design_is_there() -> None:
    assert set(TABLE) == set(DESIGN.split())


def test_names_are_unique_and_found() -> None:
    assert len(set(FUNCTIONS)) == len(FUNCTIONS)
    assert all(lookup(name) for name in FUNCTIONS)
    assert lookup("swish") is TABLE["silu"]
    assert lookup("reloo") is None


def test_prints_as_a_signature() -> None:
    assert str(TABLE["softplus"]) == "softplus(x, beta=1, threshold=20)"


def test_header_defines_exactly_the_table() -> None:
    text = HEADER.read_text(encoding="utf-8")
    own = text[text.index("namespace evt::fn {") :]
    defined = re.findall(r"^EVT_HOST_DEVICE float (\w+)\(([^)]*)\)", own, re.MULTILINE)
    assert {name: len(parameters.split(", ")) for name, parameters in defined} == {
        name: len(function.parameters) for name, function in TABLE.items()
    }
    assert re.findall(r"#include (.*)", text) == ["<cmath>"]
    assert not re.search("#pragma|using namespace", text)


def test_import_is_light() -> None:
    code = "import sys, evt.functions; sys.exit(bool({'torch', 'networkx', 'numpy'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@each_function
def test_meaning_is_that_of_pytorch(function: Function, dtype: torch.dtype) -> None:
    namesake = NAMESAKES.get(function.name) or getattr(functional, function.name, None) or getattr(torch, function.name)
    # PyTorch's own float32 gelu on CPU (oneDNN) turns +inf into NaN and overflows; nowhere else.
    most = 1e30 if function.name == "gelu" else INF
    tensor = torch.tensor([x for x in (*SPECIAL, *randoms(2000)) if not abs(x) > most], dtype=dtype)
    tolerance = torch.finfo(dtype).eps * 32
    for hyper in hyper_parameters(function):
        tensors = [tensor.roll(7 * i) for i in range(len(function.parameters) - len(hyper))]
        constants = [torch.tensor(value, dtype=dtype) for value in hyper]
        ours = function.torch(torch, *tensors, *constants)
        theirs = namesake(*tensors, *hyper)
        assert ours.dtype == dtype
        torch.testing.assert_close(ours, theirs, rtol=tolerance, atol=tolerance, equal_nan=True)


@each_function
def test_fold_agrees_with_the_meaning(function: Function) -> None:
    for hyper in hyper_parameters(function):
        arity = len(function.parameters) - len(hyper)
        values = (*SPECIAL, *randoms(400)) if arity == 1 else SPECIAL
        rows = list(itertools.product(values, repeat=arity))
        columns = [torch.tensor(column, dtype=torch.float32) for column in zip(*rows, strict=True)]
        columns += [torch.full_like(columns[0], value) for value in hyper]
        folded = torch.tensor([f32(function.fold(*row, *map(f32, hyper))) for row in rows])
        exact = function.torch(torch, *(column.double() for column in columns)).float()
        single = function.torch(torch, *columns)
        assert torch.equal(folded.isnan(), exact.isnan())
        least = 2.0**-56 if function.name == "tanhshrink" else LEAST  # x - tanh(x) cancels in float64 too
        torch.testing.assert_close(folded, exact, rtol=2.0**-23, atol=least, equal_nan=True)
        # On float32 itself intermediates round, and overflow or vanish, earlier.
        near = torch.isclose(folded, single, rtol=1e-5, atol=2e-6, equal_nan=True)
        assert bool((near | ~single.isfinite() | (single == 0) | (folded.abs() > 1e20)).all())


@pytest.mark.parametrize(
    ("function", "fact"),
    [(function, fact) for function in TABLE.values() for fact in Fact if fact in function.facts],
    ids=lambda value: getattr(value, "name", None),
)
def test_facts_hold_to_the_bit(function: Function, fact: Fact) -> None:
    left, right = (compile(side, fact.name, "eval") for side in fact.value.split(" = "))
    names = [name for name in ("x", "y", "z", "zero") if re.search(rf"\b{name}\b", fact.value)]
    values = (*SPECIAL, *randoms(1000 if len(names) == 1 else 10))
    domain = (0.0, -0.0) if names == ["zero"] else values
    for hyper in hyper_parameters(function):

        def f(*arguments: float, hyper: tuple[float, ...] = hyper) -> float:
            return f32(function.fold(*arguments, *map(f32, hyper)))

        for row in itertools.product(domain, repeat=len(names)):
            scope = {"f": f, **dict(zip(names, row, strict=True))}
            assert same(eval(left, scope), eval(right, scope)), (hyper, row)


def test_facts_that_do_not_hold_are_not_claimed() -> None:
    """The traps: `x + y` is not associative; the sign of -0 is 0, so `sign` is not odd."""
    assert Fact.ASSOCIATIVE not in TABLE["add"].facts | TABLE["mul"].facts
    assert Fact.ODD not in TABLE["sign"].facts | TABLE["tanhshrink"].facts
    assert Fact.NON_NEGATIVE not in TABLE["sqrt"].facts
    assert Fact.IDEMPOTENT not in TABLE["leaky_relu"].facts


@pytest.mark.parametrize(
    ("name", "arguments", "expected"),
    [
        ("relu", (math.nan,), math.nan),
        ("relu", (-0.0,), 0.0),
        ("max", (-0.0, 0.0), 0.0),
        ("max", (0.0, -0.0), 0.0),
        ("min", (0.0, -0.0), -0.0),
        ("max", (1.0, math.nan), math.nan),
        ("clamp", (1.0, 3.0, 2.0), 2.0),
        ("sign", (math.nan,), 0.0),
        ("sign", (-0.0,), 0.0),
        ("round", (2.5,), 2.0),
        ("round", (-0.5,), -0.0),
        ("div", (1.0, -0.0), -math.inf),
        ("div", (0.0, 0.0), math.nan),
        ("rsqrt", (-0.0,), -math.inf),
        ("log", (-0.0,), -math.inf),
        ("log", (-1.0,), math.nan),
        ("log1p", (-1.0,), -math.inf),
        ("exp", (1e4,), math.inf),
        ("sin", (math.inf,), math.nan),
        ("pow", (-0.0, -3.0), -math.inf),
        ("pow", (-0.0, -2.0), math.inf),
        ("pow", (-8.0, 0.5), math.nan),
        ("pow", (-1e300, 3.0), -math.inf),
        ("pow", (math.nan, 0.0), 1.0),
        ("gelu", (math.inf,), math.inf),
        ("gelu", (-math.inf,), math.nan),
        ("silu", (-math.inf,), math.nan),
        ("softsign", (math.inf,), math.nan),
        ("softplus", (-math.inf, 1.0, 20.0), 0.0),
        ("softplus", (21.0, 1.0, 20.0), 21.0),
        ("elu", (-0.0, -2.0), -0.0),
        ("leaky_relu", (0.0, -0.5), -0.0),
    ],
)
def test_fold_of_special_values(name: str, arguments: tuple[float, ...], expected: float) -> None:
    assert same(TABLE[name].fold(*arguments), expected)
