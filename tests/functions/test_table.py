"""The function table: complete, consistent with the header, and equal to PyTorch."""

from __future__ import annotations

import ctypes
import itertools
import math
import random
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from evt.functions import FUNCTIONS, TABLE, Fact, Function, lookup
from evt.functions.target import Target, read_target
from evt.ir.dtype import BF16, E4M3, E5M2, F16, F32, TF32, DType
from evt.optimise.rounding import is_exact, round_constant
from tests.support.function_rows import OTHERS, ROWS, call_target, each

HEADERS = Path(__file__).parents[2] / "codegen/include/evt"
DESIGN = """
add sub mul div neg relu leaky_relu relu6 elu celu selu gelu gelu_slope gelu_tanh gelu_tanh_slope silu mish softplus
softsign sigmoid logsigmoid tanh hardtanh hardsigmoid hardswish tanhshrink clamp abs sign sqrt rsqrt rcp square exp exp2
expm1 log log1p log2 sin cos erf floor ceil round min max pow fma where isnan
isinf isfinite lt le gt ge eq ne logical_and logical_or logical_not trunc frac fmod remainder sinh cosh tan asin acos
atan atan2 asinh acosh atanh erfc log10 threshold hardshrink softshrink logaddexp hypot copysign sinc lerp heaviside
logit xlogy prelu rrelu floor_divide trunc_divide wrap_i8 wrap_u8
"""
TINY, LEAST, MOST, INF = 2.0**-126, 2.0**-149, (2.0 - 2.0**-23) * 2.0**127, math.inf
WHOLE_AND_HALF = (0.0, 0.25, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 6.0, 17.0, 100.0)
POSITIVE = (*WHOLE_AND_HALF, LEAST, 3 * LEAST, TINY, 2.0**-66, 2.0**66, MOST, INF)
SPECIAL = (*POSITIVE, *(-x for x in POSITIVE), math.nan)
#: Rows without a full bound: PyTorch's f32 also loses digits in small differences of large numbers.
CANCELS = {"lerp": 1e-5, "logit": 1e-5, "logaddexp": 1e-5, "sinc": 1e-5}
#: Rows that no function of PyTorch's computes alone: casts with integers as results, and a part of a gradient.
WITHOUT_TARGETS = ("wrap_i8", "wrap_u8", "gelu_slope", "gelu_tanh_slope")
#: Facts that are an equation, for :func:`test_facts_hold_to_the_bit`.
EQUATIONS = frozenset(fact for fact in Fact if " = " in fact.value)
#: Rows whose second operand PyTorch refuses to be an integer 0.
DIVIDES = frozenset({"fmod", "remainder", "floor_divide", "trunc_divide"})
WHOLE = tuple(row for row in ROWS if Fact.INTEGER in row.facts)
each_function = each(ROWS)


def f32(x: float) -> float:
    return ctypes.c_float(x).value


def same(x: float, y: float) -> bool:
    """Equal to the bit, all NaN being one."""
    return (x != x and y != y) or (x == y and math.copysign(1.0, x) == math.copysign(1.0, y))


def randoms(count: int) -> list[float]:
    generator = random.Random(7)
    return [f32(generator.gauss(0.0, 10.0 ** generator.uniform(-3, 2))) for _ in range(count)]


def hyper_parameters(function: Function) -> Sequence[tuple[float, ...]]:
    """Return values for the parameters after the tensors: the defaults, and others."""
    defaults = tuple(p.default for p in function.parameters if p.default is not None)
    others = OTHERS.get(function.name, ())
    return (*([] if others and not defaults else [defaults]), *others)


@each_function
def test_no_cell_is_empty(function: Function) -> None:
    assert TABLE[function.name] is function is lookup(function.name)
    assert all(name.isidentifier() for name in (function.name, *function.aliases))
    assert re.fullmatch(r"[^\n]*`[^\n]+\.", function.text)
    slots = re.findall(r"\{(\d+)\}", function.cxx)
    assert slots == [str(slot) for slot in range(len(function.parameters))]
    assert function.instructions > 0
    assert function.stock is None or function.stock.name.startswith("cutlass::")
    names = {parameter.name for parameter in function.parameters}
    assert function.stock is None or {value for _, value in function.stock.members if isinstance(value, str)} <= names
    assert function.fast in (
        None,
        f"evt::fn::fast::{function.name}({', '.join(map('{{{}}}'.format, map(int, slots)))})",
    )
    assert len(function.derivatives) == len(function.parameters)
    assert all(function.derivatives)
    assert function.targets or function.name in WITHOUT_TARGETS
    assert len(set(function.targets)) == len(function.targets)
    assert function.conditions <= set(range(len(function.parameters)))
    assert (function.result == "predicate") <= (set(function.derivatives) == {"0"})
    assert function.source == ""
    assert 1 <= function.required <= len(function.parameters)
    optional = [p.default is not None for p in function.parameters]
    assert optional == sorted(optional)


