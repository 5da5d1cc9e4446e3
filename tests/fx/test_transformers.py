"""Tiny BERT, GPT-2, Llama and T5 of transformers: the fused regions, and the numbers."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch

pytest.importorskip("transformers", reason="transformers is not installed: pip install -e '.[test]'")

from evt.fx.fuse import Fusion, fuse, fusion
from tests.support.depth import in_depth

from .fusing import compare, formulas
from .transformers_models import NAMES, Logits, language_model

pytestmark = pytest.mark.filterwarnings("default")
BIAS, RESIDUAL = "D = acc + x0", "D = acc + x0 + x1"
RMS = "v1 = x0 + acc; D = v1; D1 = rsqrt(mean[n](v1**2) + 1e-06)"
GELU = "v1 = acc + x0; D = v1*0.5*(tanh((v1 + v1**3*0.044715)*0.7978845608028654) + 1)"
GATE = "D = silu(acc)*x0"


def fused(name: str, dtype: torch.dtype = torch.float32) -> Fusion:
    torch.manual_seed(0)
    model, inputs = language_model(name, dtype)
    made: Any = fuse(Logits(model).eval(), inputs)
    with torch.no_grad():
        compare(Logits(model)(**inputs), made(**inputs), dtype)
    return fusion(made)


EXPECTED: dict[str, tuple[int, dict[str, int]]] = {
    "bert": (12, {BIAS: 6, RESIDUAL: 4, "D = gelu(acc + x0)": 2}),
    "gpt2": (9, {BIAS: 2, RESIDUAL: 2, "D = x1 + (acc + x0)": 2, GELU: 2}),
    "llama": (15, {RMS: 4, GATE: 2}),
    "t5": (33, {RMS: 10, "D = relu(acc)": 4}),
}


@pytest.mark.parametrize("name", in_depth(NAMES, quick=("bert", "llama")))
def test_products(name: str) -> None:
    products, expected = EXPECTED[name]
    found = fused(name)
    assert Counter(formulas(found)) == expected
    assert len(found.outcomes) == products


@pytest.mark.slow
@pytest.mark.parametrize("name", ["bert", "llama"])
def test_in_bf16(name: str) -> None:
    assert len(fused(name, torch.bfloat16).regions) == sum(EXPECTED[name][1].values())
