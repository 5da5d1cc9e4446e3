"""The oracle against PyTorch written by hand."""

from __future__ import annotations

import math
import random
import weakref
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

import evt
from evt.functions import TABLE, scalar
from evt.ir import Dag, TypedDag, infer, lower, parse_dag
from evt.language import parse
from evt.reference import evaluate, reference
from tests.programs import same, typed
from tests.support.matrices import K, L, M, N, make

A, B = make(M, K), make(K, N)
INPUTS: dict[str, Any] = {
    "alpha": 1.5,
    "beta": 0.5,
    "C": make(M, N),
    "residual": make(M, N + 0) * 2,
    "bias": make(N),
    "row": make(M),
    "T": make(N, M),
    "gate": make(M, N),
}
FORMULAS: dict[str, Callable[[Any], Tensor]] = {
    "D = acc": lambda v: v.acc,
    "D = relu(alpha*acc + beta*C) + residual": lambda v: torch.relu(v.alpha * v.acc + v.beta * v.C) + v.residual,
    "D = gelu(acc + bias)": lambda v: functional.gelu(v.acc + v.bias),
    "D = gelu_tanh(acc + bias)": lambda v: functional.gelu(v.acc + v.bias, approximate="tanh"),
    "D = silu(acc) * gate": lambda v: functional.silu(v.acc) * v.gate,
    "D = row[m] * acc + bias": lambda v: v.row[:, None] * v.acc + v.bias,
    "D = acc + T[n, m]": lambda v: v.acc + v.T.T,
    "D = clamp(acc, min=-1, max=2) / (1 + abs(C))": lambda v: v.acc.clamp(-1, 2) / (1 + v.C.abs()),
    "D = bf16(acc) + C": lambda v: v.acc.to(torch.bfloat16).to(v.acc.dtype) + v.C,
    "D = acc ** 3 - acc ** 2": lambda v: v.acc.pow(3) - v.acc.pow(2),
    "D = leaky_relu(acc, 0.25) + hardtanh(C)": lambda v: functional.leaky_relu(v.acc, 0.25) + functional.hardtanh(v.C),
    "D = elu(acc) * mish(C) + softplus(bias)": lambda v: (
        functional.elu(v.acc) * functional.mish(v.C) + functional.softplus(v.bias)
    ),
    "z = acc + bias; D = z * sigmoid(z) - max(z, C)": lambda v: (
        functional.silu(v.acc + v.bias) - torch.maximum(v.acc + v.bias, v.C)
    ),
    "D = exp(-square(acc)) + rsqrt(1 + square(C))": lambda v: torch.exp(-(v.acc**2)) + torch.rsqrt(1 + v.C**2),
}


def used(dag: Dag, values: dict[str, Any] = INPUTS) -> dict[str, Any]:
    return {value.name: values[value.name] for value in dag.inputs}


def wide(values: dict[str, Any], dtype: torch.dtype) -> dict[str, Any]:
    return {name: value.to(dtype) if isinstance(value, Tensor) else value for name, value in values.items()}


@pytest.mark.parametrize("formula", FORMULAS)
@pytest.mark.parametrize("float64", [False, True], ids=["f32", "f64"])
def test_formula(formula: str, float64: bool) -> None:
    dag = typed(formula)
    dtype = torch.float64 if float64 else torch.float32
    found = reference(dag, A, B, used(dag), float64=float64)["D"]
    expected = FORMULAS[formula](SimpleNamespace(acc=A.to(dtype) @ B.to(dtype), **wide(INPUTS, dtype)))
    assert found.dtype == (dtype if float64 else torch.float16)
    assert found.shape == (M, N)
    torch.testing.assert_close(found, expected.to(found.dtype), rtol=1e-6 if float64 else 2e-3, atol=1e-6)


