"""Weights of 4 bits on a GPU: all offered tiles at odd sizes, against float64; PyTorch's layout; groups of rows."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import evt
from evt.bench.tensors import poison
from evt.plan import survey
from evt.request import packed_problem
from tests.support.one_config import with_config

pytestmark = pytest.mark.gpu

SIZES = ((1, 16, 128), (7, 136, 384), (130, 264, 1024), (300, 1032, 2048), (1000, 520, 640))
PROGRAMS = {
    "zeros": ("bf16", "i4", "in s: bf16[n, k/128], z: i8[n, k/128]; B = s*(B - z); D = silu(acc + bias)"),
    "bytes": ("bf16", "u4", "in z: u8[n, k/128]; B = B - z; D = acc"),
    "halves": ("f16", "u4", "in z: i8[n, k/128]; B = B - z; D = acc"),
    "columns": ("bf16", "u4", "in s: f32[n]; B = s*(B - 8); D = acc + C"),
    "floats": (
        "f16",
        "i4",
        "in s: f32[n, k/256], z: f16[n, k/128]; B = s*(B + z); out D, r: f32[m]; D = acc; r = sum[n](D)",
    ),
    "codes": ("f16", "u4", "D = acc"),
}


def program(name: str) -> evt.Program:
    a, b, text = PROGRAMS[name]
    return evt.linear(f"linear(A: {a}[m, k], B: {b}[n, k]); {text}", route="gemm-own-3x")


def given(name: str, m: int, n: int, k: int) -> tuple[torch.Tensor, torch.Tensor, dict[str, Any]]:
    a, b, _ = PROGRAMS[name]
    generator = torch.Generator("cuda").manual_seed(m)
    kind = torch.bfloat16 if a == "bf16" else torch.float16
    x = torch.randn(m, k, device="cuda", generator=generator).to(kind)
    least = -8 if b == "i4" else 0
    codes = torch.randint(least, least + 16, (n, k), device="cuda", generator=generator)

    def uniform(*shape: int) -> torch.Tensor:
        return torch.rand(shape, device="cuda", generator=generator) * 0.05 + 0.01

    blocks = -(-k // 128)
    inputs: dict[str, Any] = {
        "zeros": {
            "s": uniform(n, blocks).bfloat16(),
            "z": torch.randint(-8, 9, (n, blocks), device="cuda", generator=generator).to(torch.int8),
            "bias": uniform(n).to(kind),
        },
        "bytes": {"z": torch.randint(0, 256, (n, blocks), device="cuda", generator=generator).to(torch.uint8)},
        "halves": {"z": torch.randint(-128, 128, (n, blocks), device="cuda", generator=generator).to(torch.int8)},
        "columns": {"s": uniform(n), "C": uniform(m, n).to(kind)},
        "floats": {"s": uniform(n, -(-k // 256)), "z": uniform(n, blocks).half()},
        "codes": {},
    }[name]
    return x, evt.prepare(evt.pack_int4(codes, signed=b == "i4")), inputs


#: Consumers with every other stage each.
BY_STAGES = ["own_stages_16x64x128_1x1x2", "own_stages_64x64x128_1x1x2"]


def configs(name: str) -> list[str]:
    (found,) = survey(packed_problem(program(name).request, "sm90"), "gemm-own-3x").asked
    return list(dict.fromkeys([*(config.name for config in found.default_configs), *BY_STAGES]))


@pytest.mark.parametrize(("name", "config"), [(name, config) for name in PROGRAMS for config in configs(name)])
def test_tiles(name: str, config: str) -> None:
    op = with_config(program(name), config)
    for m, n, k in SIZES:
        x, weight, inputs = given(name, m, n, k)
        if k // 128 < int(config.rpartition("x")[2]) and config.count("_") > 2:
            continue  # each thread block of a cluster that splits k needs a stage
        found = torch.empty(m, n, device="cuda", dtype=x.dtype)
        poison(found)
        op(x, weight, D=found, **inputs)
        exact = op.reference(x, weight, float64=True, **inputs)
        exact = exact if isinstance(exact, torch.Tensor) else exact.D
        assert (found.double() - exact).norm() < 4e-3 * exact.norm()
        again = op(x, weight, **inputs)
        assert torch.equal(found, again if isinstance(again, torch.Tensor) else again.D)


def test_the_layout_is_that_of_pytorch() -> None:
    codes = torch.randint(0, 16, (64, 256), device="cuda")
    weight = evt.prepare(evt.pack_int4(codes, signed=False))
    scales = torch.rand(2, 64, 2, device="cuda").bfloat16()
    x = torch.randn(5, 256, device="cuda").bfloat16()
    s, z = (scales[:, :, i].double().T.repeat_interleave(128, 1) for i in range(2))
    exact = x.double() @ ((codes.double() - 8) * s + z).T
    found = torch._weight_int4pack_mm(x, weight, 128, scales)
    assert (found.double() - exact).norm() < 0.02 * exact.norm()


def test_groups_of_rows() -> None:
    op = evt.grouped_gemm(
        "gemm(A: bf16[m, k], B: i4[n, k]); in s: f32[n, k/128], z: i8[n, k/128]; B = s*(B - z); D = acc"
    )
    codes = torch.randint(-8, 8, (4, 520, 1024), device="cuda")
    x, s = torch.randn(300, 1024, device="cuda").bfloat16(), torch.rand(4, 520, 8, device="cuda")
    z = torch.randint(-4, 5, (4, 520, 8), device="cuda").to(torch.int8)
    ends = torch.tensor([13, 13, 200, 290], dtype=torch.int32, device="cuda")
    found = op(x, evt.prepare(evt.pack_int4(codes)), offsets=ends, s=s, z=z)
    weight = (codes.double() - z.double().repeat_interleave(128, 2)) * s.double().repeat_interleave(128, 2)
    for group, (first, end) in enumerate(((0, 13), (13, 13), (13, 200), (200, 290))):
        exact = x[first:end].double() @ weight[group].T
        assert (found[first:end].double() - exact).norm() <= 4e-3 * exact.norm()
