"""Decoding loops with a cache: no graph, plan or kernel is made again as the length grows."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend
from torch.nn import functional

from evt.fx.fuse import fuse
from evt.fx.module import dispatch_of
from evt.request import Request
from evt.runtime.operator import write_program

MOST, HEADS, WIDTH = 32, 2, 32


class Layer(torch.nn.Module):
    """A layer of a decoder with a static cache: ``position`` is a tensor, and a mask hides the places behind it."""

    keys: torch.Tensor
    values: torch.Tensor

    def __init__(self, batch: int) -> None:
        super().__init__()
        self.qkv, self.out = torch.nn.Linear(WIDTH, 3 * WIDTH), torch.nn.Linear(WIDTH, WIDTH)
        self.up, self.down = torch.nn.Linear(WIDTH, 64), torch.nn.Linear(64, WIDTH)
        for name in ("keys", "values"):
            self.register_buffer(name, torch.zeros(batch, HEADS, MOST, WIDTH // HEADS))

    def forward(self, x: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
        q, k, v = (each.unflatten(-1, (HEADS, -1)).transpose(1, 2) for each in self.qkv(x).chunk(3, -1))
        self.keys.index_copy_(2, position, k)
        self.values.index_copy_(2, position, v)
        seen = torch.arange(MOST, device=x.device) <= position[-1]
        scores = (q @ self.keys.transpose(-1, -2) * 0.25).masked_fill(~seen, -torch.inf)
        y = (scores.softmax(-1) @ self.values).transpose(1, 2).flatten(2)
        x = x + self.out(y)
        return x + self.down(functional.silu(self.up(x)))

    def clear(self) -> None:
        self.keys.zero_()
        self.values.zero_()


def decoded(run: Any, layer: Layer, prompt: torch.Tensor, steps: int) -> torch.Tensor:
    """Return the results of a prompt of several tokens, and of tokens that follow one by one."""
    layer.clear()
    found = [run(prompt, torch.arange(prompt.shape[1]))]
    for place in range(prompt.shape[1], prompt.shape[1] + steps):
        found.append(run(found[-1][:, -1:].contiguous(), torch.tensor([place])))
    return torch.cat(found, 1)


@pytest.mark.parametrize("rule", [None, "lossless"])
def test_a_fused_layer_has_one_plan_for_each_kind_of_step(rule: str | None) -> None:
    torch.manual_seed(0)
    layer, prompt = Layer(2).eval(), torch.randn(2, 4, WIDTH)
    with torch.no_grad():
        want = decoded(layer, layer, prompt, 20)
        made = fuse(layer, (prompt, torch.arange(4)), rule=rule)
        got = decoded(made, layer, prompt, 20)
        if rule == "lossless":
            assert torch.equal(got, want)
        else:
            torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)
        dispatch = dispatch_of(made)
        assert dispatch is not None
        assert len(dispatch.plans) == 2  # the prompt, and a token
        assert sum(dispatch.answers.values()) == 21
        assert rule == "lossless" or dispatch.answers == {"fused": 21}
        planned = dict(dispatch.plans)
        decoded(made, layer, prompt, 8)
        assert dispatch.plans == planned


@pytest.mark.slow
def test_a_compiled_layer_has_one_graph_for_each_kind_of_step(monkeypatch: pytest.MonkeyPatch) -> None:
    torch._dynamo.reset()
    torch.manual_seed(0)
    layer, prompt = Layer(2).eval(), torch.randn(2, 4, WIDTH)
    counter = CompileCounterWithBackend("evt")
    compiled = torch.compile(layer, backend=counter, dynamic=False)
    made: list[str] = []

    def counted(request: Request) -> str:
        made.append(write_program(request))
        return made[-1]

    monkeypatch.setattr("evt.fx.kernels.write_program", counted)
    with torch.no_grad():
        want = decoded(layer, layer, prompt, 20)
        got = decoded(compiled, layer, prompt, 20)
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)
    assert counter.frame_count == 2  # the prompt, and a token
    before = len(made)
    with torch.no_grad():
        decoded(compiled, layer, prompt, 25)
    assert (counter.frame_count, len(made)) == (2, before)


def test_a_growing_cache_has_one_dynamic_graph() -> None:
    """A cache that grows by torch.cat: the first step is static, and the second step's graph serves all others."""
    torch._dynamo.reset()

    def step(x: torch.Tensor, keys: torch.Tensor, weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        keys = torch.cat([keys, torch.relu(x @ weight)], 0)
        return (x @ keys.t()).softmax(-1) @ keys + x, keys

    counter = CompileCounterWithBackend("evt")
    compiled = torch.compile(step, backend=counter)
    x, weight = torch.randn(1, 16), torch.randn(16, 16)
    keys = mine = torch.randn(4, 16)
    for _ in range(12):
        y, keys = compiled(x, keys, weight)
        want, mine = step(x, mine, weight)
        torch.testing.assert_close(y, want)
    assert counter.frame_count == 2