@pytest.mark.parametrize("name", TABLE)
def test_every_function(name: str) -> None:
    row = TABLE[name]
    names = ["acc", "C", "gate"][: row.required]
    values = [make(M, N, dtype=torch.float64), INPUTS["C"], INPUTS["gate"]][: row.required]
    defaults = [torch.tensor(p.default, dtype=torch.float64) for p in row.parameters[row.required :]]
    dag = typed(f"D = {name}({', '.join(names)}) + acc")
    found = evaluate(dag, values[0], used(dag), dtype=torch.float64)["D"]
    wide_values = [value.to(torch.float64) for value in (*values, *defaults)]
    expected = row.torch(torch, *wide_values) + values[0]
    torch.testing.assert_close(found, expected, rtol=1e-14, atol=1e-15, equal_nan=True)


@pytest.mark.parametrize("modes_a", ["[m, k]", "[k, m]"])
@pytest.mark.parametrize("modes_b", ["[k, n]", "[n, k]"])
@pytest.mark.parametrize("operation", ["gemm", "linear"])
def test_operands(operation: str, modes_a: str, modes_b: str) -> None:
    dag = typed_by_header(f"{operation}(A: f16{modes_a}, B: f16{modes_b}); D = acc")
    a = A.T.contiguous() if modes_a == "[k, m]" else A
    b = B.T.contiguous() if modes_b == "[n, k]" else B
    assert same(reference(dag, a, b, {})["D"], (A.float() @ B.float()).half())


def typed_by_header(text: str) -> TypedDag:
    return infer(lower(parse(text)))


@pytest.mark.parametrize(
    ("shape_a", "shape_b", "batch"),
    [
        ((L, M, K), (K, N), (L,)),
        ((L, M, K), (L, K, N), (L,)),
        ((M, K), (L, K, N), (L,)),
        ((2, L, M, K), (L, K, N), (2, L)),
        ((2, 1, M, K), (1, L, K, N), (2, L)),
        ((0, M, K), (K, N), (0,)),
    ],
)
def test_batches(shape_a: tuple[int, ...], shape_b: tuple[int, ...], batch: tuple[int, ...]) -> None:
    a, b, c = make(*shape_a), make(*shape_b), make(*batch, M, N)
    dag = typed("D = acc + C + bias; E[n, m] = acc")
    acc = (a.double() @ b.double()).float()
    for given in (c, INPUTS["C"]):  # one for each batch, or one for all
        found = reference(dag, a, b, {"C": given, "bias": INPUTS["bias"]})
        assert same(found["D"], (acc + given + INPUTS["bias"]).half())
        assert same(found["E"], acc.mT.half())
        assert found["E"].is_contiguous()


def test_the_rows_of_a_linear_map() -> None:
    dag = typed_by_header("linear(A: f16, B: f16); D = acc + C + row[m]; E[n, m] = acc")
    weight = B.T.contiguous()
    a, c, row = make(2, L, K), make(2, L, N), make(2, L)
    found = reference(dag, a, weight, {"C": c, "row": row})
    acc = functional.linear(a.float(), weight.float())
    torch.testing.assert_close(found["D"], (acc + c + row[..., None]).half(), rtol=2e-3, atol=1e-3)
    assert found["E"].shape == (N, 2, L)
    flat = reference(dag, a, weight, {"C": c.reshape(2 * L, N), "row": row.flatten()})
    assert same(flat["D"], found["D"])
    one = reference(typed_by_header("linear(A: f16, B: f16); D = acc + bias"), A[0], weight, {"bias": make(N)})
    assert one["D"].shape == (N,)


def test_modes_of_the_batch() -> None:
    a, x, b, s = make(L, M, K), make(L, M, N), make(L, N), make(L)
    dag = typed("in s: f32[l]; D[l, m, n] = acc + X[l, m, n] + b[l, n] + s")
    found = reference(dag, a, B, {"X": x, "b": b, "s": s.float()})["D"]
    assert same(found, (a.float() @ B.float() + x + b[:, None] + s.float()[:, None, None]).half())
    found = evaluate(typed("D[n, l, m] = acc"), make(L, M, N), {})["D"]
    assert same(found, make(L, M, N).permute(2, 0, 1))
    found = evaluate(typed("D[n, l, m] = acc"), make(M, N), {})["D"]
    assert found.shape == (N, M)


