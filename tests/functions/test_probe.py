"""Users' functions whose C++, reference and derivatives contradict each other, and functions that are replaced."""

from __future__ import annotations

import pickle
import re
import shutil
from collections.abc import Iterator
from typing import Any

import pytest
import torch

import evt
from evt.functions import TABLE, probe
from evt.functions.testing import temporarily

needs_compiler = pytest.mark.skipif(not shutil.which("g++"), reason="g++ is not on PATH")


@pytest.fixture(autouse=True)
def _forget() -> Iterator[None]:
    with temporarily():
        yield


def refused(signature: str, **given: Any) -> str:
    """Return the message of the diagnostic; the function is registered without the comparison only."""
    with pytest.raises(evt.ArgumentError) as caught:
        evt.function(signature, **given)
    (each,) = caught.value.diagnostics
    assert "check=False" in each.help
    assert signature.partition("(")[0] not in TABLE
    evt.function(signature, **given, check=False)
    return f"{each.code} {each.message}"


#: Functions with kinks, steps, poles, one domain, several arguments and approximations: each is right.
RIGHT: dict[str, dict[str, Any]] = {
    "snake(x, a=1)": {
        "cxx": "x + sinf(a * x) * sinf(a * x) / a",
        "torch": lambda t, x, a: x + t.sin(a * x) ** 2 / a,
        "derivative": "1 + sin(2 * a * x)",
    },
    "ramp(x)": {"cxx": "fmaxf(x, 0.0f)", "torch": torch.relu, "derivative": "x > 0"},
    "ramp2(x)": {"cxx": "x >= 0.0f ? x : 0.0f", "torch": torch.relu, "derivative": "x >= 0"},
    "size_of(x)": {"cxx": "fabsf(x)", "torch": lambda t, x: t.abs(x), "derivative": "sign(x)"},
    "steps(x)": {"cxx": "floorf(10.0f * x)", "torch": lambda t, x: t.floor(10 * x), "derivative": "0"},
    "inverse(x)": {"cxx": "1.0f / x", "torch": lambda x: 1 / x, "derivative": "-1 / (x * x)"},
    "logarithm(x)": {"cxx": "logf(x)", "torch": lambda t, x: t.log(x), "derivative": "1 / x"},
    "root(x)": {"cxx": "rsqrtf(x)", "torch": lambda t, x: t.rsqrt(x), "derivative": "-0.5 * x ** -1.5"},
    "bend(x)": {
        "cxx": "0.5f * x * (1.0f + tanhf(0.7978845608f * (x + 0.044715f * x * x * x)))",
        "torch": lambda t, x: t.nn.functional.gelu(x),  # the approximation differs by 5e-4
    },
    "both(x, y)": {"cxx": "x * y", "torch": lambda x, y: x * y, "derivative": ["y", "x"]},
    "cut(x, lo=-1, hi=1)": {
        "cxx": "fminf(fmaxf(x, lo), hi)",
        "torch": lambda t, x, lo, hi: t.minimum(t.maximum(x, lo), hi),
        "derivative": "where(x > lo && x < hi, 1, 0)",
    },
    "grow(x)": {"cxx": "expf(x)", "torch": lambda t, x: t.exp(x), "derivative": "grow(x)"},
    "steep(x)": {"cxx": "expf(expf(x))", "torch": lambda t, x: t.exp(t.exp(x)), "derivative": "exp(x) * exp(exp(x))"},
    "ours(x)": {"cxx": "fn::silu(x)", "torch": lambda t, x: t.nn.functional.silu(x)},
    "on_device(x)": {"cxx": "__nv_only(x)", "torch": lambda x: x},
}


@pytest.mark.parametrize("signature", RIGHT)
def test_what_is_right_is_registered(signature: str) -> None:
    row = evt.function(signature, **RIGHT[signature])
    assert TABLE[signature.partition("(")[0]] is row


@needs_compiler
@pytest.mark.parametrize(
    ("signature", "cxx", "reference", "at"),
    [
        ("f(x)", "x * x", lambda x: x**3, "x=-9.3"),
        ("f(x)", "fmaxf(x, 0.1f)", lambda t, x: t.relu(x), "x=-9.3"),
        ("f(x)", "fminf(fmaxf(x, 0.0f), 6.0f)", lambda t, x: t.relu(x), "x=9.7"),
        ("f(x)", "x / (1.0f + expf(x))", lambda t, x: x * t.sigmoid(x), "x=-9.3"),
        ("f(x, a=1)", "x", lambda x, a: a * x, "a=1.75"),
        ("f(x, y)", "x - y", lambda x, y: y - x, "x=-2.7, y=-1"),
        ("f(x)", "sqrtf(x)", lambda t, x: t.sqrt(t.abs(x)), "x=-9.3"),
    ],
)
def test_cxx_that_is_another_function(signature: str, cxx: str, reference: Any, at: str) -> None:
    said = refused(signature, cxx=cxx, torch=reference)
    assert said.startswith("E0653 the C++ of `f` at ")
    assert at in said
    assert re.search(r"is \S+; the reference is \S+$", said)


@needs_compiler
@pytest.mark.parametrize("cxx", ["x +", "x +* 2", "x * * ", "x ? 1", "sinf(x, x, x)", "x = = 1", "&x"])
def test_cxx_that_compiles_nowhere(cxx: str) -> None:
    assert refused("f(x)", cxx=cxx, torch=lambda x: x).startswith("E0653 the C++ ")


