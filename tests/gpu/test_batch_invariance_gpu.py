"""``batch_invariant=True`` on a GPU: the bits of a row are equal in batches of 1 to 4096 rows."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import evt

pytestmark = pytest.mark.gpu
PROGRAMS = (
    "D = acc",
    "D = gelu(acc + bias)",
    "D = relu(alpha*acc + beta*C)",
    "in s: f32[m]; D = s*acc + C",
    "out D, r: f32[m]; D = silu(acc); r = max[n](D)",
    "out D, r: f32[m]; D = silu(acc); r = sum[n](D)",
    "out D, r: f32[m, n/32]; D = silu(acc); r = sum[n%32](D)",
    "out D; z = silu(even(acc))*odd(acc); D = z",
    "out D, t: f32[m, n/32]; D = acc; t = max[n%32](abs(acc))",
)


@pytest.mark.parametrize("numerics", ["precise", "eager"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("text", PROGRAMS)
@pytest.mark.parametrize(("n", "k"), [(512, 4096), (352, 1000)])
def test_rows_do_not_depend_on_their_number(text: str, dtype: torch.dtype, numerics: Any, n: int, k: int) -> None:
    op = evt.linear(text, batch_invariant=True, numerics=numerics)
    x, w = torch.randn(4096, k, device="cuda").to(dtype), torch.randn(n, k, device="cuda").to(dtype)
    of_rows = {"C": torch.randn(4096, n, device="cuda").to(dtype), "s": torch.randn(4096, device="cuda")}
    given = {"bias": torch.randn(n, device="cuda").to(dtype), "alpha": 0.7, "beta": -1.3}

    def run(first: int, rows: int) -> list[torch.Tensor]:
        here = {name: tensor[first : first + rows] for name, tensor in of_rows.items()}
        result = op(x[first : first + rows], w, **{name: {**given, **here}[name] for name in op.inputs})
        return list(result) if isinstance(result, tuple) else [result]

    whole = run(0, 4096)
    for rows in (1, 2, 7, 16, 64, 100, 256, 1024):
        for part, full in zip(run(64, rows), whole, strict=True):
            assert torch.equal(part, full[64 : 64 + rows]), rows


@pytest.mark.parametrize(
    ("text", "n", "k"),
    [
        ("D = gelu(acc + bias)", 512, 8192),
        ("out D, r: f32[m]; D = acc + bias; r = rsqrt(sum[n](D*D) + 0.1)", 8200, 256),
        ("out D, r: f32[m], t: f32[m]; D = acc + bias; r = mean[n](D); t = rsqrt(var[n](D) + 0.1)", 8200, 256),
    ],
)
@pytest.mark.parametrize("route", ["own", "evt-3x"])
def test_each_route(route: str, text: str, n: int, k: int) -> None:
    if route == "evt-3x" and "var" in text:
        pytest.skip("refused")
    op = evt.linear(text, batch_invariant=True, route=route)
    x, w = torch.randn(4096, k, device="cuda").bfloat16(), torch.randn(n, k, device="cuda").bfloat16()
    bias = torch.randn(n, device="cuda").bfloat16()

    def run(first: int, rows: int) -> tuple[torch.Tensor, ...]:
        found = op(x[first : first + rows], w, bias=bias)
        return found if isinstance(found, tuple) else (found,)

    whole = run(0, 4096)
    for first, rows in ((0, 1), (3, 3), (70, 16), (0, 100), (64, 128), (1, 512), (5, 2048)):
        for part, full in zip(run(first, rows), whole, strict=True):
            assert torch.equal(part, full[first : first + rows]), (first, rows)
