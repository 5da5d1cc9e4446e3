"""Weights of 8 bits with activations of 16: meaning, factors, plans, texts, refusals, PyTorch's operator."""

from __future__ import annotations

from itertools import product

import pytest
import torch
from torch import nn

import evt
from evt.errors import EvtError
from evt.fx.fuse import fusion
from evt.plan.gemm import tile_of
from evt.plan.plan import OwnProduct
from evt.reference.compare import relative_error
from tests.fx.fusing import formulas

ACTIVATIONS = {"f16": torch.float16, "bf16": torch.bfloat16}
WEIGHTS = {"i8": torch.int8, "u8": torch.uint8, "e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2}
PAIRS = list(product(ACTIVATIONS, WEIGHTS))


def operands(a: str, b: str, m: int = 21, n: int = 40, k: int = 272) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(m + n + k)
    x = torch.randn(m, k, generator=generator).to(ACTIVATIONS[a])
    if b in ("i8", "u8"):
        least = -128 if b == "i8" else 0
        return x, torch.randint(least, least + 256, (n, k), generator=generator).to(WEIGHTS[b])
    return x, torch.randn(n, k, generator=generator).to(WEIGHTS[b])


@pytest.mark.parametrize(("a", "b"), PAIRS)
@pytest.mark.parametrize(
    ("formula", "blocks"), [("B = s[n]*B/t[n]", False), ("in s: f32[n, k/128]; B = s*B", True), ("", False)]
)
def test_factors_multiply_sums(a: str, b: str, formula: str, blocks: bool) -> None:
    op = evt.linear(f"{formula}; out D: f32[m, n]; D = acc + 1" if formula else "out D: f32[m, n]; D = acc + 1")
    x, w = operands(a, b)
    exact, inputs = w.double(), {}
    if blocks:
        inputs = {"s": torch.rand(40, 3) + 0.5}
        exact = exact * inputs["s"].double().repeat_interleave(128, 1)[:, :272]
    elif formula:
        inputs = {"s": torch.rand(40) + 0.5, "t": torch.rand(40) + 0.5}
        exact = exact * (inputs["s"].double() / inputs["t"].double())[:, None]
    assert relative_error(op(x, w, **inputs), x.double() @ exact.T + 1) < 1e-6
    plan = op.plan("sm90", a, b)
    assert isinstance(plan.mainloop, OwnProduct)
    assert plan.mainloop.converts
    assert bool(plan.factors) == blocks


@pytest.mark.parametrize(("a", "b"), PAIRS)
def test_filters_are_converted_in_registers(a: str, b: str) -> None:
    text = evt.linear("D = acc").emit("sm90", a, b)
    from_ = {"i8": "int8_t", "u8": "uint8_t"}.get(b, f"evt::element::{b}").replace("evt::", "")
    assert f"Converted<evt::{from_}, evt" in text or f"Converted<{from_}, evt" in text
    assert f"k16.f32.{a}.{a}" in text
    assert "uint32_t const (&a)[4], uint32_t b, uint32_t layout_of_b" in text


def test_stages_of_both_have_the_same_depth() -> None:
    plan = evt.linear("D = acc").plan("sm90", "bf16", "i8")
    assert plan.config.tile[2] == 64
    assert tile_of(plan.config, 2).row_bytes == 128


@pytest.mark.parametrize("target", ["sm80", "sm89", "sm100", "sm120"])
def test_other_targets_say_why(target: str) -> None:
    with pytest.raises(EvtError, match="only evt's GEMM kernel for sm90 converts B"):
        evt.linear("D = acc").plan(target, "bf16", "i8")


@pytest.mark.parametrize(("a", "b"), [("i8", "bf16"), ("f32", "i8"), ("e4m3", "i8"), ("f16", "bf16")])
def test_other_pairs_are_refused(a: str, b: str) -> None:
    with pytest.raises(EvtError, match="the tensor cores do not multiply these two types"):
        evt.linear("D = acc").plan("sm90", a, b)


def test_convolutions_have_no_converted_filters() -> None:
    with pytest.raises(EvtError, match="the tensor cores do not multiply these two types"):
        evt.conv2d("D = acc").plan("sm90", "bf16", "i8")


def test_a_formula_of_elements_is_refused() -> None:
    with pytest.raises(EvtError, match="mainloop fusion"):
        evt.linear("B = relu(B); D = acc").plan("sm90", "bf16", "i8")


def test_the_operator_of_pytorch() -> None:
    class Quantised(nn.Module):
        def forward(self, x: torch.Tensor, w: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
            return torch.ops.aten._weight_int8pack_mm(x, w, s).relu()

    x, w = operands("bf16", "i8")
    scale = (torch.rand(40) + 0.5).bfloat16()
    found = fusion(evt.fuse(Quantised().eval(), (x, w, scale)))
    assert formulas(found) == ["D = relu(acc*x0)"]
    exact = (x.double() @ w.double().T * scale.double()).relu()
    assert relative_error(found.regions[0].program(x, w, x0=scale), exact) < 4e-3


@pytest.mark.parametrize("b", ["i8", "e4m3"])
def test_activations_have_a_gradient(b: str) -> None:
    x, w = operands("bf16", b)
    scale = torch.rand(40).bfloat16()
    x.requires_grad_()
    evt.linear("B = s[n]*B; D = acc")(x, w, s=scale).sum().backward()
    assert x.grad is not None
    exact = (w.double() * scale.double()[:, None]).sum(0).expand(21, -1)
    assert relative_error(x.grad, exact) < 1e-2


def test_pytorch_converts_the_weight_first() -> None:
    x, w = operands("f16", "i8")
    found = evt.linear("D = acc*s[n]", numerics="eager").verify(x, w, s=torch.ones(40).half())
    assert found.outputs[0].share < 0.2
