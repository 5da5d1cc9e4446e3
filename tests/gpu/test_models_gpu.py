"""Models of torchvision, timm and transformers on a GPU: fused against eager, both against eager in float32."""

from __future__ import annotations

import contextlib
import copy
from dataclasses import dataclass
from functools import cache
from typing import Any

import pytest
import torch

import evt
from evt.compilation import KernelSource, build
from evt.fx.fuse import fuse, fusion
from evt.fx.kernels import region_kernels
from tests.fx.zoo import counts, make

pytestmark = pytest.mark.gpu

#: The model, its type, and the number of fused products. Slow ones have many kernels.
CASES = {
    "resnet50-f16": ("resnet50", torch.float16, 54),
    "vit_b_16-bf16": ("vit_b_16", torch.bfloat16, 50),
    "bert-f16": ("bert", torch.float16, 24),
    "gpt2-bf16": ("gpt2", torch.bfloat16, 16),
    "llama-bf16": ("llama", torch.bfloat16, 12),
}
SLOW = {
    "t5-bf16": ("t5", torch.bfloat16, None),
    "mobilenet_v3_large-f16": ("mobilenet_v3_large", torch.float16, 64),
    "convnext_tiny-bf16": ("convnext_tiny", torch.bfloat16, 59),
    "efficientnet_b0-f16": ("efficientnet_b0", torch.float16, 82),
}


@dataclass(frozen=True)
class Model:
    """A model, fused, with the inputs of a call, and the kernels of its regions."""

    plain: Any
    fused: Any
    inputs: dict[str, Any]
    sources: tuple[KernelSource, ...]


@cache
def prepared(name: str) -> Model:
    """Return a model on the GPU; skip the test where its package is not installed."""
    zoo, dtype, _ = {**CASES, **SLOW}[name]
    try:
        plain, inputs = make(zoo, dtype, "cuda")
    except ImportError as error:
        pytest.skip(str(error))
    fused = fuse(plain, inputs)
    kernels = (region_kernels(region, every=True) for region in fusion(fused).regions)
    sources = dict.fromkeys(source for each in kernels for source in each.sources)
    print(f"{name}: {counts(fusion(fused))}, kernels {len(sources)}")
    return Model(plain, fused, inputs, tuple(sources))


@pytest.fixture(scope="module")
def _built(request: pytest.FixtureRequest) -> None:
    """Build the kernels of all selected models side by side; a test whose kernel nvcc refuses says so itself."""
    sources: dict[KernelSource, None] = {}
    for item in request.session.items:
        if getattr(item, "function", None) is test_fused_is_as_exact_as_eager:
            with contextlib.suppress(Exception, pytest.skip.Exception):
                sources |= dict.fromkeys(prepared(item.callspec.params["name"]).sources)  # type: ignore[attr-defined]
    print(f"distinct kernels of all models: {len(sources)}")
    with contextlib.suppress(evt.BuildError):
        build(list(sources))


@pytest.mark.usefixtures("_built")
@pytest.mark.parametrize("name", [*CASES, *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW)])
def test_fused_is_as_exact_as_eager(name: str, record: Any) -> None:
    zoo, dtype, fused_products = {**CASES, **SLOW}[name]
    model = prepared(name)
    found = counts(fusion(model.fused))
    if fused_products is not None:
        assert found["regions"] == fused_products
    with torch.no_grad():
        eager = model.plain(**model.inputs).double()
        got = model.fused(**model.inputs).double()
        again = model.fused(**model.inputs).double()
        wide, inputs = (
            copy.deepcopy(model.plain).float(),
            {key: value.float() if value.is_floating_point() else value for key, value in model.inputs.items()},
        )
        allowed = torch.backends.cudnn.allow_tf32
        torch.backends.cudnn.allow_tf32 = False
        try:
            exact = wide(**inputs).double()
        finally:
            torch.backends.cudnn.allow_tf32 = allowed
    errors = [float((each - exact).norm() / exact.norm()) for each in (got, eager)]
    record((zoo, "fused", str(dtype)[6:], str(found["programs"]), f"{errors[0]:.2e}, eager {errors[1]:.2e}"))
    assert torch.isfinite(got).all()
    assert torch.equal(got, again)
    assert errors[0] <= 1.5 * errors[1] + 1e-4


def test_float32_needs_leave() -> None:
    """Without TF32 a product in float32 stays PyTorch's; with it the error is TF32's."""
    linear = torch.nn.Linear(64, 48).cuda()
    model, x = torch.nn.Sequential(linear, torch.nn.ReLU()), torch.randn(32, 64, device="cuda")
    (outcome,) = fusion(fuse(model, (x,))).outcomes
    assert outcome.reason is not None
    assert outcome.reason.code == "E1011"
