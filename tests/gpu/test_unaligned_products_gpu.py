"""Products whose rows or addresses TMA does not take: operands are copied, matrices are loaded by rows."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
import torch

import evt
from evt.diagnostics import Source
from tests.gpu.own_kernels import check_call, random
from tests.support.patterns import same_bits

pytestmark = pytest.mark.gpu

RESIDUAL = "D = relu(acc + bias + residual)"
#: Programs, the operation, and the types of A and B.
CASES = {
    "residual": (RESIDUAL, "linear", "f16"),
    "gemm": (RESIDUAL, "gemm", "bf16"),
    "f32": (RESIDUAL, "linear", "f32"),
    "reductions": ("out D, a: f32[n], b: f32[m]; D = acc + bias; a = sum[m](D*D); b = max[n](D)", "linear", "f16"),
    "e4m3": ("out D: f16; D = relu(acc + bias) + residual", "linear", "e4m3"),
    "i8": ("out D: i8, E: i32[m, n]; D = acc/32 + bias; E = acc", "linear", "i8"),
}
#: Sizes: n, k or both are odd, or multiples of 2 and 4.
SIZES = ((333, 133, 75), (1, 264, 1033), (77, 61, 136), (1001, 1031, 2051), (40, 30, 18), (5000, 76, 332))


def arguments(name: str, m: int, n: int, k: int, seed: int) -> tuple[evt.Program, Any, Any, dict[str, Any]]:
    """Return a case's program with its arguments."""
    text, operation, dtype = CASES[name]
    op = evt.Program(Source(text), operation, route="gemm-own-3x")
    generator = torch.Generator("cuda").manual_seed(seed)
    of_b = (n, k) if operation == "linear" else (k, n)
    a, b = (random(shape, dtype, generator, k**-0.25) for shape in ((m, k), of_b))
    other = {"e4m3": "f16", "i8": "i8"}.get(dtype, dtype)
    given = {"bias": (n,), "residual": (m, n)}
    return op, a, b, {each: random(given[each], other, generator) for each in op.inputs}


#: Programs by the types of their inputs r and s, and of their outputs D and E.
MOVED = {
    (("bf16",), ("bf16",)): "D = acc + r",
    ((), ("f16",)): "D = acc",
    (("f32",), ("bf16",)): "D = acc + r",
    (("bf16", "bf16"), ("bf16",)): "D = acc + r - s",
    (("f32",), ("f32",)): "D = acc + r",
    (("f32", "f32"), ("f32", "f32")): "D = acc + r - s; E = acc + s",
    (("bf16", "f32"), ("bf16", "f32")): "D = acc + r - s; E = acc + s",
}
#: Elements of the memory around a matrix.
_AROUND = 77.0


