"""Products of few rows whose operands TMA does not load: every tile, offsets within lines, and splits of k."""

from __future__ import annotations

import pytest
import torch

import evt
from evt.plan.gemv import TILES
from tests.gpu.own_kernels import check_call, random

pytestmark = pytest.mark.gpu

ROUTE = "gemv-own-3x"
#: Programs, and the type of A and B.
CASES = {
    "residual": ("D = relu(acc + bias + residual)", "bf16"),
    "reductions": ("out D, a: f32[n], b: f32[m]; D = acc + bias; a = sum[m](D*D); b = max[n](D)", "f16"),
    "bits": ("out D, mask: b1[m, n]; D = relu(acc + bias); mask = acc + bias > 0", "bf16"),
    "places": ("out D, i: i32[m]; D = acc + bias; i = argmax[n](D)", "bf16"),
    "pairs": ("D[m, n/2] = silu(even(acc))*odd(acc)", "f16"),
    "i8": ("out D: i32; D = acc", "i8"),
    "u8": ("out D: i32; D = acc", "u8"),
}
#: Rows, columns, k, and the elements before a row in memory.
SIZES = (
    (1, 6001, 2851, 1),
    (16, 1002, 333, 0),
    (3, 77, 4095, 3),
    (33, 132, 75, 2),
    (7, 17, 5, 5),
    (1, 1, 1, 1),
    (99, 513, 129, 4),
)


def sliced(shape: tuple[int, int], dtype: str, generator: torch.Generator, before: int) -> torch.Tensor:
    """Return a matrix within a buffer of NaN, or of a large number."""
    given = random(shape, dtype, generator, shape[1] ** -0.25)
    if before == 0:
        return given
    buffer = torch.full((shape[0], shape[1] + before + 2), float("nan") if dtype[1:] != "8" else 99, device="cuda")
    return buffer.to(given.dtype)[:, before:-2].copy_(given)


@pytest.mark.parametrize("name", CASES)
def test_results(name: str, record) -> None:
    """A case has each tile with some sizes, and all cases together have each tile with each size."""
    text, dtype = CASES[name]
    depth, worst = 128 if dtype[1:] == "8" else 64, 0.0
    for seed, (m, n, k, before) in enumerate(SIZES):
        tile = list(TILES)[(seed + list(CASES).index(name)) % len(TILES)]
        op = evt.linear(text, route=ROUTE, config=f"gemv_{tile.rows}x{tile.columns}x{depth}")
        generator, n = torch.Generator("cuda").manual_seed(seed), n + n % 2 if name == "pairs" else n
        a, b = (sliced(shape, dtype, generator, before) for shape in ((m, k), (n, k)))
        given = {"bias": (n,), "residual": (m, n)}
        inputs = {each: random(given[each], dtype, generator) for each in op.inputs}
        worst = max(worst, *check_call(op, a, b, inputs))
    record((name, "gemv", dtype, "unaligned rows", f"{worst:.2f}"))
