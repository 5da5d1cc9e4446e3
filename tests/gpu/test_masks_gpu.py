"""Packed bits that set elements of D to 0."""

from __future__ import annotations

import pytest
import torch

import evt
from evt.plan import survey
from evt.request import packed_problem
from tests.support.one_config import with_config

pytestmark = pytest.mark.gpu

MASKED = evt.gemm("in keep: b1[m, n]; D = where(keep, relu(acc + C), 0)", route="gemm-own-3x")
CONFIGS = survey(packed_problem(MASKED.request, "sm90", "bf16", "bf16"), "gemm-own-3x").asked[0].default_configs


def bits_of(rows: int, columns: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return packed bits, and whether each is set."""
    draw = torch.Generator("cuda").manual_seed(seed)
    bits = torch.randint(0, 256, (rows, columns // 8), generator=draw, device="cuda", dtype=torch.uint8)
    return bits, (bits[:, :, None] >> torch.arange(8, device="cuda", dtype=torch.uint8) & 1).bool().flatten(1)


@pytest.mark.parametrize("config", CONFIGS[::2], ids=lambda config: config.name)
def test_products_of_whole_numbers_are_exact(config) -> None:
    op, draw = with_config(MASKED, config.name), torch.Generator("cuda").manual_seed(5)
    for m, n, k in ((333, 264, 520), (1001, 136, 584), (63, 1096, 1032), (2049, 72, 2056)):
        a, b, c = (
            torch.randint(-2, 3, shape, generator=draw, device="cuda").bfloat16() for shape in ((m, k), (k, n), (m, n))
        )
        bits, keep = bits_of(m, n, m)
        d = torch.full((m, n), torch.nan, device="cuda", dtype=torch.bfloat16)
        op(a, b, keep=bits, C=c, out=d)
        product = (a.double() @ b.double()).float() + c.float()
        assert torch.equal(d, torch.where(keep, product.relu(), 0).bfloat16()), (m, n, k)


@pytest.mark.parametrize("operation", ["linear", "conv2d_dgrad"])
def test_masked_elements_are_zero_if_their_products_are_not_finite(operation: str) -> None:
    op = getattr(evt, operation)("in keep: b1[m, n]; D = where(keep, acc, 0)")
    draw = torch.Generator("cuda").manual_seed(7)
    shapes = ((333, 136), (264, 136)) if operation == "linear" else ((3, 72, 9, 11), (72, 264, 1, 1))
    a, b = (torch.randn(shape, generator=draw, device="cuda", dtype=torch.bfloat16) for shape in shapes)
    if operation == "conv2d_dgrad":
        a, b = (each.contiguous(memory_format=torch.channels_last) for each in (a, b))
    a[::2] = torch.inf
    a[1::4] = torch.nan
    rows = 333 if operation == "linear" else 3 * 9 * 11
    bits, keep = bits_of(rows, 264, 7)
    found = op(a, b, keep=bits)
    found = found if operation == "linear" else found.movedim(1, -1).reshape(rows, 264)
    assert (found[~keep] == 0).all()
    assert not found[keep].isfinite().all()
