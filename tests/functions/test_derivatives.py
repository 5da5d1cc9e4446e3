"""The derivatives of the function table equal PyTorch's autograd."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch.torch_version import TorchVersion

from evt import reference
from evt.functions import TABLE, Function, lookup
from evt.functions.formula import evaluate, parse_formula, problems
from evt.ir import infer, lower
from evt.ir.dtype import F32
from evt.ir.node import Operand
from evt.language import parse
from evt.language.tree import Call, postorder
from tests.support.function_rows import OTHERS, ROWS, call_target, each

#: Domains of functions that are not defined everywhere.
DOMAINS = {
    **dict.fromkeys(("log", "log2", "log10", "log1p", "sqrt", "rsqrt", "pow", "xlogy"), (0.1, 3.0)),
    **dict.fromkeys(("asin", "acos", "atanh", "logit"), (0.05, 0.95)),
    "acosh": (1.1, 3.0),
}
#: Dyadic, with every kink of a default or of ``OTHERS``.
KINKS = (-6.0, -3.0, -2.0, -1.5, -1.0, -0.5, -0.25, -0.0, 0.0, 0.25, 0.5, 1.0, 1.5, 2.0, 3.0, 6.0)
DIFFERENTIABLE = tuple(row for row in ROWS if row.result == "value")


def points(function: Function, count: int) -> list[torch.Tensor]:
    """Random arguments, parameters with a default near another value of theirs."""
    generator = torch.Generator().manual_seed(11)
    low, high = DOMAINS.get(function.name, (-3.0, 3.0))
    values = [torch.rand(count, generator=generator, dtype=torch.float64) for _ in function.parameters]
    hyper = OTHERS.get(function.name, ((),))[0]
    given = len(function.parameters) - len(hyper)
    arguments = [value * (high - low) + low for value in values[:given]]
    arguments += [value * 0.1 + constant for value, constant in zip(values[given:], hyper, strict=True)]
    for slot in function.conditions:
        arguments[slot] = arguments[slot] > 0
    return arguments


def gradients(compute: Callable[..., Any], arguments: Sequence[Any]) -> list[torch.Tensor | None]:
    """Return the gradient along each tensor, or None."""
    leaves = [
        each.clone().requires_grad_() if isinstance(each, torch.Tensor) and each.is_floating_point() else each
        for each in arguments
    ]
    result = compute(*leaves)
    wanted = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor) and leaf.requires_grad]
    found = iter(torch.autograd.grad(result.sum(), wanted, allow_unused=True) if result.requires_grad else wanted)
    return [next(found) if isinstance(leaf, torch.Tensor) and leaf.requires_grad else None for leaf in leaves]


def derivative(function: Function, slot: int, arguments: Sequence[torch.Tensor]) -> torch.Tensor:
    names = (parameter.name for parameter in function.parameters)
    value = evaluate(function.derivatives[slot], dict(zip(names, arguments, strict=True)), torch)
    return torch.broadcast_to(value, arguments[-1].shape).double()


@each(ROWS)
def test_derivatives_are_formulas_of_the_language(function: Function) -> None:
    for text in function.derivatives:
        assert list(problems(text, function)) == []
        called = {node.function.text for node in postorder(parse_formula(text)) if isinstance(node, Call)}
        assert all(name in TABLE for name in called)  # rows, not aliases


@each([row for row in DIFFERENTIABLE if row.required == 1])
def test_primes(function: Function) -> None:
    """``f'(x)`` and ``f''(x)`` in a program: the front end inlines the formulas, and derives them again."""
    operands = (Operand("A", F32, ("m", "k")), Operand("B", F32, ("k", "n")))
    x = points(function, 24)[0].reshape(4, 6).requires_grad_()
    hyper = [torch.tensor(p.default, dtype=torch.float64) for p in function.parameters if p.default is not None]
    expected = function.torch(torch, x, *hyper)
    for primes in ("'", "''"):
        zero = torch.zeros_like(x)
        expected = torch.autograd.grad(expected.sum(), x, create_graph=True)[0] if expected.requires_grad else zero
        dag = infer(lower(parse(f"D = {function.name}{primes}(acc) + 0 * acc")), operands)
        found = reference.evaluate(dag, x.detach(), {}, dtype=torch.float64)["D"]
        torch.testing.assert_close(found, expected.detach(), rtol=1e-6, atol=1e-7)


@each([row for row in DIFFERENTIABLE if row.required == 1])
def test_far_away_derivatives_are_no_nan(function: Function) -> None:
    """An overflow in a branch that is not taken does not matter."""
    operands = (Operand("A", F32, ("m", "k")), Operand("B", F32, ("k", "n")))
    far = torch.tensor([40.0, 60.0, 89.0, 95.0, 104.0, 200.0, 500.0])
    x = torch.stack([far, -far])
    for primes in ("'", "''"):
        dag = infer(lower(parse(f"D = {function.name}{primes}(acc) + 0 * acc")), operands)
        found, wide = (reference.evaluate(dag, x, {}, dtype=dtype)["D"] for dtype in (torch.float32, torch.float64))
        assert torch.equal(found.isnan(), wide.isnan())