def test_every_function_of_the_design_is_there() -> None:
    assert set(TABLE) == set(DESIGN.split())
    assert len(TABLE) >= 75


def test_names_are_unique_and_found() -> None:
    assert len(set(FUNCTIONS)) == len(FUNCTIONS)
    assert all(lookup(name) for name in FUNCTIONS)
    assert lookup("swish") is TABLE["silu"]
    assert lookup("reloo") is None


def test_prints_as_a_signature() -> None:
    assert str(TABLE["softplus"]) == "softplus(x, beta=1, threshold=20)"


@pytest.mark.parametrize("file", ["functions.hpp", "functions_fast.hpp", "functions_eager.hpp"])
def test_headers_define_exactly_the_table(file: str) -> None:
    text = (HEADERS / file).read_text(encoding="utf-8")
    own = text[text.index("namespace evt::fn") :]
    defined = re.findall(r"^EVT_HOST_DEVICE (?:T|float|bool) (\w+)\(([^)]*)\)", own, re.MULTILINE)
    defined += [(name, "x, y" if two else "x") for two, name in re.findall(r"^EVT_ELEMENTARY(_2)?\((\w+),", own, re.M)]
    variant = {"functions_fast.hpp": "fast", "functions_eager.hpp": "eager"}.get(file, "cxx")
    rows = [row for row in ROWS if getattr(row, variant)]
    assert {name: len(parameters.split(", ")) for name, parameters in defined} == {
        row.name: len(row.parameters) for row in rows
    }
    includes = ["<cmath>", "<cstdint>"] if file == "functions.hpp" else ['"evt/functions.hpp"']
    includes += ['"evt/rounded.hpp"'] * (file == "functions_eager.hpp")
    assert re.findall(r"#include (.*)", text) == includes
    assert not re.search("#pragma|using namespace", text)
    assert set(re.findall(r"#define (\w+)", text)) - set(re.findall(r"#undef (\w+)", text)) <= {
        *("EVT_FUNCTIONS_HPP", "EVT_FUNCTIONS_FAST_HPP", "EVT_FUNCTIONS_EAGER_HPP", "EVT_HOST_DEVICE"),
    }


def test_import_is_light() -> None:
    code = "import sys, evt.functions; sys.exit(bool({'torch', 'networkx', 'numpy'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_targets_are_read() -> None:
    assert read_target("torch.rsub(y, x)") == Target(("torch", "rsub"), order=("y", "x"))
    assert read_target("torch.nn.GELU(approximate='tanh')") == Target(
        ("torch", "nn", "GELU"), given=(("approximate", "tanh"),)
    )


def forms(function: Function, tensor: torch.Tensor, hyper: Sequence[float]) -> Iterator[list[Any]]:
    """Arguments: tensors and numbers in the places where some target takes them."""
    count = len(function.parameters) - len(hyper)
    tensors: list[Any] = [tensor.roll(7 * slot) for slot in range(count)]
    for slot in function.conditions:
        tensors[slot] = tensors[slot] > 0
    one = [torch.tensor([value], dtype=tensor.dtype) for value in hyper]
    numbers: list[Any] = [0.75] * (count - 1)
    yield [*tensors, *hyper]
    yield [*tensors, *(torch.full_like(tensor, value) for value in hyper)]
    yield [*tensors, *one]
    if count > 1:
        first: list[Any] = tensors[:1]
        yield [*first, *numbers, *hyper]
        yield [*first, *tensors[1:2], *numbers[1:], *hyper]
        yield [*first, *numbers[1:], *tensors[1:2], *hyper]
        yield [0.75, *tensors[1:], *hyper]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@each_function
def test_targets_compute_the_meaning(function: Function, dtype: torch.dtype) -> None:
    # PyTorch's own float32 gelu on CPU (oneDNN) turns +inf into NaN and overflows; nowhere else.
    most = 1e30 if function.name == "gelu" else INF
    tensor = torch.tensor([x for x in (*SPECIAL, *randoms(2000)) if not abs(x) > most], dtype=dtype)
    tolerance = torch.finfo(dtype).eps * 32
    reached = set()
    for hyper in hyper_parameters(function):
        for arguments in forms(function, tensor, hyper):
            tensors = [
                torch.as_tensor(each, dtype=None if slot in function.conditions else dtype)
                for slot, each in enumerate(arguments)
            ]
            ours = function.torch(torch, *tensors)
            assert ours.dtype == (torch.bool if function.result == "predicate" else dtype)
            for target in function.targets:
                try:
                    with torch.no_grad():
                        theirs = call_target(function, target, arguments)
                except (TypeError, RuntimeError):
                    continue  # numbers where it takes tensors, or the other way round
                reached.add(target)
                theirs = theirs.to(ours.dtype) if function.name == "where" else theirs  # of two numbers: f32
                torch.testing.assert_close(ours, theirs, rtol=tolerance, atol=tolerance, equal_nan=True)
    assert reached == set(function.targets)