@pytest.mark.parametrize("value", [1.5, 3, True, torch.tensor(1.5), torch.full((1, 1), 1.5), torch.ones(1).half()])
def test_scalars(value: Any) -> None:
    found = evaluate(typed("D = alpha * acc", "f32"), make(M, N), {"alpha": value})["D"]
    assert same(found, float(value) * make(M, N).float())


def test_a_scalar_is_an_f32_number_as_in_a_kernel() -> None:
    acc = torch.ones(1, 1, dtype=torch.float64)
    found = evaluate(typed("D = alpha * acc"), acc, {"alpha": 0.1}, dtype=torch.float64)["D"]
    assert found.item() == torch.tensor(0.1).double().item() != 0.1


def test_defaults() -> None:
    dag = typed("in s = 0.5, t: f32 = 2; D = acc * s + t", "f32")
    assert same(evaluate(dag, make(M, N), {})["D"], make(M, N).float() * 0.5 + 2)
    assert same(evaluate(dag, make(M, N), {"s": 3.0})["D"], make(M, N).float() * 3 + 2)


def test_casts_round_in_f64_too() -> None:
    acc = torch.full((1, 1), 1.0 / 3.0, dtype=torch.float64)

    def value(text: str) -> float:
        return float(evaluate(typed(text), acc, {}, dtype=torch.float64)["D"])

    third = 1.0 / 3.0
    assert value("D = acc") == third
    assert value("D = acc * 0 + 0.1") == 0.1  # rounded to f32 by functions that compute in f32
    for name in ("f16", "bf16", "f32"):
        dtype = {"f16": torch.float16, "bf16": torch.bfloat16, "f32": torch.float32}[name]
        assert value(f"D = {name}(acc)") == torch.tensor(third, dtype=torch.float64).to(dtype).item() != third


def test_outputs_have_their_types_and_order() -> None:
    dag = typed("out E: bf16, D: f16[n, m], F: f32; D = acc; E = acc * 2; F = acc + 1", "f32")
    acc = make(M, N).float()
    found = evaluate(dag, acc, {})
    assert list(found) == ["E", "D", "F"]
    assert [value.dtype for value in found.values()] == [torch.bfloat16, torch.float16, torch.float32]
    assert same(found["D"], acc.T.half())
    oracle = evaluate(dag, acc, {}, dtype=torch.float64)
    assert {value.dtype for value in oracle.values()} == {torch.float64}


def test_an_output_is_broadcast() -> None:
    text = "out D, E[m, n], F[m, n]; D = acc; E = bias * 2; F = alpha * 2"
    found = evaluate(typed(text, "f32"), make(M, N), {"bias": make(N), "alpha": 2})
    assert same(found["E"], (make(N).float() * 2).expand(M, N))
    assert same(found["F"], torch.full((M, N), 4.0))
    found = evaluate(typed("D = acc; E = bias * 2; F = alpha * 2", "f32"), make(M, N), {"bias": make(N), "alpha": 2})
    assert same(found["E"], make(N).float() * 2)
    assert same(found["F"], torch.tensor(4.0))


def test_outputs_share_no_memory() -> None:
    acc, c = make(M, N).float(), make(M, N).float()
    found = evaluate(typed("D = acc; E = acc; F = C", "f32"), acc, {"C": c})
    pointers = {value.data_ptr() for value in (acc, c, *found.values())}
    assert len(pointers) == 5
    assert all(value.is_contiguous() for value in found.values())


def test_inputs_are_left_alone() -> None:
    dag = typed("D = relu(acc) + relu(C)", "f32")
    acc, c = make(M, N).float(), make(M, N).float()
    before = acc.clone(), c.clone()
    evaluate(dag, acc, {"C": c})
    assert same(acc, before[0])
    assert same(c, before[1])