@each(DIFFERENTIABLE)
def test_derivatives_are_those_of_the_meaning(function: Function) -> None:
    arguments = points(function, 500)
    for slot, expected in enumerate(gradients(lambda *given: function.torch(torch, *given), arguments)):
        if slot not in function.conditions:
            found = derivative(function, slot, arguments)
            expected = torch.zeros_like(found) if expected is None else expected
            torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)


@each(DIFFERENTIABLE)
def test_the_meaning_is_differentiable(function: Function) -> None:
    arguments = points(function, 6)
    leaves = [each.requires_grad_() if each.is_floating_point() else each for each in arguments]
    probe = function.torch(torch, *leaves)
    if probe.requires_grad:
        assert torch.autograd.gradcheck(lambda *given: function.torch(torch, *given), leaves)
    else:
        assert set(function.derivatives) == {"0"}


def first_target(function: Function, arguments: Sequence[Any]) -> Callable[..., Any]:
    """Return the first target that takes these arguments and has a derivative, or the meaning."""
    for target in function.targets:

        def compute(*given: Any, target: str = target) -> Any:
            return call_target(function, target, given)

        try:
            gradients(compute, arguments)
        except (TypeError, RuntimeError):
            continue
        return compute
    return lambda *given: function.torch(torch, *given)


#: PyTorch has moved the kinks of these: of clamp after 2.13, whose derivative there is half of it.
MOVED = {"hardswish", *(["clamp"] if TorchVersion(torch.__version__) >= (2, 14) else [])}  # type: ignore[operator]


@each([row for row in DIFFERENTIABLE if row.name not in MOVED])
def test_at_kinks_derivatives_are_those_of_autograd(function: Function) -> None:
    """NaN, at which autograd takes one of the sides, included."""
    hyper = [parameter.default for parameter in function.parameters if parameter.default is not None]
    kinks = (*KINKS, float("nan")) if function.required == 1 else KINKS
    grid = torch.tensor(list(itertools.product(kinks, repeat=function.required)), dtype=torch.float64)
    tensors: list[Any] = list(grid.T.contiguous())
    for slot in function.conditions:
        tensors[slot] = tensors[slot] > 0
    arguments = [*tensors, *hyper]
    if function.name == "threshold":
        arguments = [tensors[0], 0.5, 2.0]
    if function.name == "prelu":
        arguments = [tensors[0], torch.tensor([0.25], dtype=torch.float64)]
    compute = first_target(function, arguments)
    plain = [torch.as_tensor(each, dtype=torch.float64).expand(len(grid)) for each in arguments]
    for slot in function.conditions:
        plain[slot] = tensors[slot]
    value = function.torch(torch, *plain)
    for slot, expected in enumerate(gradients(compute, arguments)):
        if expected is None or expected.shape != value.shape:
            continue
        found = derivative(function, slot, plain)
        # hardsigmoid's is f32 in PyTorch. Infinities may differ, and so may points at which the function is NaN.
        same = found.isclose(expected, rtol=1e-7, atol=1e-9, equal_nan=True)
        same |= ~expected.isfinite() | (value.isnan() & ~grid.isnan().any(1))
        wrong = [each[~same][:5].tolist() for each in (*plain, found, expected)]
        assert bool(same.all()), f"d/d{function.parameters[slot].name}: arguments, ours, autograd = {wrong}"


@pytest.mark.parametrize(
    ("name", "slot", "arguments", "expected"),
    [
        ("relu", 0, (0.0,), 0.0),
        ("relu", 0, (float("nan"),), 1.0),
        ("relu6", 0, (6.0,), 0.0),
        ("abs", 0, (0.0,), 0.0),
        ("clamp", 0, (1.0, 1.0, 2.0), 1.0),
        ("hardtanh", 0, (1.0, -1.0, 1.0), 0.0),
        ("max", 0, (2.0, 2.0), 0.5),
        ("min", 1, (2.0, 2.0), 0.5),
        ("elu", 0, (0.0, 2.0), 2.0),
        ("leaky_relu", 0, (0.0, 0.25), 0.25),
        ("pow", 0, (0.0, 0.0), 0.0),
        ("pow", 1, (0.0, 2.0), 0.0),
        ("xlogy", 0, (0.0, 0.0), 0.0),
        ("hardswish", 0, (1.5,), 1.0),
        ("where", 1, (1.0, 7.0, 8.0), 1.0),
        ("where", 2, (1.0, 7.0, 8.0), 0.0),
        ("copysign", 0, (-2.0, 3.0), -1.0),
        ("sinc", 0, (0.0,), 0.0),
    ],
)
def test_derivatives_on_floats(name: str, slot: int, arguments: tuple[float, ...], expected: float) -> None:
    row = lookup(name)
    assert row is not None
    names = (parameter.name for parameter in row.parameters)
    assert evaluate(row.derivatives[slot], dict(zip(names, arguments, strict=True))) == expected
