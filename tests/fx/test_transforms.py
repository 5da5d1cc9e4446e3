"""Transforms of torch.func inside a compiled function: tensors without memory, and zeros that PyTorch never stores."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.func import grad, hessian, jvp, linearize, vmap
from torch.nn.functional import scaled_dot_product_attention, softplus

from evt.fx.fuse import fuse
from evt.fx.records import RECORDS

from . import training

pytestmark = [
    pytest.mark.filterwarnings("ignore"),  # PyTorch's warning about a future removal
    pytest.mark.usefixtures("fresh_compiler"),
]
Function = Callable[[Tensor], Tensor]

TRANSFORMS: dict[str, Callable[[Function], Callable[[Tensor], object]]] = {
    "vmap": vmap,
    "grad": lambda f: vmap(grad(lambda x: f(x).sum())),
    "hessian": lambda f: vmap(hessian(lambda x: f(x).sum())),
    "jvp": lambda f: lambda x: jvp(f, (x,), (x.cos(),)),
    "written": lambda f: vmap(lambda x: f(x.clone().mul_(2).relu_())),
}


@pytest.mark.parametrize(
    "name", [pytest.param(each, marks=pytest.mark.slow if each in ("grad", "jvp") else ()) for each in TRANSFORMS]
)
def test_products_inside_transforms(name: str) -> None:
    first = torch.randn(6, 4, dtype=torch.float64, requires_grad=True)
    second = torch.randn(1, 6, dtype=torch.float64, requires_grad=True)

    def run(x: Tensor) -> object:
        return TRANSFORMS[name](lambda v: softplus(v @ first.T) @ second.T)(x)

    x = torch.randn(3, 4, dtype=torch.float64)
    results = []
    for call in (run, training.fused(run)):
        first.grad = second.grad = None
        with torch.enable_grad():
            result = call(x)
            leaves = result if isinstance(result, tuple) else (result,)
            sum(each.square().sum() for each in leaves).backward()
        results.append([*leaves, first.grad, second.grad])
    torch.testing.assert_close(*results)
    assert any(row.fused for record in RECORDS for row in record.rows)


def test_a_mask_that_a_transform_writes_is_no_constant() -> None:
    def run(x: Tensor) -> Tensor:
        mask = torch.ones(4, 4, dtype=torch.bool).tril()
        vmap(lambda row: row.fill_(True))(mask)
        return scaled_dot_product_attention(x, x, x, mask).transpose(1, 2).flatten(2)

    x = torch.randn(1, 2, 4, 8)
    torch.testing.assert_close(training.fused(run)(x), run(x))


def test_a_fused_model_is_linearized_as_the_model() -> None:
    """PyTorch traces the model with forward derivatives, and programs have none."""
    model = torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.GELU()).double().eval()
    x = torch.randn(3, 4, dtype=torch.float64)
    (first, derivative), (wanted, exact) = (linearize(each, x) for each in (fuse(model, (x,)), model))
    torch.testing.assert_close((first, derivative(x.cos())), (wanted, exact(x.cos())))