def test_nan_and_infinity_go_through() -> None:
    acc = torch.tensor([[float("nan"), float("inf"), float("-inf"), -0.0]])
    found = evaluate(typed("D = relu(acc)", "f32"), acc, {})["D"]
    assert found[0, 0].isnan()
    assert found[0, 1:].tolist() == [float("inf"), 0.0, 0.0]
    found = evaluate(typed("D = f16(acc * 100000)", "f32"), torch.ones(1, 1), {})["D"]
    assert found.item() == float("inf")


@pytest.mark.parametrize("shape", [(0, N), (M, 0), (0, 0), (1, 1)])
def test_small_problems(shape: tuple[int, int]) -> None:
    m, n = shape
    found = reference(typed("D = acc + bias; E[n, m] = acc"), make(m, K), make(K, n), {"bias": make(n)})
    assert found["D"].shape == (m, n)
    assert found["E"].shape == (n, m)
    empty = reference(typed("D = acc + bias"), make(m, 0), make(0, n), {"bias": make(n)})["D"]
    assert same(empty, make(n).expand(m, n))
    for k in (0, K):
        worked = reference(typed("A = relu(A) + 1; B = -B; D = acc"), make(m, k), make(k, n), {})["D"]
        assert same(worked, ((make(m, k).float().relu() + 1) @ -make(k, n).float()).half())


def test_strides_do_not_matter() -> None:
    wide_a, c = make(M, 2 * K)[:, ::2], make(N, M).T
    found = reference(typed("D = acc + C"), wide_a, B, {"C": c})["D"]
    assert same(found, (wide_a.contiguous().float() @ B.float() + c).half())


@pytest.mark.parametrize(
    ("formula", "name", "shape"),
    [
        *[("D = acc + C", "C", (N, M)), ("D = acc + C", "C", (N,)), ("D = acc + C", "C", (1, N))],
        *[("D = acc + C[m, n]", "C", (1, M, N)), ("D = acc + bias", "bias", (M,)), ("D = acc + bias", "bias", (1, N))],
    ],
)
def test_a_shape_that_does_not_fit(formula: str, name: str, shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=f"the input {name} has shape"):
        reference(typed(formula), A, B, {name: make(*shape)})


def test_a_missing_input() -> None:
    with pytest.raises(ValueError, match="bias is missing"):
        reference(typed("D = acc + bias"), A, B, {})


def test_a_long_chain_holds_few_values(monkeypatch: pytest.MonkeyPatch) -> None:
    """A formula of 5,000 nodes is evaluated without recursion, and values are freed after their last use."""
    alive: list[Any] = []
    most = 0
    row = TABLE["add"]

    def counting(t: Any, x: Tensor, y: Tensor) -> Tensor:
        nonlocal most
        result = x + y
        alive.append(weakref.ref(result))
        alive[:] = [each for each in alive if each() is not None]
        most = max(most, len(alive))
        return result

    dag = typed("D = acc" + " + 1" * 5000, "f32")

    monkeypatch.setattr("evt.reference.exact.TABLE", {"add": replace(row, torch=counting)})
    found = evaluate(dag, torch.zeros(2, 2), {})["D"]
    assert found.tolist() == [[5000.0] * 2] * 2
    assert most <= 3


def test_graphs_that_are_read_back_mean_the_same() -> None:
    dag = typed("in s = 0.1; D = gelu(acc * s + bias) + f16(C)")
    again, values = parse_dag(str(dag)), used(dag, {**INPUTS, "s": 2})
    assert isinstance(again, TypedDag)
    assert same(reference(again, A, B, values)["D"], reference(dag, A, B, values)["D"])


# Types


def test_integers_are_computed_as_integers() -> None:
    a, b = torch.full((2, 300), 127, dtype=torch.int8), torch.full((300, 3), 127, dtype=torch.int8)
    dag = typed("in big: i32[m, n]; out D: i32, E: f32; D = acc + big * 3 - 1; E = acc / 2", "i8")
    big = torch.full((2, 3), 2**30, dtype=torch.int32)
    found = reference(dag, a, b, {"big": big})
    total = 300 * 127 * 127 + 3 * 2**30 - 1
    assert found["D"].tolist() == [[(total + 2**31) % 2**32 - 2**31] * 3] * 2  # wraps
    assert found["E"].tolist() == [[300 * 127 * 127 / 2] * 3] * 2


