"""Contiguous outputs of convolutions of one channel."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import evt
from evt.plan import Plan, find_target
from evt.runtime.arguments import bind
from evt.runtime.bound import Bound
from evt.runtime.fresh import fresh_output
from evt.runtime.kernels import plan_kernels
from evt.runtime.planar import with_planes

BIAS = "D = relu(acc + bias)"
SM90 = find_target("sm90")


def bound_of(
    text: str = BIAS, *, channels: int = 1, filters: int = 24, out: torch.Tensor | None = None, **keywords: Any
) -> tuple[evt.Program, Bound, Bound]:
    """Return a program, a call, and the call whose kernel stores planes if one does."""
    op = evt.conv2d(text, padding=1, **keywords)
    x, w = torch.empty(3, channels, 13, 17).half(), torch.empty(filters, channels, 3, 3).half()
    inputs = {
        value.name: x.new_empty(3, filters, 13, 17) if value.is_tile else x.new_empty(filters)
        for value in op.request.dag.inputs
    }
    bound = bind(op.request, x, w, inputs, {} if out is None else {"D": out})
    return op, bound, with_planes(op.request, bound, SM90, False, fresh=out is None)


def plans_of(op: evt.Program, bound: Bound) -> tuple[Plan, ...]:
    return plan_kernels(op.request, bound, SM90)


@pytest.mark.parametrize("given", [False, True])
def test_a_kernel_stores_contiguous_outputs(given: bool) -> None:
    op, bound, planes = bound_of(out=torch.empty(3, 24, 13, 17).half() if given else None)
    assert planes.planar
    assert (bound.copied, planes.copied) == (("D",) if given else (), ())
    assert planes.tensors["D"].strides == {"m": 1, "n": 13 * 17, "l": 0}
    assert fresh_output(planes, planes.dag.primary).is_contiguous()
    assert all(plan.mainloop.planar for plan in plans_of(op, planes))
    assert not any(plan.mainloop.planar for plan in plans_of(op, bound))


@pytest.mark.parametrize(
    "keywords",
    [
        pytest.param({"out": torch.empty(3, 13, 17, 24).half().permute(0, 3, 1, 2)}, id="channels-last"),
        pytest.param({"channels": 2, "out": torch.empty(3, 24, 13, 17).half()}, id="two-channels"),
        pytest.param({"filters": 1}, id="one-filter"),
        pytest.param({"text": "D = acc + C"}, id="matrix"),
        pytest.param({"text": "out D, s: f32[m]; D = acc; s = sum[n](acc)"}, id="row-sums"),
        pytest.param({"text": "D = where(iota(m) > 3, acc, 0)"}, id="row-numbers"),
        pytest.param({"route": "conv-halo-words-3x"}, id="another-route"),
        pytest.param({"out": torch.empty(3, 24, 13, 34).half()[..., ::2]}, id="gaps"),
    ],
)
def test_other_calls_keep_their_layout(keywords: dict[str, Any]) -> None:
    _, bound, planes = bound_of(**keywords)
    assert planes is bound


def test_volumes_have_planes() -> None:
    op = evt.conv3d("D = acc", padding=1)
    bound = bind(op.request, torch.empty(2, 1, 5, 13, 17).half(), torch.empty(24, 1, 3, 3, 3).half(), {}, {})
    planes = with_planes(op.request, bound, SM90, False, fresh=True)
    assert planes.tensors["D"].strides["n"] == 5 * 13 * 17
    assert all(plan.mainloop.planar for plan in plans_of(op, planes))


def test_other_targets_copy() -> None:
    op, bound, _ = bound_of()
    assert with_planes(op.request, bound, find_target("sm80"), False, fresh=True) is bound
