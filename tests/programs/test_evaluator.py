"""The parts of the evaluator of random programs: roundings, functions, derivatives, and doubts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

import evt
from evt.functions import TABLE
from tests.programs.call import problems
from tests.programs.checks import check
from tests.programs.combined import or_zero, squared
from tests.programs.derivatives import Derivatives
from tests.programs.functions import EAGER, FUNCTIONS
from tests.programs.number import COUNT, NO_DOUBT, WIDE, Arithmetic, Number, deviation
from tests.programs.products import accumulated
from tests.programs.rounding import FLOATS, grain, rounded, wrapped
from tests.programs.simple import gemm, kinds
from tests.programs.tree import Acc, Assign, Block, Call, Cast, Input, Output, Pair, Read, Reduce, Sizes
from tests.programs.tree import Number as Literal


def test_every_function_has_a_meaning_of_its_own() -> None:
    rows = {name: row for name, row in TABLE.items() if not row.source}
    assert set(rows) == set(FUNCTIONS)
    for name, row in rows.items():
        wanted = [(each.name, each.default) for each in row.parameters]
        assert [each for each, _ in FUNCTIONS[name].parameters] == [each for each, _ in wanted]
        for (_, mine), (_, other) in zip(FUNCTIONS[name].parameters, wanted, strict=True):
            assert (mine is None) == (other is None)
            assert mine is None or mine == pytest.approx(other, rel=1e-15)


def decoded(name: str) -> np.ndarray:
    """Every finite value of a type of up to 16 bits that is not negative, in order, from its bits."""
    fraction, least, largest, _ = FLOATS[name]
    exponents = {"f16": 5, "bf16": 8, "e4m3": 4, "e5m2": 5}[name]
    bits = np.arange(2 ** (exponents + fraction), dtype=np.int64)
    exponent, mantissa = bits >> fraction, bits & (2**fraction - 1)
    normal = (mantissa + 2**fraction) * 2.0 ** (exponent - 1.0 + least - fraction)
    values = np.where(exponent == 0, mantissa * 2.0 ** (least - fraction), normal)
    return values[values <= largest]


@pytest.mark.parametrize("name", ["f16", "bf16", "e4m3", "e5m2"])
def test_rounding_of_every_value_and_every_halfway(name: str) -> None:
    values = decoded(name)
    for sign in (1.0, -1.0):
        assert np.array_equal(rounded(name, sign * values), sign * values)
        low, high = values[:-1], values[1:]
        middle = (low + high) / 2
        even = np.where(np.arange(len(low)) % 2 == 0, low, high)  # neighbours differ in the last bit
        assert np.array_equal(rounded(name, sign * middle), sign * even)
        assert np.array_equal(rounded(name, sign * np.nextafter(middle, 0)), sign * low)
        assert np.array_equal(rounded(name, sign * np.nextafter(middle, np.inf)), sign * high)
    saturates = FLOATS[name][3]
    beyond = rounded(name, np.array([1e300, -1e300, np.inf, -np.inf, np.nan]))
    ends = FLOATS[name][2] if saturates else np.inf
    assert np.array_equal(beyond, np.array([ends, -ends, ends, -ends, np.nan]), equal_nan=True)


def test_rounding_to_integers_and_bits() -> None:
    values = np.array([0.5, 1.5, 2.5, -0.5, -1.5, 126.5, 127.5, 300.0, -300.0, 1e300, -np.inf, np.nan, 1e-300, -0.0])
    assert rounded("i8", values).tolist() == [0, 2, 2, 0, -2, 126, 127, 127, -128, 127, -128, 0, 0, 0]
    assert rounded("u8", values).tolist() == [0, 2, 2, 0, 0, 126, 128, 255, 0, 255, 0, 0, 0, 0]
    assert rounded("i32", values)[9:].tolist() == [2**31 - 1, -(2**31), 0, 0, 0]
    assert rounded("b1", values).tolist() == [1] * 13 + [0]
    assert wrapped(np.array([2**31, -(2**31) - 1, 2**33 + 5])).tolist() == [-(2**31), 2**31 - 1, 5]
    assert grain(np.array([3.0, 0.0, -0.75, np.inf])) == 0.25


def exact_arithmetic() -> Arithmetic:
    return Arithmetic(False, 0.0, np.random.default_rng(0))


def at(values: Any) -> Number:
    return Number(np.asarray(values, dtype=float).reshape(1, 1, 1, -1), NO_DOUBT, exact_arithmetic())


#: Points at which functions are smooth, away from every kink.
POINTS = np.array([-2.35, -1.27, -0.81, -0.33, 0.21, 0.64, 0.87, 1.43, 2.71, 4.4])


@pytest.mark.parametrize("name", [name for name, row in TABLE.items() if row.derivatives])
@pytest.mark.parametrize("primes", [1, 2])
def test_derivatives(name: str, primes: int) -> None:
    """By series, by differences of the meaning, and by evt's formulas in doubles: the three agree."""
    constants = [0.75, 1.1][: len(TABLE[name].parameters) - 1]
    call = Call(name, (Acc(),), primes=primes)
    values, doubt = Derivatives({}, exact_arithmetic())(call, at(POINTS).x, constants)
    series, known = values[0, 0, 0], ~np.broadcast_to(doubt, values[0].shape)[0, 0]
    op = evt.gemm(f"D = {name}{chr(39) * primes}({', '.join(['acc', *map(str, constants)])}) + 0*acc")
    one = torch.ones(1, 1, dtype=torch.float64)
    found = op.reference(one, torch.from_numpy(POINTS).reshape(1, -1), float64=True).numpy()[0]
    np.testing.assert_allclose(found[known], series[known], rtol=1e-9, atol=1e-9)
    if not FUNCTIONS[name].predicate:
        with np.errstate(all="ignore"):
            differences = differentiated(lambda x: meaning(name, x, constants), POINTS, primes)
        finite = known & np.isfinite(differences)
        assert finite.sum() >= 2
        np.testing.assert_allclose(series[finite], differences[finite], rtol=2e-4, atol=2e-4)


