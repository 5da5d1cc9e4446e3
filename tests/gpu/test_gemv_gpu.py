"""Products of few rows or columns whose operands TMA does not load: every tile, offsets within lines, splits of k."""

from __future__ import annotations

import pytest
import torch

import evt
from evt.plan.gemv import TILES, TILES_BY_ROWS
from tests.gpu.own_kernels import check_call, random

pytestmark = pytest.mark.gpu

#: Routes with the schedule and the tiles of their configurations.
ROUTES = {"gemv-own-3x": ("gemv", tuple(TILES)), "gemv-rows-3x": ("gemv_rows", tuple(TILES_BY_ROWS))}
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
    (1003, 36, 84, 0),
    (517, 5, 602, 2),
    (261, 90, 17, 1),
)


def sliced(shape: tuple[int, int], dtype: str, generator: torch.Generator, before: int) -> torch.Tensor:
    """Return a matrix within a buffer of NaN, or of a large number."""
    given = random(shape, dtype, generator, shape[1] ** -0.25)
    if before == 0:
        return given
    buffer = torch.full((shape[0], shape[1] + before + 2), float("nan") if dtype[1:] != "8" else 99, device="cuda")
    return buffer.to(given.dtype)[:, before:-2].copy_(given)


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("name", CASES)
def test_results(name: str, route: str, record) -> None:
    """A case has each tile with some sizes, and all cases together have each tile with each size."""
    text, dtype = CASES[name]
    depth, worst, (schedule, tiles) = 128 if dtype[1:] == "8" else 64, 0.0, ROUTES[route]
    for seed, (m, n, k, before) in enumerate(SIZES):
        tile = tiles[(seed + list(CASES).index(name)) % len(tiles)]
        op = evt.linear(text, route=route, config=f"{schedule}_{tile.rows}x{tile.columns}x{depth}")
        generator, n = torch.Generator("cuda").manual_seed(seed), n + n % 2 if name == "pairs" else n
        a, b = (sliced(shape, dtype, generator, before) for shape in ((m, k), (n, k)))
        given = {"bias": (n,), "residual": (m, n)}
        inputs = {each: random(given[each], dtype, generator) for each in op.inputs}
        worst = max(worst, *check_call(op, a, b, inputs))
    record((name, schedule, dtype, "unaligned rows", f"{worst:.2f}"))


@pytest.mark.parametrize(("channels", "filters"), [(84, 36), (17, 88), (64, 3), (264, 8), (90, 48)])
@pytest.mark.parametrize("config", [f"gemv_rows_{tile.rows}x{tile.columns}x64" for tile in TILES_BY_ROWS])
def test_convolutions(channels: int, filters: int, config: str) -> None:
    """Pixels are rows, of a slice of channels too."""
    generator = torch.Generator("cuda").manual_seed(channels)
    x = random((3, channels + 3, 23, 29), "f16", generator).to(memory_format=torch.channels_last)
    weight = random((filters, channels, 1, 1), "f16", generator, channels**-0.5)
    op = evt.conv2d("D = relu(acc + bias + residual)", route="gemv-rows-3x", config=config)
    residual = random((3, filters, 23, 29), "f16", generator).to(memory_format=torch.channels_last)
    inputs = {"bias": random((filters,), "f16", generator), "residual": residual}
    for each in (x[:, :channels].contiguous(memory_format=torch.channels_last), x[:, 3:]):
        check_call(op, each, weight, inputs)