@needs_compiler
@pytest.mark.parametrize("cxx", ["__nv_only(x)", "__nv_only(x) + 1", "x * kOfTheDevice", "fdim_rn(x, x)"])
def test_cxx_that_only_the_device_has(cxx: str) -> None:
    evt.function("on_device(x)", cxx=cxx, torch=lambda x: x)


@pytest.mark.parametrize(
    ("reference", "said"),
    [
        (lambda t, x: t.softmax(x, -1), "is not elementwise"),
        (lambda t, x: t.cumsum(x, 0), "is not elementwise"),
        (lambda x: x - x.mean(), "is not elementwise"),
        (lambda x: x.sum(), "returns the shape []"),
        (lambda x: x[None], "returns the shape [1, "),
        (lambda x: x.half(), "returns torch.float16 of torch.float32"),
        (lambda x: x.double(), "returns torch.float64 of torch.float32"),
        (lambda x: 1.0, "returns float, not a tensor"),
        (lambda x: x.add_(1) - 1, "changes its arguments"),
        (lambda x: x.nope(), "raises at x=-9.3: AttributeError"),
        (lambda x: None, "raises at x=-9.3: TypeError"),
    ],
)
def test_references_that_are_no_functions_of_elements(reference: Any, said: str) -> None:
    found = refused("f(x)", cxx="x", torch=reference)
    assert found.startswith("E0654 the reference of `f` ")
    assert said in found


@pytest.mark.parametrize(
    ("signature", "cxx", "reference", "derivative"),
    [
        ("f(x)", "x * x", lambda x: x * x, "x"),
        ("f(x)", "fmaxf(x, 0.0f)", lambda t, x: t.relu(x), "x < 0"),
        ("f(x)", "fabsf(x)", lambda t, x: t.abs(x), "1"),
        ("f(x)", "tanhf(x)", lambda t, x: t.tanh(x), "1 - tanh(x)"),
        ("f(x)", "rintf(x)", lambda t, x: t.round(x), "1"),
        ("f(x, y)", "x * y", lambda x, y: x * y, ["y", "y"]),
        ("f(x, a=1)", "a * x", lambda x, a: a * x, "1"),
    ],
)
def test_derivatives_of_another_function(signature: str, cxx: str, reference: Any, derivative: Any) -> None:
    said = refused(signature, cxx=cxx, torch=reference, derivative=derivative)
    assert said.startswith("E0655 the derivative of `f` along `")
    assert re.search(r"at .*x=.* is \S+; the reference changes by \S+$", said)


def test_a_cell_that_runs_again_costs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    row = evt.function("snake(x, a=1)", **RIGHT["snake(x, a=1)"])
    monkeypatch.setattr(probe.host, "compiled", None)  # type: ignore[attr-defined]
    assert evt.function("snake(x, a=1)", **RIGHT["snake(x, a=1)"]) is row
    assert evt.function("snake(x, a=1)", **RIGHT["snake(x, a=1)"], replace=True) is row


def test_without_a_compiler_the_cxx_is_not_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    evt.function("f(x)", cxx="x * x", torch=lambda x: x**3)
    assert "E0655" in refused("g(x)", cxx="x", torch=lambda x: x, derivative="2")


def test_a_function_that_is_replaced_stays_in_the_programs_that_have_it() -> None:
    a, b = torch.randn(4, 3), torch.randn(3, 5)
    evt.function("times(x)", cxx="2.0f * x", torch=lambda x: 2 * x, derivative="2")
    first = evt.gemm("D = times(acc)")
    for factor in (3, 4, 2):
        given: dict[str, Any] = {
            "cxx": f"{factor}.0f * x",
            "torch": (lambda x: 3 * x, lambda x: 4 * x, lambda x: 2 * x)[(factor - 3) % 3],
            "derivative": str(factor),
        }
        with pytest.raises(evt.ArgumentError, match="E0656"):
            evt.function("times(x)", **given)
        row = evt.function("times(x)", **given, replace=True)
        assert evt.function("times(x)", **given) is row
        op = evt.gemm("D = times(acc)")
        torch.testing.assert_close(op(a, b), factor * (a @ b))
        torch.testing.assert_close(first(a, b), 2 * (a @ b))
        assert f"return {factor}.0f * p_x" in op.emit("sm80", a="f16", b="f16")
        assert "return 2.0f * p_x" in first.emit("sm80", a="f16", b="f16")
        x = a.clone().requires_grad_()
        op(x, b).sum().backward()
        torch.testing.assert_close(x.grad, factor * b.sum(1).expand(4, 3))
        assert pickle.loads(pickle.dumps(op)) == op


def test_replacing_a_function_that_calls_itself() -> None:
    evt.function("ex(x)", cxx="expf(x)", torch=lambda t, x: t.exp(x), derivative="ex(x)", aliases=["ex_of"])
    evt.function("ex(x)", cxx="2.0f * expf(x)", torch=lambda t, x: 2 * t.exp(x), derivative="ex(x)", replace=True)
    x = torch.zeros(1, 1).requires_grad_()
    evt.gemm("D = ex(acc)")(x, torch.ones(1, 1)).backward()
    assert x.grad == 2
    with pytest.raises(evt.ArgumentError, match="E0651"):
        evt.function("relu(x)", cxx="x", torch=lambda x: x, replace=True)
    with pytest.raises(evt.ArgumentError, match="E0651"):
        evt.function("ex_of(x)", cxx="x", torch=lambda x: x, replace=True)
