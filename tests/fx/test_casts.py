"""Fused models under autocast have eager's types and values: composite operators, autocast inside, and without it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import evt
from evt.fx.fuse import fuse

from .fusing import Function, check_answers

W = torch.randn(8, 8, generator=torch.Generator().manual_seed(0))
#: Operators that autocast does not list, and whose products it casts.
COMPOSITE: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "einsum": lambda x: torch.einsum("btk,nk->btn", x, W),
    "tensordot": lambda x: torch.tensordot(x, W, ([-1], [0])),
    "inner": lambda x: torch.inner(x, W),
    "multi_dot": lambda x: torch.linalg.multi_dot((x[0], W, W)),
    "vecdot": lambda x: torch.linalg.vecdot(x @ W, x),
    "linear": lambda x: torch.nn.functional.linear(x, W),
    "attention": lambda x: torch.nn.functional.scaled_dot_product_attention(x @ W, x, x),
}
#: Operators that autocast would cast in the fused graph again.
LISTED: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "softmax": lambda x: (x.bfloat16() @ W.bfloat16()).softmax(-1),
    "mse_loss": lambda x: torch.nn.functional.mse_loss(x, x + 1, reduction="none"),
    "mm": lambda x: (x.float() @ W).sort(-1)[0],
    "matrix_power": lambda x: torch.linalg.matrix_power(x.float() @ x.float().mT, 3),
}


@pytest.mark.parametrize("name", COMPOSITE)
@pytest.mark.parametrize("ambient", [False, True])
def test_autocast(name: str, ambient: bool) -> None:
    def model(x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return torch.relu(COMPOSITE[name](x))

    _check((lambda x: torch.relu(COMPOSITE[name](x))) if ambient else model, ambient)


@pytest.mark.parametrize("name", LISTED)
def test_disabled_inside(name: str) -> None:
    def model(x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(x @ W)
        with torch.autocast("cpu", enabled=False):
            return LISTED[name](x)

    _check(model, True)


def test_a_write_to_shared_elements_is_not_captured() -> None:
    def model(x: torch.Tensor) -> torch.Tensor:
        y = x @ W
        y[None].expand(2, *y.shape)[..., :1].zero_()
        return y

    with pytest.raises(evt.ArgumentError, match=r"E1020.*writes to elements that share memory"):
        fuse(Function(model).eval(), (torch.ones(4, 8),))


def _check(model: Callable[[torch.Tensor], torch.Tensor], ambient: bool) -> None:
    x = torch.randn(2, 4, 8, generator=torch.Generator().manual_seed(1))
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, enabled=ambient):
        made = fuse(Function(model).eval(), (x,), numerics="eager")
        torch.testing.assert_close(made(x), model(x), rtol=1e-5, atol=1e-5)
    check_answers(made)
