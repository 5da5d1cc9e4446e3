"""Pairs and blocks of columns in own kernels, on a GPU: the lanes of a warp exchange them."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

import evt  # noqa: E402
from tests.gpu.own_kernels import check_call, random  # noqa: E402

pytestmark = pytest.mark.gpu

TEXTS = {
    "pairs": "out D: f16[m, n/2]; D = silu(even(acc))*odd(acc)",
    "pairs 8 apart": "out D: f16[m, n/2], E; D = silu(even(acc, 8))*odd(acc, 8); E = acc",
    "blocks": "out D, a: f32[m, n/16], b: f32[m, n/8]; a = max[n%16](abs(acc)); b = min[n%8](acc); D = acc - b",
    "sums": "out D: f16[m, n/2], low: f32[m]; D = even(acc)*odd(acc); low = sum[n](even(acc, 8)*0.5)",
    "turned": "D = interleave(even(acc, 8) - odd(acc, 8), odd(acc, 8)*2, 8)",
}


@pytest.mark.parametrize("groups", [1, 64])
@pytest.mark.parametrize("name", TEXTS)
def test_convolutions(name: str, groups: int) -> None:
    generator = torch.Generator("cuda").manual_seed(1)
    x = evt.channels_last(random((2, 64, 19, 23), "f16", generator))
    weight = evt.channels_last(random((64, 64 // groups, 3, 3), "f16", generator, 0.1))
    op = evt.conv2d(TEXTS[name], padding=1, groups=groups, route="own")
    assert max(check_call(op, x, weight, {})) <= 1


@pytest.mark.parametrize("name", TEXTS)
def test_products(name: str) -> None:
    generator = torch.Generator("cuda").manual_seed(2)
    a, b = random((200, 128), "f16", generator), random((128, 144), "f16", generator, 0.1)
    assert max(check_call(evt.gemm(TEXTS[name], route="own"), a, b, {})) <= 1
