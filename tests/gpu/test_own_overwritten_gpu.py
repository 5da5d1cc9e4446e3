"""Own products whose outputs overwrite a matrix that they read."""

from __future__ import annotations

import pytest
import torch

import evt
from tests.gpu import own_kernels
from tests.support.patterns import same_bits

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("element", ["f16", "f32"])
@pytest.mark.parametrize("config", ["own_pingpong_128x128x64", "own_cooperative_152x256x64", "own_pingpong_64x64x64"])
def test_a_residual_is_overwritten(config, element, record) -> None:
    """The last tile of rows begins where the tile before ends: it must not read elements that are stored."""
    text = f"in C: {element}[m, n]; out D: {element}; D = acc + C"
    op = evt.linear(text, route="gemm-own-3x", config=config)
    for seed, (m, n, k) in enumerate(((1001, 4096, 72), (333, 8200, 136), (153, 264, 520))):
        generator = torch.Generator("cuda").manual_seed(seed)
        a, b = (own_kernels.random(shape, "f16", generator, k**-0.25) for shape in ((m, k), (n, k)))
        c = own_kernels.random((m, n), element, generator)
        want = op(a, b, C=c)
        assert op(a, b, C=c, out=c) is c
        assert bool(same_bits(c, want).all())
    record((element, config, "f16", "C is overwritten", "equal"))
