"""Gradients of selections on a GPU: kernels that compare a tensor with its own elements read the same elements."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import gelu

from tests.fx.selections import BODIES, LEFT, SELECTIONS, gradients, operands

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("ignore")]

Tensor = torch.Tensor
VALUES = {**{f"region of {name}": body for name, body in BODIES.items()}, **LEFT}
CASES = [
    pytest.param(value, select, marks=() if number == 4 * place % len(SELECTIONS) else pytest.mark.slow)
    for place, value in enumerate(VALUES)
    for number, select in enumerate(SELECTIONS)
]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize(("value", "select"), CASES)
def test_gradients_find_the_elements(value: str, select: str, dtype: torch.dtype) -> None:
    """By the default rule, by which Inductor computes small tensors."""

    def run(x: Tensor, w: Tensor, v: Tensor) -> Tensor:
        return SELECTIONS[select](VALUES[value](x, w, v))

    torch._dynamo.reset()
    with torch.enable_grad():
        given = operands(dtype, "cuda", 96)
        try:
            wanted = gradients(run, given)
        except RuntimeError as error:
            if "derivative for aten::aminmax is not implemented" not in str(error):
                raise
            pytest.skip("this PyTorch has no derivative of aminmax")
        for got, want in zip(gradients(torch.compile(run, backend="evt"), given), wanted, strict=True):
            assert torch.isfinite(got).all()
            # Eager's derivative of a tanh that rounds to 1 is 0; a kernel computes it from the value in f32.
            assert got.any() or not want.any()


def test_readers_read_rounded_elements() -> None:
    """A kernel that stores 16 bits computes f32: without the rounding the maximum is none of the stored elements."""

    def run(x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
        y = gelu(x @ w)
        most = y.float().amax(-1, keepdim=True)
        return y, most, y.float() == most

    with torch.no_grad():
        y, most, equal = torch.compile(run, backend="evt")(*operands(torch.bfloat16, "cuda", 96)[:2])
    assert torch.equal(most, y.float().amax(-1, keepdim=True))
    assert equal.any(-1).all()