def test_f64_is_computed_in_f64() -> None:
    a, b = make(M, K).double() + 1e-12, make(K, N).double()
    found = reference(typed("D = acc * 0.1 + alpha", "f64"), a, b, {"alpha": 0.1})["D"]
    torch.testing.assert_close(found, a @ b * 0.1 + 0.1, rtol=1e-15, atol=1e-15)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("f32", [0.3, -2.5, 300.5, 1e9, float("inf"), float("nan")]),
        ("tf32", [0.2998046875 + 2**-12, -2.5, 300.5, 999817216.0, float("inf"), float("nan")]),
        ("f16", [0.300048828125, -2.5, 300.5, float("inf"), float("inf"), float("nan")]),
        ("bf16", [0.30078125, -2.5, 300.0, 998244352.0, float("inf"), float("nan")]),
        ("e4m3", [0.3125, -2.5, 288.0, 448.0, 448.0, float("nan")]),
        ("e5m2", [0.3125, -2.5, 320.0, 57344.0, 57344.0, float("nan")]),
        ("i32", [0, -2, 300, 1000000000, 2**31 - 1, 0]),
        ("i8", [0, -2, 127, 127, 127, 0]),
        ("u8", [0, 0, 255, 255, 255, 0]),
        ("b1", [1, 1, 1, 1, 1, 1]),
    ],
)
def test_casts(name: str, expected: list[float]) -> None:
    acc = torch.tensor([[0.3, -2.5, 300.5, 1e9, float("inf"), float("nan")]])
    found = evaluate(typed(f"D = {name}(acc)", "f32"), acc, {})["D"]
    assert found.dtype == torch.float32
    assert same(found, torch.tensor([expected], dtype=torch.float32))


def test_comparisons_and_choices() -> None:
    acc = torch.tensor([[float("nan"), -1.0, 0.0, 2.0]])
    found = evaluate(typed("D = where(acc > 0 || !(acc < 1), acc, -acc); E = (acc != acc) + 2", "f32"), acc, {})
    assert found["D"].isnan().tolist() == [[True, False, False, False]]
    assert found["D"][0, 1:].tolist() == [1.0, 0.0, 2.0]
    assert found["E"].tolist() == [[3.0, 2.0, 2.0, 2.0]]