def whole_numbers() -> torch.Tensor:
    generator = torch.Generator().manual_seed(5)
    most = 2**31 - 1
    special = torch.tensor([0, 1, -1, 2, 3, 6, 7, -6, 46340, 46341, 65536, most, -most, -most - 1, most - 1])
    small, large = (torch.randint(-high, high, (200,), generator=generator) for high in (20, most))
    return torch.cat([special, small, large]).int()


@each(WHOLE)
def test_integers_wrap_as_in_pytorch(function: Function) -> None:
    numbers = whole_numbers()
    arguments = [numbers.roll(3 * slot) for slot in range(len(function.parameters))]
    if function.name in DIVIDES:  # where PyTorch raises, or traps
        arguments = [each[(arguments[1] != 0) & (arguments[1] != -1)] for each in arguments]
    single = function.torch(torch, *arguments)
    assert single.dtype == (torch.bool if function.result == "predicate" else torch.int32)
    double = function.torch(torch, *(argument.long() for argument in arguments))
    assert torch.equal(single, double.to(single.dtype))


@pytest.mark.parametrize(
    ("function", "fact"),
    [(function, fact) for function in WHOLE for fact in Fact if fact in function.facts & EQUATIONS],
    ids=lambda value: getattr(value, "name", None),
)
def test_facts_hold_over_integers(function: Function, fact: Fact) -> None:
    left, right = (compile(side, fact.name, "eval") for side in fact.value.split(" = "))
    names = [name for name in ("x", "y", "z", "zero", "whole") if re.search(rf"\b{name}\b", fact.value)]
    numbers = torch.zeros(1, dtype=torch.int32) if names == ["zero"] else whole_numbers()
    rest = [torch.tensor(value, dtype=torch.int32) for value in (-3, 5)[: len(function.parameters) - 1]]
    scope = {
        "f": lambda *given: function.torch(torch, *given, *(rest if len(given) == 1 else [])),
        **{name: numbers.roll(5 * place) for place, name in enumerate(names)},
    }
    if len(names) > 1 and fact is not Fact.IDEMPOTENT_BINARY:
        assert len(names) >= len(function.parameters)
    both = [torch.as_tensor(eval(side, scope), dtype=torch.int32) for side in (left, right)]
    assert torch.equal(*torch.broadcast_tensors(*both))


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
        least = 2.0**-50 if function.name in CANCELS else least
        torch.testing.assert_close(folded, exact, rtol=2.0**-23, atol=least, equal_nan=True)
        # On float32 itself intermediates round, and overflow or vanish, earlier.
        single = single.float()  # of a truth value, 0 or 1
        assert function.result == "value" or torch.equal(folded, single)
        near = torch.isclose(folded, single, rtol=1e-5, atol=CANCELS.get(function.name, 2e-6), equal_nan=True)
        assert bool((near | ~single.isfinite() | (single == 0) | (folded.abs() > 1e20)).all())


@pytest.mark.parametrize(
    ("function", "fact"),
    [(function, fact) for function in ROWS for fact in Fact if fact in function.facts & EQUATIONS],
    ids=lambda value: getattr(value, "name", None),
)
def test_facts_hold_to_the_bit(function: Function, fact: Fact) -> None:
    left, right = (compile(side, fact.name, "eval") for side in fact.value.split(" = "))
    names = [name for name in ("x", "y", "z", "zero", "whole") if re.search(rf"\b{name}\b", fact.value)]
    values = (*SPECIAL, *randoms(1000 if len(names) == 1 else 10))
    whole = [x for x in values if not math.isfinite(x) or x.is_integer()]
    domain = (0.0, -0.0) if names == ["zero"] else whole if names == ["whole"] else values
    for hyper in hyper_parameters(function):

        def f(*arguments: float, hyper: tuple[float, ...] = hyper) -> float:
            return f32(function.fold(*arguments, *map(f32, hyper)))

        for row in itertools.product(domain, repeat=len(names)):
            scope = {"f": f, **dict(zip(names, row, strict=True))}
            assert same(eval(left, scope), eval(right, scope)), (hyper, row)


def test_what_selects_gives_one_of_its_operands_or_zero() -> None:
    rows = [row for row in ROWS if Fact.SELECTING in row.facts]
    assert {row.name for row in rows} >= {"relu", "max", "where", "clamp"}
    for row in rows:
        for arguments in itertools.product((*SPECIAL[::3], math.nan), repeat=len(row.parameters)):
            found, candidates = row.fold(*arguments), [x for i, x in enumerate(arguments) if i not in row.conditions]
            assert any(same(found, x) or (x != x and found != found) for x in (*candidates, 0.0)), (row.name, arguments)