def matrix(draw: Random, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return memory, and a matrix of the values in it, at an offset and with a pitch."""
    m, n = values.shape
    pitch, offset = n + draw.choice((0, 0, 1, 3, 8)), draw.choice((0, 0, 1, 2, 3, 5, 8))
    memory = torch.full((offset + m * pitch + 16,), _AROUND, device="cuda", dtype=values.dtype)
    return memory, memory[offset : offset + m * pitch].view(m, pitch)[:, :n].copy_(values)


@pytest.mark.parametrize("seed", range(24))
def test_rows_begin_at_any_address(seed: int) -> None:
    """Numbers are exact, D has NaN before, and the memory around it stays. D may overwrite a residual."""
    draw = Random(seed)
    (inputs, outputs), formula = draw.choice(list(MOVED.items()))
    types = {"bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32}
    of_a, loads, stores = "f16" if "f16" in outputs else "bf16", "rs"[: len(inputs)], "DE"[: len(outputs)]
    declared = [f"in {name}: {dtype}[m, n]" for name, dtype in zip(loads, inputs, strict=True)]
    declared += [f"out {name}: {dtype}[m, n]" for name, dtype in zip(stores, outputs, strict=True)]
    text = "\n".join((f"linear(A: {of_a}[m, k], B: {of_a}[n, k])", *declared, formula))
    op = evt.Program(Source(text), "linear", route="gemm-own-3x")
    m, n = draw.choice((1, 7, 200, 333, 1000, 3152)), draw.choice((65, 66, 129, 385, 390, 1001, 2305))
    k = draw.choice((64, 72, 256, 520))
    a, b = (torch.randint(-3, 4, (rows, k), device="cuda").to(types[of_a]) for rows in (m, n))
    product = a.float() @ b.float().t()
    addends = [torch.randint(-9, 10, (m, n), device="cuda").float() for _ in inputs]
    sums = (product + sum(addends[:1]) - sum(addends[1:]), product + sum(addends[1:]))
    exact = [each.to(types[dtype]) for each, dtype in zip(sums, outputs, strict=False)]
    given = {
        name: matrix(draw, value.to(types[dtype])) for name, value, dtype in zip(loads, addends, inputs, strict=True)
    }
    results = {name: matrix(draw, torch.full_like(each, torch.nan)) for name, each in zip(stores, exact, strict=True)}
    if inputs[:1] == outputs[:1] and draw.random() < 0.5:
        results["D"][1].copy_(given["r"][1])
        given["r"] = results["D"]
    op(a, b, **{name: view for name, (_, view) in (*given.items(), *results.items())})
    for (memory, found), expected in zip(results.values(), exact, strict=True):
        assert torch.equal(found, expected)
        found.fill_(_AROUND)
        assert bool((memory == _AROUND).all())


@pytest.mark.parametrize("name", CASES)
def test_operands_are_copied(name: str, record) -> None:
    worst = 0.0
    for seed, size in enumerate(SIZES):
        worst = max(worst, *check_call(*arguments(name, *size, seed)))
    record((name, "fastest", CASES[name][2], "unaligned rows", f"{worst:.2f}"))


@pytest.mark.parametrize("name", ["residual", "gemm", "f32", "reductions"])
def test_slices_have_the_bits_of_packed_operands(name: str) -> None:
    op, a, b, inputs = arguments(name, 333, 264, 136, 1)
    whole = op(a, b, **inputs)
    for before, after in ((1, 2), (4, 1)):
        parts = []
        for each in (a, b):
            wide = torch.full((each.shape[0], each.shape[1] + before + after), float("nan"), device="cuda").to(each)
            parts.append(wide[:, before:-after].copy_(each))
        found = op(*parts, **inputs)
        pairs = [(found, whole)] if isinstance(whole, torch.Tensor) else zip(found, whole, strict=True)
        assert all(bool(same_bits(one, other).all()) for one, other in pairs)


def test_a_graph_copies_operands_again() -> None:
    op = evt.linear("D = relu(acc + bias)", route="gemm-own-3x")
    a, b, bias = (torch.randn(shape, device="cuda").half() for shape in ((200, 77), (136, 77), (136,)))
    op(a, b, bias=bias)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = op(a, b, bias=bias)
    a.normal_()
    b.normal_()
    graph.replay()
    assert torch.equal(found, op(a, b, bias=bias))
    torch.testing.assert_close(found, torch.relu(torch.nn.functional.linear(a, b, bias)), rtol=1e-2, atol=5e-2)


def test_batches_and_their_shared_matrices_are_copied() -> None:
    op = evt.gemm("D = acc", route="gemm-own-batches")
    for shapes in (((3, 50, 77), (3, 77, 136)), ((3, 50, 77), (77, 136)), ((1, 50, 77), (4, 77, 136))):
        x, y = (torch.randn(shape, device="cuda").half() for shape in shapes)
        torch.testing.assert_close(op(x, y), x @ y, rtol=1e-2, atol=5e-2)
        odd = op(x[..., 1:], y[..., 1:, :])
        torch.testing.assert_close(odd, x[..., 1:] @ y[..., 1:, :], rtol=1e-2, atol=5e-2)
    assert op(x[..., :0], y[..., :0, :]).eq(0).all()
    assert op(x[:, :0], y).shape == (4, 0, 136)


def test_gradients_of_unaligned_operands() -> None:
    op = evt.linear("D = silu(acc + bias)")
    given = [torch.randn(shape, device="cuda").half().requires_grad_() for shape in ((200, 77), (133, 77), (133,))]
    x, weight, bias = given
    found = torch.autograd.grad(op(x, weight, bias=bias).float().square().mean(), given)
    wanted = torch.autograd.grad(
        torch.nn.functional.silu(torch.nn.functional.linear(x, weight, bias)).float().square().mean(), given
    )
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=2e-2, atol=float(other.abs().max()) * 1e-2)