def meaning(name: str, x: np.ndarray, constants: list[float]) -> np.ndarray:
    t = exact_arithmetic()
    numbers = [Number(x.reshape(1, 1, 1, -1), NO_DOUBT, t), *map(t.number, constants)]
    return np.broadcast_to(FUNCTIONS[name].meaning(t, *numbers).x[0], (1, 1, x.size))[0, 0]


def test_softplus_may_overflow_below_its_threshold() -> None:
    t = Arithmetic(True, 1.0, np.random.default_rng(0))
    x, threshold = Number(np.array([-90.0, 3.0, 80.0, 90.0, 1e4]).reshape(1, 1, 1, -1), NO_DOUBT, t), t.number(1e3)
    found = FUNCTIONS["softplus"].meaning(t, x, t.number(1.0), threshold)
    assert np.broadcast_to(found.doubt, (1, 1, 5))[0, 0].tolist() == [False, False, False, True, False]
    assert np.isfinite(found.x).all()


LARGEST = FLOATS["f32"][2]
#: Rows of A and of B: numbers that tf32 does not have, infinities, and terms that overflow together.
ENDS = (
    [[2.0**-149, 1], [-np.inf, 1], [LARGEST / 2, 1], [2, 1], [LARGEST, 0]],
    [
        [np.inf, 1],
        [2.0**-149, 0],
        [3, -np.inf],
        [1, 1],
    ],
)


@pytest.mark.parametrize(
    ("off", "doubted"), [(0.0, {(2, 2), (4, 2)}), (2.0**-9, {(0, 0), (1, 1), (2, 2), *((4, n) for n in range(4))})]
)
def test_a_product_is_in_doubt_where_order_or_tf32_decides_what_is_finite(off: float, doubted: set[Any]) -> None:
    program = gemm(Acc())
    (data,) = problems(program)
    a, b = (np.array(rows)[None] for rows in ENDS)
    t = Arithmetic(True, 1.0, np.random.default_rng(0))
    found = accumulated(program, replace(data, a=a, b=b, sizes=data.sizes | {"k": 2}), t, {}, off)
    doubt = np.broadcast_to(found.doubt, (1, len(ENDS[0]), len(ENDS[1])))[0]
    assert {tuple(map(int, each)) for each in np.argwhere(doubt)} == doubted


def test_an_infinity_times_a_sum_that_may_be_zero_is_in_doubt() -> None:
    t = Arithmetic(True, 1.0, np.random.default_rng(0))
    sums = np.zeros((COUNT, 1, 1, 3))
    sums[:, 0, 0, :2] = 0.5
    sums[1, 0, 0] = 0.49, -0.5, 0
    given = Number(sums, NO_DOUBT, t)
    for found in (given * np.inf, np.inf * given):
        assert np.broadcast_to(found.doubt, (1, 1, 3))[0, 0].tolist() == [False, True, False]


def test_a_variance_that_rounding_makes_may_be_zero() -> None:
    """The mean of equal values may differ from them by its rounding; 0 / 0 is NaN then, and not infinite."""
    t = Arithmetic(True, 1.0, np.random.default_rng(0))
    variances = np.ones((COUNT, 1, 1, 2))
    variances[:, 0, 0, 0] = np.linspace(1e-15, 3e-15, COUNT) ** 2
    found = or_zero(Number(variances, NO_DOUBT, t)) / 0.0
    assert np.isinf(deviation(found.x))[0, 0].tolist() == [True, False]


def test_a_variance_is_in_doubt_where_a_squared_difference_overflows() -> None:
    t = Arithmetic(True, 1.0, np.random.default_rng(0))
    rows = np.array([[0, 2.0**64, 0, 0], [2.0**62, 2.0**63, 2.0**63, 0], [2.0**62, 2.0**62, 2.0**63, 2.0**63]])
    found = squared(Number(np.ones((1, 1, 3, 1)), NO_DOUBT, t), Number(rows.reshape(1, 1, 3, 4), NO_DOUBT, t), [3])
    assert np.broadcast_to(found.doubt, (1, 3, 1)).ravel().tolist() == [True, True, False]


