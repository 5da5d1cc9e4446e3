"""Training steps with batch norms by the default rule: gradients, running statistics and counters are eager's."""

from __future__ import annotations

import copy

import pytest
import torch

import evt
from tests.fx.vision import BasicBlock

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("ignore")]
#: 16 images have more elements than the smallest measured batch norm.
CHANNELS, SIDE = 64, 56


def step(call, x: torch.Tensor) -> None:
    with torch.autocast("cuda", torch.bfloat16):
        loss = 100 * call(x).float().square().mean()
    loss.backward()


def test_a_step_of_a_residual_network() -> None:
    torch._dynamo.reset()
    torch.manual_seed(0)
    model = torch.nn.Sequential(BasicBlock(CHANNELS, CHANNELS, 1), BasicBlock(CHANNELS, CHANNELS, 1))
    eager = model.cuda().to(memory_format=torch.channels_last).train()
    exact, mine = copy.deepcopy(eager).double(), copy.deepcopy(eager)
    x = torch.randn(16, CHANNELS, SIDE, SIDE, device="cuda").to(memory_format=torch.channels_last) + 3
    compiled = torch.compile(mine, backend="evt", dynamic=False)
    with torch.enable_grad():
        for _ in range(2):
            step(compiled, x)
            step(eager, x)
            (100 * exact(x.double()).square().mean()).backward()
    forward = [row.formula for row in evt.report(compiled).rows if row.graph == "forward"]
    assert sum("var[m]" in text for text in forward) == 4
    for name, want in exact.named_parameters():
        errors = [
            float((each.get_parameter(name).grad - want.grad).norm() / want.grad.norm()) for each in (mine, eager)
        ]
        assert errors[0] <= 1.2 * errors[1] + 2e-3, (name, errors)
    for name, want in exact.named_buffers():
        got, theirs = (each.get_buffer(name) for each in (mine, eager))
        if want.is_floating_point():
            errors = [float((each - want).norm() / want.norm()) for each in (got, theirs)]
            assert errors[0] <= 1.2 * errors[1] + 1e-5, (name, errors)
        else:
            assert got.equal(theirs)
