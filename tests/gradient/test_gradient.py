"""Gradients of programs: every function's, the saved values, and calls that autograd records."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import evt
from evt.functions import TABLE, Function
from evt.functions.formula import evaluate
from tests.support.function_rows import OTHERS, ROWS
from tests.support.gradients import CASES, ONE_KERNEL, call, drawn, made, plainly

pytestmark = pytest.mark.filterwarnings("ignore::evt.errors.NoKernelWarning")


#: Random projections of the Jacobian; the slow tests compare every element.
IN_DEPTH = pytest.mark.parametrize("fast", [True, pytest.param(False, marks=pytest.mark.slow)], ids=["fast", "whole"])


def check_gradients(op: evt.Program, values: dict[str, Any], fast: bool) -> None:
    """Assert that a call's gradients are its finite differences."""
    run = lambda *each: call(op, dict(zip(values, each, strict=True)))  # noqa: E731
    assert torch.autograd.gradcheck(run, tuple(values.values()), fast_mode=fast)


@IN_DEPTH
@pytest.mark.parametrize("name", CASES)
def test_gradcheck(name: str, fast: bool) -> None:
    check_gradients(*made(name), fast)


@IN_DEPTH
@pytest.mark.parametrize("name", ONE_KERNEL)
def test_gradcheck_where_the_product_is_computed_again(name: str, fast: bool) -> None:
    op, values = made(name, recompute=True)
    assert not op.gradient("f64", "f64").saved
    check_gradients(op, values, fast)


STRIDED: dict[str, tuple[Any, ...]] = {
    "rows": (
        evt.linear("in s: f64[m]; D = tanh((acc + bias)*s) + residual", recompute=True),
        {"A": (5, 2, 16), "B": (8, 16), "bias": (8,), "s": (5, 2), "residual": (5, 2, 8)},
        {"A": (1, 0, 2), "s": (1, 0), "residual": (1, 0, 2)},
    ),
    "batches": (
        evt.gemm("in alpha: f64, i: i32[m], x: f64[i[m], n]; D = tanh(alpha*acc*s[n] + x)*t[m]", recompute=True),
        {"A": (2, 3, 4, 6), "B": (2, 1, 6, 8), "alpha": (), "x": (7, 8), "s": (8,), "t": (4,)},
        {"A": (1, 0, 2, 3), "B": (1, 0, 2, 3)},
    ),
}


