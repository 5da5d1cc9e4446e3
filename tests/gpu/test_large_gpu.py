"""Tensors of more than 2^31 elements, beyond 4 GiB: every element of the results is exact."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.nn import functional

import evt

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.slow,
    pytest.mark.skipif(
        torch.cuda.is_available() and torch.cuda.get_device_properties(0).total_memory < 60 * 2**30,
        reason="needs 60 GiB",
    ),
]
M, N, K = 66000, 36000, 64
BF16, F32 = torch.bfloat16, torch.float32
Value = torch.Tensor
#: Programs, the types and modes of their inputs, and the rows of their results from the rows of product and inputs.
MATRICES: dict[str, tuple[str, dict[str, tuple[str, torch.dtype]], Callable[..., tuple[Value, ...]]]] = {
    "bias-residual": (
        "in bias: bf16[n]\nD = relu(acc + bias) + c",
        {"bias": ("n", BF16), "c": ("mn", BF16)},
        lambda z, bias, c: (torch.relu(z + bias) + c,),
    ),
    "f32": ("in c: f32[m, n]\nout D: f32[m, n]\nD = acc - c", {"c": ("mn", F32)}, lambda z, c: (z - c,)),
    "two-outputs": (
        "out D, E: bf16[m, n]\nE = acc + c + r\nD = relu(E)",
        {"c": ("mn", BF16), "r": ("mn", BF16)},
        lambda z, c, r: (torch.relu(z + c + r), z + c + r),
    ),
    "rows": (
        "out D: bf16[m, n], R: f32[m], T: f32[m]\nD = acc\nR = sum[n](acc)\nT = max[n](acc)",
        {},
        lambda z: (z, z.sum(1), z.amax(1)),
    ),
    "columns-of-memory": ("D = acc + c", {"c": ("nm", BF16)}, lambda z, c: (z + c,)),
    "pairs": ("D = even(acc)*odd(acc)", {}, lambda z: ((z[:, ::2] * z[:, 1::2]).to(BF16).float(),)),
}
#: Images, channels, side, filters, taps, stride and groups of convolutions.
IMAGES = [
    (560, 16, 512, 16, 3, 1, 1),
    (136, 16, 512, 64, 3, 1, 1),
    (136, 64, 512, 64, 1, 1, 1),
    (272, 32, 512, 32, 3, 2, 1),
    (136, 64, 512, 64, 3, 1, 64),
    (136, 64, 512, 64, 3, 1, 4),
    (150, 3, 1024, 64, 7, 2, 1),
]


def whole(*shape: int, dtype: torch.dtype = BF16) -> Value:
    """Return numbers of -1, 0 and 1."""
    made = torch.empty(shape, dtype=dtype, device="cuda")
    rows = made.view(shape[0], -1)
    for part in rows.split(max(1, 2**27 // rows.shape[1])):
        part.copy_(torch.randint(-1, 2, part.shape, device="cuda", dtype=torch.int8))
    return made


def parts(count: int, size: int = 4096) -> Iterator[slice]:
    yield from (slice(start, min(start + size, count)) for start in range(0, count, size))


@pytest.fixture(autouse=True)
def _empty() -> Iterator[None]:
    torch.manual_seed(0)
    yield
    torch.cuda.empty_cache()


@pytest.mark.parametrize("name", MATRICES)
def test_matrices(name: str) -> None:
    text, kinds, meaning = MATRICES[name]
    a, b = whole(M, K), whole(K, N)
    sizes = {"n": (N,), "mn": (M, N), "nm": (N, M)}
    inputs = {each: whole(*sizes[modes], dtype=dtype) for each, (modes, dtype) in kinds.items()}
    inputs = {each: value.t() if kinds[each][0] == "nm" else value for each, value in inputs.items()}
    found: Any = evt.gemm(text)(a, b, **inputs)
    for rows in parts(M):
        given = {each: value[rows].float() if value.dim() == 2 else value.float() for each, value in inputs.items()}
        want = meaning(a[rows].float() @ b.float(), **given)
        for x, y in zip(want, (found,) if isinstance(found, torch.Tensor) else found, strict=True):
            assert torch.equal(x, y[rows].float()), rows


def test_bits_and_column_sums() -> None:
    a, b, bias = whole(M, K), whole(K, N), whole(M)
    text = "in bias: bf16[m]\nout D: bf16[m, n], bits: b1[m, n], S: f32[n]\nz = acc + bias\nD = relu(z)\nbits = z > 0"
    found: Any = evt.gemm(text + "\nS = sum[m](z)")(a, b, bias=bias)
    total = torch.zeros(N, device="cuda")
    for rows in parts(M):
        z = a[rows].float() @ b.float() + bias[rows, None].float()
        total += z.sum(0)
        assert torch.equal(found.D[rows].float(), torch.relu(z)), rows
        assert torch.equal(evt.unpack_bits(found.bits[rows], N), z > 0), rows
    assert torch.equal(found.S, total)


@pytest.mark.parametrize("rows", [1, 4, 16, 100])
@pytest.mark.parametrize("dtype", [BF16, torch.int8])
def test_weights(rows: int, dtype: torch.dtype) -> None:
    a, b = whole(rows, 60000), whole(40000, 60000, dtype=dtype)
    kind = "i8" if dtype == torch.int8 else "bf16"
    found = evt.linear(f"linear(A: bf16[m, k], B: {kind}[n, k])\nout D: f32[m, n]\nD = acc")(a, b)
    for columns in parts(40000, 1000):
        assert torch.equal(found[:, columns], a.float() @ b[columns].float().t()), columns


def test_groups_of_rows() -> None:
    ends = [300000, 300000, 700001, 1000000, 1500003, 1500004, 2300000, 2400000]
    a, b = whole(ends[-1], K), whole(len(ends), 1024, K)
    op = evt.grouped_gemm("gemm(A: bf16[m, k], B: bf16[n, k])\nD = acc")
    found = op(a, b, offsets=torch.tensor(ends, device="cuda", dtype=torch.int32))
    for weight, start, end in zip(b, [0, *ends], ends, strict=False):
        for rows in parts(end - start, 65536):
            given = slice(start + rows.start, start + rows.stop)
            assert torch.equal(found[given].float(), a[given].float() @ weight.float().t()), given


@pytest.mark.parametrize(("images", "channels", "side", "filters", "taps", "stride", "groups"), IMAGES)
def test_images(images: int, channels: int, side: int, filters: int, taps: int, stride: int, groups: int) -> None:
    x = whole(images, side, side, channels).permute(0, 3, 1, 2)
    weight = whole(filters, taps, taps, channels // groups).permute(0, 3, 1, 2)
    residual = whole(images, side // stride, side // stride, filters).permute(0, 3, 1, 2)
    given = {"stride": stride, "padding": taps // 2, "groups": groups}
    found = evt.conv2d("D = relu(acc) + c", **given)(x, weight, c=residual)
    for part in parts(images, 8):
        want = torch.relu(functional.conv2d(x[part], weight, **given).float()) + residual[part].float()
        assert torch.equal(found[part].float(), want.to(BF16).float()), part
