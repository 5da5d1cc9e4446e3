"""Weights of 8 bits with activations of 16: meaning, factors, plans, texts, refusals, PyTorch's operator."""

from __future__ import annotations

import re
from itertools import product

import pytest
import torch
from torch import nn

import evt
from evt.errors import EvtError
from evt.fx.fuse import fusion
from evt.plan.gemm import tile_of
from evt.plan.plan import OwnProduct
from evt.plan.speed import fastest
from evt.reference.compare import relative_error
from evt.request import packed_problem, surveyed
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
    assert plan.config.tile[2] == 128
    assert tile_of(plan.config, 2).row_bytes == 256


OF_BLOCKS = "in s: f32[n, k/128]; B = s*B; D = acc"


@pytest.mark.parametrize(
    ("b", "text", "config", "rows"),
    [
        ("i4", OF_BLOCKS, "own_cooperative_128x128x128", 128),
        ("i4", OF_BLOCKS, "own_cooperative_96x128x128", 96),
        ("i4", OF_BLOCKS, "own_stages_96x64x128_1x1x2", 96),
        ("i4", OF_BLOCKS, "own_cooperative_64x128x128", 64),
        ("i4", "D = acc", "own_cooperative_128x128x128", 128),
        ("i8", OF_BLOCKS, "own_cooperative_128x128x64", 64),
        ("i8", OF_BLOCKS, "own_cooperative_128x128x64_1x2", 128),
        ("i8", OF_BLOCKS, "own_cooperative_192x128x64", 192),
        ("i8", "B = s[n]*B; D = acc", "own_cooperative_128x128x128", 128),
    ],
)
def test_sums_with_factors_are_multiplied_in_halves(b: str, text: str, config: str, rows: int) -> None:
    """The sums of one half of the rows are promoted while the other half is multiplied, if B has 8 bits."""
    op = evt.linear(f"linear(A: bf16[m, k], B: {b}[n, k]); {text}", route="own", config=config)
    emitted = op.emit("sm90")
    assert f"kPixels = {rows};" in emitted
    assert f".m64n{rows}k16." in emitted
    (arguments,) = re.findall(r"GemmTile<([^>]*)>", emitted)
    assert (arguments.count(",") == 12) is (tile_of(op.plan("sm90").config, 2).rows > rows)


#: Microseconds of bf16 products with weights of i8 by (m, n, k), by tile. NVIDIA H100 80GB HBM3, 2026-11.
TILES = (
    "own_pingpong_128x64x128",
    "own_cooperative_128x128x128",
    "own_cooperative_64x128x128",
    "own_pingpong_64x64x128",
    "own_cooperative_192x128x64_1x2",
    "own_cooperative_256x128x64_1x2",
    "own_stages_64x64x128_1x1x2",
)
MEASURED = {
    (64, 4096, 4096): (26.5, 30.8, 25.8, 18.7, 38.6, 45.8, 16.7),
    (64, 4096, 14336): (73.9, 83.5, 68.0, 43.4, 112.6, 137.2, 34.1),
    (64, 6144, 4096): (32.4, 31.3, 26.2, 19.6, 39.1, 46.3, 25.2),
    (64, 28672, 4096): (105.5, 82.1, 55.5, 58.9, 127.4, 161.4, 74.6),
    (96, 4096, 4096): (21.6, 30.7, 25.8, 19.2, 38.7, 46.0, 28.6),
    (96, 4096, 14336): (54.7, 83.3, 68.2, 51.2, 113.1, 137.3, 57.3),
    (96, 6144, 4096): (26.0, 31.1, 26.5, 30.4, 39.4, 46.5, 38.7),
    (96, 28672, 4096): (96.3, 67.6, 83.7, 106.0, 116.0, 142.4, 144.5),
    (128, 4096, 4096): (21.7, 31.4, 25.9, 18.8, 38.6, 45.9, 25.0),
    (128, 4096, 14336): (53.3, 84.3, 68.3, 44.4, 113.0, 137.4, 50.7),
    (128, 6144, 4096): (22.2, 31.2, 26.4, 29.1, 39.1, 46.9, 33.9),
    (128, 28672, 4096): (70.7, 65.1, 84.9, 85.0, 87.8, 140.4, 126.8),
    (192, 4096, 4096): (30.2, 30.8, 26.2, 28.9, 39.0, 46.2, 34.2),
    (192, 4096, 14336): (88.1, 85.1, 69.4, 81.8, 113.0, 137.2, 74.8),
    (192, 6144, 4096): (49.3, 32.5, 43.9, 39.5, 39.8, 46.8, 48.8),
    (192, 28672, 4096): (187.6, 124.5, 121.4, 127.7, 81.7, 100.2, 180.5),
    (256, 4096, 4096): (22.2, 31.3, 26.5, 29.3, 39.3, 46.4, 44.5),
    (256, 4096, 14336): (55.6, 86.0, 72.2, 83.4, 114.3, 137.5, 101.2),
    (256, 6144, 4096): (35.2, 31.7, 44.4, 39.5, 47.2, 47.1, 61.5),
    (256, 28672, 4096): (111.3, 113.3, 139.8, 157.7, 184.8, 98.3, 241.3),
    (512, 4096, 4096): (35.2, 32.8, 44.1, 49.4, 40.2, 47.0, 78.2),
    (512, 4096, 14336): (108.4, 95.2, 136.6, 156.2, 119.4, 139.7, 196.9),
    (512, 6144, 4096): (48.7, 56.7, 63.1, 71.5, 75.3, 48.0, 110.8),
    (512, 28672, 4096): (208.2, 189.3, 263.8, 299.8, 214.2, 181.9, 467.0),
    (1024, 4096, 4096): (64.0, 56.9, 81.9, 93.4, 75.8, 50.2, 146.5),
    (1024, 4096, 14336): (207.7, 180.9, 259.6, 300.2, 234.3, 155.4, 389.9),
    (1024, 6144, 4096): (94.4, 86.0, 119.1, 136.4, 110.8, 93.4, 205.8),
    (1024, 28672, 4096): (402.0, 362.7, 515.4, 572.7, 380.8, 307.3, 909.4),
    (2048, 4096, 4096): (124.9, 114.1, 156.3, 177.6, 113.5, 95.6, 271.2),
    (2048, 4096, 14336): (543.3, 353.9, 510.5, 602.0, 356.6, 301.1, 1122.9),
    (2048, 6144, 4096): (198.7, 164.6, 227.6, 259.4, 148.7, 138.3, 382.6),
    (2048, 28672, 4096): (1112.0, 730.6, 997.0, 1179.4, 673.3, 611.0, 1727.1),
}


@pytest.mark.parametrize("size", MEASURED, ids=str)
def test_calls_take_the_fastest_measured_tile(size: tuple[int, int, int]) -> None:
    op = evt.linear("B = s[n]*B; D = acc")
    offered = surveyed(op.request, packed_problem(op.request, "sm90", "bf16", "i8")).defaults
    plans = [plan for plan in offered if plan.config.name in TILES]
    assert len(plans) == len(TILES)
    taken = plans[fastest(plans, {**dict(zip("mnk", size, strict=True)), "l": 1}, 132)].config.name
    assert MEASURED[size][TILES.index(taken)] <= 1.1 * min(MEASURED[size])


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
