"""A program that was built is called without compiling."""

from __future__ import annotations

import pytest
import torch

import evt

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("text", ["D = gelu(alpha*acc + bias) + C", "out D, s: f32[m]; D = acc*bias; s = sum[n](acc)"])
def test_a_built_program_is_called_without_compiling(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    op = evt.gemm(text)
    a, b, bias = (torch.randn(shape, device="cuda").half() for shape in ((256, 64), (64, 384), (384,)))
    inputs = {"bias": bias} | ({"alpha": 0.5, "C": torch.randn(256, 384, device="cuda").half()} if "C" in text else {})
    assert op.build(shapes=(tuple(a.shape), tuple(b.shape))) > 0
    monkeypatch.setenv("EVT_COMPILE", "never")
    op(a, b, **inputs)
