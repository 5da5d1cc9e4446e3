"""``rule="lossless"``: the captured graph drops masks that attention can do without."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn import functional

import evt
from evt.fx.aten import Arguments, shape_of
from evt.fx.capture import capture
from evt.fx.fuse import fuse
from evt.fx.lossless import Comparison, Proof
from evt.fx.masks import drop_masks


class Attention(torch.nn.Module):
    """Attention with heads that queries share. As in transformers, a mask exists only while PyTorch captures it."""

    def __init__(self, causal: bool) -> None:
        super().__init__()
        self.causal, self.queries, self.heads = causal, torch.nn.Linear(64, 64), torch.nn.Linear(64, 32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, rows, _ = x.shape
        queries, heads = (
            (layer(x) * 0.5).unflatten(-1, (-1, 16)).transpose(1, 2) for layer in (self.queries, self.heads)
        )
        attention = functional.scaled_dot_product_attention
        if not torch.compiler.is_exporting():
            return attention(queries, heads, heads, is_causal=self.causal, enable_gqa=True)
        mask = torch.arange(rows)[:, None] >= (torch.arange(rows) if self.causal else 0)
        repeated = heads[:, :, None].expand(batch, 2, 2, rows, 16).reshape(batch, 4, rows, 16)
        return attention(queries, repeated, repeated, attn_mask=mask.expand(batch, 1, rows, rows))


@pytest.mark.parametrize("causal", [True, False])
def test_a_capture_with_masks_takes_the_attention_of_the_model(causal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU, kernels with a mask have other bits."""
    attention = torch.ops.aten.scaled_dot_product_attention.default
    seen: list[Any] = []

    def judge_capture(self: Comparison, _: Any) -> None:
        (node,) = self.whole.graph.find_nodes(op="call_function", target=attention)
        seen.append(Arguments(node))
        self.of_capture = Proof(1, int(seen[-1]["attn_mask"] is not None))

    monkeypatch.setattr(Comparison, "judge_capture", judge_capture)
    module, x = Attention(causal).half().eval(), torch.randint(-2, 3, (2, 37, 64)).half()
    made = fuse(module, (x,), rule="lossless")
    with torch.no_grad():
        assert torch.equal(made(x), module(x))
    assert all(row.fused for row in evt.report(made).rows)
    before, after = seen[:2]
    assert shape_of(before["key"])[1] == 4
    assert [shape_of(after[name])[1] for name in ("query", "key", "value")] == [4, 2, 2]
    assert (after["is_causal"], after["enable_gqa"]) == (causal, True)


def test_masks_that_attention_needs_stay() -> None:
    """A mask of an input, and one that is neither causal nor full."""

    class Masked(torch.nn.Module):
        def forward(self, x: torch.Tensor, given: torch.Tensor) -> torch.Tensor:
            band = torch.ones(8, 8, dtype=torch.bool).triu(-2)
            attention = functional.scaled_dot_product_attention
            return attention(x, x, x, attn_mask=band) + attention(x, x, x, attn_mask=given)

    inputs = torch.ones(1, 2, 8, 16), torch.ones(8, 8, dtype=torch.bool)
    assert not drop_masks(capture(Masked().eval(), inputs, eager=True).module)