@pytest.mark.parametrize("n", [1, 7, 8, 9, 17])
def test_masks_are_packed_bits(n: int) -> None:
    acc = make(M, n).float()
    mask = evaluate(typed("out D, mask: b1; D = acc; mask = acc > 0", "f32"), acc, {})["mask"]
    assert mask.dtype == torch.uint8
    assert mask.shape == (M, (n + 7) // 8)
    bits = [[bool(mask[i, j // 8] >> (j % 8) & 1) for j in range(n)] for i in range(M)]
    assert bits == (acc > 0).tolist()
    back = evaluate(typed("in mask: b1[m, n]; D = where(mask, acc, 0)", "f32"), acc, {"mask": mask})["D"]
    assert same(back, torch.relu(acc))


# Sums, orders and roundings


def test_sums_of_integers_wrap() -> None:
    """Beyond i32 too, as the accumulators of tensor cores do."""
    k = 135_000
    a, b = torch.full((1, k), 127, dtype=torch.int8), torch.full((k, 1), 127, dtype=torch.int8)
    total = k * 127 * 127
    assert total > 2**31
    found = reference(typed("out D: i32; D = acc", "i8"), a, b, {})["D"]
    assert found.item() == (total + 2**31) % 2**32 - 2**31


@pytest.mark.parametrize("kind", ["sum", "max", "min"])
def test_the_order_of_a_reduction_depends_on_extents_alone(kind: str) -> None:
    """For all strides of the reduced tensor, and any number of threads."""
    dag = typed(f"out D, s: f32; D = acc; s = {kind}[m, n](acc)", "f32")
    acc = make(300, 700).float()
    for size in ((300, 700), (1, 1), (1, 7), (5, 1), (299, 699)):
        part = acc[: size[0], : size[1]]
        first = evaluate(dag, part.contiguous(), {})["s"]
        assert same(first, evaluate(dag, part, {})["s"])
        assert same(first, evaluate(dag, part.T.contiguous().T, {})["s"])
        if kind != "sum":
            assert same(first, getattr(torch, f"a{kind}")(part))
        else:
            torch.testing.assert_close(first, part.double().sum().float(), rtol=1e-6, atol=1e-3)


def test_zeros_are_ordered_as_in_kernels() -> None:
    zeros = torch.tensor([[0.0, -0.0, -0.0, 0.0]])
    other = torch.tensor([[-0.0, 0.0, -0.0, 0.0]])
    text = "in C: f32[m, n]; out D, E, F, G, h: f32[m], i: f32[m]\nD = max(acc, C); E = min(acc, C); F = relu(acc)"
    text += "; G = clamp(acc, 0, 6); h = max[n](acc); i = min[n](acc)"
    found = evaluate(typed(text, "f32"), zeros, {"C": other})
    signs = {name: value.signbit().flatten().tolist() for name, value in found.items()}
    assert signs["D"] == [False, False, True, False]
    assert signs["E"] == [True, True, True, False]
    assert signs["F"] == signs["G"] == [False, True, True, False]  # kept, as on CPUs by PyTorch
    assert not any(signs["h"])
    assert signs["i"] == [True]


def test_functions_are_rounded_to_the_nearest() -> None:
    """PyTorch's own f32 functions are off by units in the last place; fmod of large numbers is NaN."""
    acc = torch.linspace(0.01, 40, 4000).reshape(40, 100)
    dag = typed(
        "out D, E, F, G: f32; D = sqrt(acc); E = exp(-acc); F = fmod(acc*1e30, 1e-12); G = sigmoid(acc - 20)", "f32"
    )
    found = evaluate(dag, acc, {})
    scaled = (acc * torch.tensor(1e30)).tolist()
    least = torch.tensor(1e-12).item()
    exact = {
        "D": [[math.sqrt(x) for x in row] for row in acc.tolist()],
        "E": [[math.exp(-x) for x in row] for row in acc.tolist()],
        "F": [[math.fmod(x, least) for x in row] for row in scaled],
        "G": [[1 / (1 + math.exp(-x)) for x in row] for row in (acc - 20).tolist()],
    }
    for name, values in exact.items():
        assert same(found[name], torch.tensor(values, dtype=torch.float64).float()), name


def test_remainders_are_exact() -> None:
    """For any two doubles, also if PyTorch's vectorised functions return NaN."""
    generator = random.Random(3)
    numbers = [generator.uniform(-1, 1) * 2.0 ** generator.randint(-1074, 1023) for _ in range(600)]
    numbers += [0.0, -0.0, math.inf, -math.inf, math.nan, 5e-324, -5e-324, 1.7e308, -1.7e308, 2.0**-1022]
    x, y = torch.tensor(numbers, dtype=torch.float64)[:, None], torch.tensor(numbers[::-1], dtype=torch.float64)
    op = evt.gemm("in x: f64[m], y: f64[n]\nout D, r: f64, s: f64; D = acc; r = fmod(x, y); s = remainder(x, y)")
    count = len(numbers)
    found = op(torch.ones(count, 1), torch.ones(1, count), x=x.flatten(), y=y)
    for name, function in (("r", scalar.fmod), ("s", scalar.remainder)):
        expected = torch.tensor([[function(a, b) for b in y.tolist()] for a in numbers], dtype=torch.float64)
        have = getattr(found, name)
        assert same(have, expected)
        assert torch.equal(have[have == 0].signbit(), expected[expected == 0].signbit())