def test_the_slope_of_gelu_has_limits() -> None:
    t = Arithmetic(True, 1.0, np.random.default_rng(0))
    infinite = Number(np.array([np.inf, -np.inf]).reshape(1, 1, 1, 2), NO_DOUBT, t)
    assert FUNCTIONS["gelu_slope"].meaning(t, infinite).x[0].ravel().tolist() == [1.0, 0.0]
    acc = torch.tensor([[torch.inf, -torch.inf]]).double()
    assert evt.gemm("D = gelu_slope(acc)").reference(torch.ones(1, 1).double(), acc).tolist() == [[1.0, 0.0]]


@pytest.mark.parametrize("single", [True, False])
def test_a_sum_is_in_doubt_where_a_contracted_product_does_not_overflow(single: bool) -> None:
    t = Arithmetic(single, 1.0, np.random.default_rng(0))
    large = t.largest
    rows = (
        (-100.0, large, np.inf, True),  # nan, or inf
        (1.5, large, -0.75 * large, True),  # inf, or finite
        (1.5, large, 1.0, False),
        (1.5, large, np.nan, False),
        (np.inf, 1.0, -np.inf, False),
        (2.0, 3.0, 1.0, False),
        (2.0, 3.0, np.inf, False),
    )
    *columns, doubted = zip(*rows, strict=True)
    x, y, z = (Number(np.array(each).reshape(1, 1, 1, -1), NO_DOUBT, t) for each in columns)
    for found in (x * y + z, z + x * y, -(x * y) - z, z - (-x) * y):
        assert np.broadcast_to(found.doubt, (1, 1, len(rows)))[0, 0].tolist() == list(doubted)
    exact = Arithmetic(single, 0.0, np.random.default_rng(0))
    x, y, z = map(exact.number, (x, y, z))
    assert not (x * y + z).doubt.any()


@pytest.mark.parametrize("modes", [(), ("n",), ("m", "n")])
@pytest.mark.parametrize("kind", ["sum", "max", "mean"])
def test_blocks_of_pairs_meet_pairs_that_are_the_same_in_all_columns(kind: str, modes: tuple[str, ...]) -> None:
    value = Call("mul", (Pair(0, 16, Read("scale")), Block(kind, 32, Pair(1, 16, Acc()))), "*")
    program = gemm(
        Reduce(kind, modes, value) if modes else value,
        Input("scale", ("m",), "f32"),
        outputs=(
            Output("D", tuple(each for each in ("m", "n") if each not in modes) if modes else ("m", "n/2"), "f32"),
        ),
    )
    program = replace(program, sizes=Sizes((), (3,), 192, 4))
    assert kinds(program) == set()


@pytest.mark.parametrize(("a", "accepted"), [("u8", False), ("i8", False), ("f16", True), ("e4m3", True)])
def test_a_program_may_be_none_for_the_types_of_its_operands(a: str, accepted: bool) -> None:
    """An integer has no negative integer power: that is no failure of the call."""
    report = check(replace(gemm(Call("pow", (Acc(), Literal("-1")), "**")), a=a, b=a), ())
    assert (report.failures, report.accepted) == ([], accepted)


@pytest.mark.parametrize("number", ["2147483647", "2147483648"])
def test_the_least_integer_is_one(number: str) -> None:
    least = Call("sub", (Cast("u8", Literal("3")), Call("neg", (Literal(number),), "-")))
    program = gemm(Acc(), outputs=(Output("D", ("m", "n"), "f32"), Output("E", (), None)))
    reduced = Assign("E", Reduce("max", ("l", "m", "n"), least))
    assert kinds(replace(program, assigns=(*program.assigns, reduced))) == set()


def differentiated(f: Callable[[np.ndarray], np.ndarray], x: np.ndarray, order: int) -> np.ndarray:
    """Central differences, extrapolated once."""

    def difference(h: float) -> np.ndarray:
        return (f(x + h) - f(x - h)) / (2 * h) if order == 1 else (f(x + h) - 2 * f(x) + f(x - h)) / h**2

    return (4 * difference(1e-3) - difference(2e-3)) / 3


@pytest.mark.parametrize("name", ["gelu", "sinc"])
def test_pytorchs_formulas_in_f32_are_within_the_tolerances(name: str) -> None:
    """Both cancel: gelu below -3, and sinc at whole numbers, where its sign is that of a rounded product."""
    some = np.concatenate([decoded("f16"), np.arange(300.0), np.linspace(0, 20, 4001)]).astype(np.float32)
    values = np.concatenate([some, -some])[None, None]
    x, t = torch.from_numpy(values), Arithmetic(True, 1.0, np.random.default_rng(0))
    given = Number(values[None].astype(float), NO_DOUBT, t)
    found = {**FUNCTIONS, **EAGER}[name].meaning(t, given)
    reach = WIDE * deviation(found.x)
    for theirs in (PYTORCH[name](x), PYTORCH[name](x.double())):
        good = np.abs(theirs.double().numpy() - found.x[0]) <= reach + 1e-38
        assert (good | found.doubt).all()


PYTORCH: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "gelu": lambda x: x * 0.5 * (1 + torch.erf(x * 0.5**0.5)),
    "sinc": torch.sinc,
}