@pytest.mark.parametrize("dtype", [F32, TF32, F16, BF16, E4M3, E5M2], ids=str)
def test_what_is_closed_stays_within_a_float_type(dtype: DType) -> None:
    rows = [row for row in ROWS if Fact.CLOSED in row.facts]
    assert {row.name for row in rows} >= {"floor", "abs", "relu6"}
    values = {round_constant(dtype, x) for x in (*SPECIAL, *randoms(300)) if math.isfinite(x)}
    for row in rows:
        assert all(is_exact(dtype, row.fold(x)) for x in values), row.name


@each([row for row in ROWS if row.comparison is not None])
def test_comparisons_name_their_relatives(function: Function) -> None:
    known = function.comparison
    assert known is not None
    converse, opposite = TABLE[known.converse], TABLE[known.opposite]
    assert bool(known.chosen) == (Fact.COMMUTATIVE not in function.facts)
    for x, y in itertools.product(SPECIAL, repeat=2):
        assert function.fold(x, y) == converse.fold(y, x)
        if x == x and y == y:
            assert function.fold(x, y) != opposite.fold(x, y)
            if known.chosen and (x or y):  # of two zeros `max` gives +0
                assert TABLE[known.chosen].fold(x, y) == TABLE["where"].fold(function.fold(x, y), x, y)
        elif not known.chosen:
            assert function.fold(x, y) != opposite.fold(x, y)


def test_facts_that_do_not_hold_are_not_claimed() -> None:
    """The traps: `x + y` is not associative; the sign of -0 is 0, so `sign` is not odd."""
    assert Fact.ASSOCIATIVE not in TABLE["add"].facts | TABLE["mul"].facts
    assert Fact.ODD not in TABLE["sign"].facts | TABLE["tanhshrink"].facts
    assert Fact.NON_NEGATIVE not in TABLE["sqrt"].facts
    assert Fact.IDEMPOTENT not in TABLE["leaky_relu"].facts
    assert Fact.NON_NEGATIVE not in TABLE["square"].facts  # over i32 it wraps
    assert Fact.IDEMPOTENT_BINARY not in TABLE["logical_and"].facts  # `2 && 2` is 1
    assert Fact.ODD not in TABLE["hardshrink"].facts | TABLE["frac"].facts
    assert Fact.ZERO_TO_ZERO not in TABLE["softshrink"].facts  # with a negative lambd


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
        ("sinh", (-1e3,), -math.inf),
        ("atanh", (-1.0,), -math.inf),
        ("atanh", (2.0,), math.nan),
        ("acosh", (0.5,), math.nan),
        ("tan", (math.inf,), math.nan),
        ("trunc", (-0.5,), -0.0),
        ("frac", (-1.0,), 0.0),
        ("frac", (math.inf,), math.nan),
        ("fmod", (-7.0, 2.0), -1.0),
        ("fmod", (-4.0, 2.0), -0.0),
        ("fmod", (1.0, 0.0), math.nan),
        ("remainder", (-7.0, 2.0), 1.0),
        ("remainder", (-1.0, math.inf), math.inf),
        ("remainder", (-4.0, 2.0), -0.0),
        ("hypot", (math.inf, math.nan), math.inf),
        ("logaddexp", (math.inf, math.inf), math.inf),
        ("logaddexp", (-math.inf, -math.inf), -math.inf),
        ("xlogy", (0.0, -1.0), 0.0),
        ("xlogy", (0.0, math.nan), math.nan),
        ("logit", (1.0,), math.inf),
        ("logit", (-0.0,), -math.inf),
        ("logit", (1.5,), math.nan),
        ("heaviside", (math.nan, 0.5), 0.0),
        ("heaviside", (-0.0, 0.5), 0.5),
        ("copysign", (-3.0, 0.0), 3.0),
        *(("sinc", (x,), float(x == 0)) for x in (0.0, 1.0, -1.0, 2.0, -7.0, 44710.0, 2.0**24, 3.4e38)),
        ("threshold", (math.nan, 1.0, 2.0), math.nan),
        ("softshrink", (-0.25, 0.5), -0.0),
        ("hardshrink", (-0.25, 0.5), 0.0),
        ("where", (math.nan, 1.0, 2.0), 1.0),
        ("ne", (math.nan, math.nan), 1.0),
        ("logical_not", (math.nan,), 0.0),
        ("isfinite", (-math.inf,), 0.0),
    ],
)
def test_fold_of_special_values(name: str, arguments: tuple[float, ...], expected: float) -> None:
    assert same(TABLE[name].fold(*arguments), expected)
