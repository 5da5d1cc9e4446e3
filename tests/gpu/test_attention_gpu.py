"""Attention whose arguments ``backend="evt"`` changes gives PyTorch's values and gradients on a GPU."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention as attention

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("ignore")]

BATCH, ROWS, HEADS, LENGTH = 2, 160, 8, 64
WIDTH = HEADS * LENGTH
#: By how much an error may exceed that of eager PyTorch in the same type: both are of a few roundings.
SLACK = 1.5


class Attention(torch.nn.Module):
    """Attention between two products, with heads that are made in a given way."""

    def __init__(self, heads: Callable[[torch.Tensor], tuple[torch.Tensor, ...]], groups: int = HEADS) -> None:
        super().__init__()
        self.heads, self.groups = heads, groups
        self.input = torch.nn.Linear(WIDTH, (HEADS + 2 * groups) * LENGTH)
        self.output = torch.nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        split = self.input(x).unflatten(-1, (-1, LENGTH)).transpose(1, 2).split((HEADS, self.groups, self.groups), 1)
        query, key, value, *mask = self.heads(*split)
        return self.output(attention(query, key, value, *mask).transpose(1, 2).reshape(BATCH, ROWS, WIDTH))


class Whole(torch.nn.Module):
    """``nn.MultiheadAttention``."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = torch.nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.attention(x, x, x, need_weights=False)[0]
        return found


def copied(*heads: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return tuple(each.contiguous() for each in heads)


def repeated(query: torch.Tensor, *heads: torch.Tensor) -> tuple[torch.Tensor, ...]:
    times = HEADS // heads[0].shape[1]
    return query, *(
        each[:, :, None, :, :].expand(-1, -1, times, -1, -1).reshape(BATCH, HEADS, ROWS, LENGTH) for each in heads
    )


def causal(*heads: torch.Tensor) -> tuple[torch.Tensor, ...]:
    places = torch.arange(ROWS, device=heads[0].device)
    return *copied(*heads), places[None, :] <= places[:, None]


def everything(*heads: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return *copied(*heads), torch.ones((ROWS, ROWS), device=heads[0].device, dtype=torch.bool)


def repeated_causal(*heads: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return *repeated(*heads), *causal(*heads)[3:]


MODULES: dict[str, Callable[[], torch.nn.Module]] = {
    "whole": Whole,
    "copied": lambda: Attention(copied),
    "repeated": lambda: Attention(repeated, 2),
    "causal": lambda: Attention(causal),
    "everything": lambda: Attention(everything),
    "repeated and causal": lambda: Attention(repeated_causal, 2),
}


def values(
    module: torch.nn.Module, call: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor, trains: bool
) -> list[torch.Tensor]:
    """Return the result, and the gradients of a step."""
    with torch.set_grad_enabled(trains):
        x = x.detach().requires_grad_(trains)
        found = call(x)
        if not trains:
            return [found.double()]
        module.zero_grad()
        (found * torch.linspace(-1, 1, WIDTH, device="cuda", dtype=found.dtype)).sum().backward()
        grads = [x.grad, *(each.grad for each in module.parameters())]
        return [found.detach().double(), *(each.double() for each in grads if each is not None)]


@pytest.mark.parametrize("trains", [False, True])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", MODULES)
def test_values_and_gradients_are_pytorchs(name: str, dtype: torch.dtype, trains: bool) -> None:
    torch.manual_seed(0)
    torch._dynamo.reset()
    exact = MODULES[name]().cuda().double()
    module = copy.deepcopy(exact).to(dtype)
    x = torch.randn(BATCH, ROWS, WIDTH, device="cuda", dtype=torch.float64)
    want = values(exact, exact, x, trains)
    eager = values(module, module, x.to(dtype), trains)
    got = values(module, torch.compile(module, backend="evt"), x.to(dtype), trains)
    assert len(got) == len(want) == len(eager)
    for mine, theirs, right in zip(got, eager, want, strict=True):
        least = torch.finfo(dtype).eps * right.abs().max()
        assert (mine - right).norm() <= SLACK * (theirs - right).norm() + least
        assert (mine - right).abs().max() <= SLACK * (theirs - right).abs().max() + least
