"""Infinite constants on a GPU: masks, reductions of them, inputs that a call leaves out, stores in other types."""

from __future__ import annotations

import math

import pytest
import torch

import evt
from evt.runtime.arguments import bind
from evt.runtime.kernels import device_target, plan_kernels
from evt.runtime.plans import kernel_sources
from tests.gpu.builds import build_selected
from tests.support.one_config import general_config

pytestmark = pytest.mark.gpu

M, N, K = 203, 136, 72
MASKED = """
in least: f16[m, n] = -inf, most: f32[] = inf
out D, top: f32[m], h: bf16[m, n], q: e4m3[m, n], i: i32[m, n]
z = where(iota(n) <= iota(m), min(max(acc, least), most), -inf)
D = z
top = max[n](z)
h = z
q = z
i = z
"""


def call(family, given):
    op = general_config(evt.gemm(MASKED, route=f"evt-{family}"))
    generator = torch.Generator("cuda").manual_seed(7)
    a = torch.randn(M, K, device="cuda", generator=generator).half()
    b = torch.randn(K, N, device="cuda", generator=generator).half()
    inputs = {"least": torch.full((M, N), -0.5, device="cuda").half(), "most": 1.5} if given else {}
    return op, a, b, inputs


def sources_of(family, given):
    op, a, b, inputs = call(family, given)
    return kernel_sources(plan_kernels(op.request, bind(op.request, a, b, inputs, {}), device_target(0))[:1])


@pytest.fixture(scope="session")
def refused(request):
    return build_selected(request, test_infinity, sources_of)


@pytest.mark.parametrize("given", [False, True])
@pytest.mark.parametrize("family", ["3x", "2x"])
def test_infinity(family, given, refused) -> None:
    for source in sources_of(family, given):
        assert source not in refused, refused[source]
    op, a, b, inputs = call(family, given)
    want = op.reference(a, b, **inputs)
    masked = torch.arange(N, device="cuda") > torch.arange(M, device="cuda")[:, None]
    for _ in range(2):  # twice on the same buffers
        buffers = [torch.full_like(each, math.nan if each.dtype.is_floating_point else 77) for each in want]
        got = op(a, b, out=tuple(buffers), **inputs)
        assert (got.D[masked] == -math.inf).all()
        assert (got.h[masked] == -math.inf).all()
        assert (got.q.float()[masked] == -448).all()
        assert (got.i[masked] == -(2**31)).all()
        for name in ("D", "top", "h", "q"):
            here, right = getattr(got, name).double(), getattr(want, name).double()
            assert torch.allclose(here, right, rtol=0.13 if name == "q" else 1e-2, atol=2e-2), name
        assert (got.i[~masked] - want.i[~masked]).abs().max() <= 1