@pytest.mark.parametrize("name", STRIDED)
@pytest.mark.parametrize("arriving", ["packed", "the same", "permuted", "strided"])
def test_strides_of_several_launches_where_the_product_is_computed_again(name: str, arriving: str) -> None:
    """Vectors' gradients are sums over several launches."""
    op, shapes, orders = STRIDED[name]
    values = drawn(shapes)
    for each, order in orders.items():
        values[each] = values[each].detach().permute(order).requires_grad_()
    inputs = {each: values[each] for each in op.inputs if each in values}
    if "i" in op.inputs:
        inputs["i"] = torch.tensor([6, 0, 6, 2], dtype=torch.int32)
    got, want = op(values["A"], values["B"], **inputs), plainly(op, values["A"], values["B"], inputs)["D"]
    ones = torch.rand(got.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    gradient = {
        "packed": ones,
        "the same": ones.sum().expand(got.shape),
        "permuted": ones.permute(*reversed(range(got.dim()))).contiguous().permute(*reversed(range(got.dim()))),
        "strided": torch.stack([ones, ones], -1)[..., 0],
    }[arriving]
    leaves = list(values.values())
    one, two = (torch.autograd.grad(each, leaves, gradient) for each in (got, want))
    for mine, theirs in zip(one, two, strict=True):
        torch.testing.assert_close(mine, theirs)


def domain(function: Function) -> tuple[float, float]:
    if function.name in (
        "log",
        "log2",
        "log10",
        "log1p",
        "sqrt",
        "rsqrt",
        "rcp",
        "pow",
        "xlogy",
        "div",
        "atan2",
        "hypot",
    ):
        return 0.3, 2.0
    if function.name in ("asin", "acos", "atanh", "logit", "erf"):
        return 0.1, 0.9
    return (1.2, 3.0) if function.name == "acosh" else (-1.9, 1.9)


@pytest.mark.parametrize("function", [row for row in ROWS if row.result == "value"], ids=lambda row: row.name)
def test_gradcheck_of_every_function(function: Function) -> None:
    """The operands are the product, a matrix and a vector; conditions and hyper-parameters are constants."""
    hyper = OTHERS.get(function.name, ((),))[0]
    count = len(function.parameters) - len(hyper)
    words = ["acc + shift", "C", "v[n]"][: count - len(function.conditions)]
    arguments = [*["C > 0"] * len(function.conditions), *words, *(f"{each!r}" for each in hyper)]
    op = evt.gemm(f"D = {function.name}({', '.join(arguments)})")
    low, high = domain(function)
    generator = torch.Generator().manual_seed(3)
    shapes = {"shift": (4, 6), "C": (4, 6), "v": (6,)}
    values = {name: torch.rand(shapes[name], generator=generator, dtype=torch.float64) for name in op.inputs}
    inputs = {name: (each * (high - low) + low).requires_grad_() for name, each in values.items()}
    a, b = (
        torch.rand(shape, generator=generator, dtype=torch.float64).mul(1e-3).requires_grad_()
        for shape in ((4, 3), (3, 6))
    )
    run = lambda a, b, *others: op(a, b, **dict(zip(inputs, others, strict=True)))  # noqa: E731
    assert torch.autograd.gradcheck(run, (a, b, *inputs.values()), atol=1e-4, fast_mode=True)


@pytest.mark.parametrize("function", [row for row in TABLE.values() if row.result_derivative], ids=lambda row: row.name)
def test_derivatives_of_results_are_those_of_operands(function: Function) -> None:
    x = torch.linspace(-8, 8, 4097, dtype=torch.float64)
    (parameter, *others) = function.parameters
    rest = {each.name: torch.full_like(x, each.default) for each in others}
    y = function.torch(torch, x, *rest.values())
    want = evaluate(function.derivatives[0], {parameter.name: x, **rest}, torch)
    assert torch.equal(evaluate(function.result_derivative, {"y": y, **rest}, torch), want)


# Saved values


@pytest.mark.parametrize(
    ("text", "saved"),
    [
        ("D = alpha*acc + bias", ["saved_0: f16[m, n]"]),  # for alpha, a tensor
        ("D = 2*acc + bias", []),
        ("D = relu(acc + bias)", ["D: f16[m, n]"]),
        ("D = relu(acc + bias) + residual", ["saved_0: b1[m, n]"]),
        ("D = relu6(acc)*2", ["saved_0: b1[m, n]"]),
        ("D = sigmoid(acc)", ["D: f16[m, n]"]),
        ("D = f16(tanh(acc))", ["D: f16[m, n]"]),
        ("D = gelu(acc + bias)", ["saved_0: f16[m, n]"]),
        ("out D, E; E = acc + bias; D = gelu(E)", ["E: f16[m, n]"]),
        ("D = silu(even(acc))*odd(acc)", ["saved_0: f16[m, n/2]", "saved_1: f16[m, n/2]"]),
        ("out D: e4m3[m, n]; D = tanh(acc)", ["saved_0: bf16[m, n]"]),
        ("D = dropout(acc, 0.1, seed, offset); in seed: i64, offset: i64", []),
        ("out D, s: f32[m]; D = acc; s = rsqrt(sum[n](acc*acc) + 1e-6)", ["D: f16[m, n]", "s: f32[m]"]),
    ],
)
def test_what_is_saved(text: str, saved: list[str]) -> None:
    shown = str(evt.gemm(text).gradient()).split("saved:\n  ")[1].splitlines()[0]
    assert [each for each in shown.replace("], ", "]; ").split("; ") if each != "nothing"] == saved


def test_what_is_saved_serves_parts_of_the_outputs() -> None:
    text = "out D, E, s: f64[n]; D = gelu(acc + bias); E = sigmoid(acc)*C; s = sum[m](tanh(acc))"
    op, values = evt.gemm(text), drawn({"A": (5, 6), "B": (6, 8), "bias": (8,), "C": (5, 8)})
    inputs = {name: values[name] for name in op.inputs}
    for chosen in (("D",), ("E",), ("s",), ("D", "s"), ("E", "s"), ("D", "E", "s")):
        found = dict(zip(op.outputs, op(values["A"], values["B"], **inputs), strict=True))
        want = plainly(op, values["A"], values["B"], inputs)
        sums = (sum(each[name].square().sum() for name in chosen) for each in (found, want))
        one, two = (torch.autograd.grad(total, list(values.values()), allow_unused=True) for total in sums)
        for got, expected in zip(one, two, strict=True):
            assert (got is None) == (expected is None) or not (got if expected is None else expected).any()
            if expected is not None and got is not None:
                torch.testing.assert_close(got, expected)


def test_nothing_is_saved_but_what_is_read() -> None:
    """A residual's memory is free after the call; with ``recompute`` only the arguments are kept."""
    values = drawn({"A": (5, 6), "B": (6, 8), "C": (5, 8), "residual": (5, 8)})
    inputs = {name: values[name] for name in ("C", "residual")}

    def kept(op: evt.Program, **inputs: Any) -> list[int]:
        found: list[int] = []
        with torch.autograd.graph.saved_tensors_hooks(lambda x: found.append(x.data_ptr()) or x, lambda x: x):
            op(values["A"], values["B"], **inputs)
        return found

    known = {values[name].data_ptr(): name for name in values}
    names = [known.get(each) for each in kept(evt.gemm("D = relu(acc + C) + residual"), **inputs)]
    assert names == ["A", "B", None]
    names = [known.get(each) for each in kept(evt.gemm("D = gelu(acc + C) + residual", recompute=True), **inputs)]
    assert names == ["A", "B", "C"]
    assert kept(evt.gemm("D = 2*acc + residual"), residual=values["residual"])[2:] == []


def test_only_the_gradients_that_are_asked_for() -> None:
    op, values = made("gelu")
    for name in values:
        leaves = {each: value.detach().requires_grad_(each == name) for each, value in values.items()}
        call(op, leaves).sum().backward()
        assert [each for each, value in leaves.items() if value.grad is not None] == [name]
    assert not call(op, {name: value.detach() for name, value in values.items()}).requires_grad
