"""The gradients of random programs, in f64, against autograd through PyTorch's own functions."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import evt
from evt.gradient import differentiable_outputs
from evt.ir.dtype import PACKED_OPERANDS
from evt.reference.int4 import shaped
from evt.runtime.arguments import outline
from tests.programs.call import arguments, problems
from tests.programs.checks import make
from tests.programs.generator import generate
from tests.support.depth import in_depth
from tests.support.gradients import plainly, widened

pytestmark = pytest.mark.filterwarnings("ignore::evt.errors.NoKernelWarning")


def leaf(value: Any, generator: Any) -> Any:
    """Return random numbers in the place of floating-point ones, and other values unchanged."""
    if not isinstance(value, torch.Tensor) or not value.is_floating_point():
        return value
    made = torch.rand(value.shape, generator=generator, dtype=torch.float64) * 3 - 1.5
    return made.requires_grad_()


def halved(value: Any) -> Any:
    """Return other numbers in the place of the ones with gradients."""
    if not isinstance(value, torch.Tensor) or not value.requires_grad:
        return value
    return (value.detach() / 2).requires_grad_()


def gradients_of(results: dict[str, Any], weights: dict[str, Any], leaves: list[Any]) -> list[Any]:
    total = sum((results[name] * weights[name]).sum() for name in weights)
    return list(torch.autograd.grad(total, leaves, allow_unused=True, materialize_grads=True))


def named(op: evt.Program, results: Any) -> dict[str, Any]:
    return dict(zip(op.outputs, (results,) if len(op.outputs) == 1 else results, strict=True))


def check(seed: int) -> bool:
    """Compare the gradients of a program; return whether it has any."""
    program = generate(seed)
    try:
        narrow = make(program)
    except evt.EvtError:
        return False
    if not isinstance(narrow, evt.Program) or any(each.is_indexed for each in narrow.request.dag.outputs):
        return False
    a, b, inputs = arguments(program, problems(program)[0])
    try:
        dag = outline(narrow.request, a, b, inputs).dag
    except evt.EvtError:
        return False
    if dag.operands[1].dtype in PACKED_OPERANDS:
        b = shaped(b)  # as wide elements have it
    generator = torch.Generator().manual_seed(seed)
    try:
        op = widened(narrow.request, dag)
    except evt.ProgramError:  # places are not chosen among f64 values
        return False
    a, b = (torch.rand(x.shape, generator=generator, dtype=torch.float64).sub(0.5).requires_grad_() for x in (a, b))
    inputs = {name: leaf(value, generator) for name, value in inputs.items() if name in dag.input}
    for name, value in inputs.items():
        if op.request.dag.input[name].dtype.is_float and not isinstance(value, torch.Tensor):
            inputs[name] = float(value)
    leaves = [a, b, *(each for each in inputs.values() if isinstance(each, torch.Tensor) and each.requires_grad)]
    want = plainly(op, a, b, inputs)
    outputs = [name for name in differentiable_outputs(op.request.dag) if want[name].requires_grad]
    weights = {name: torch.rand(want[name].shape, generator=generator, dtype=torch.float64) for name in outputs}
    if not outputs:
        return False
    try:
        found = op(a, b, **inputs)
    except evt.ArgumentError as error:
        if error.diagnostics[0].code == "E0614":  # values that two indices, or one with batches, gather
            return False
        raise
    for _ in range(2 if seed % 3 == 0 else 0):  # then the backward pass that is compared repeats one of other values
        others = op(halved(a), halved(b), **{name: halved(value) for name, value in inputs.items()})
        total = sum((value * weights[name]).sum() for name, value in named(op, others).items() if name in weights)
        total.backward()
    got = named(op, found)
    if not all(torch.allclose(got[name], want[name], equal_nan=True) for name in outputs):
        return False  # functions of integers are in f32, where they may underflow before they are compared
    for one, two in zip(gradients_of(got, weights, leaves), gradients_of(want, weights, leaves), strict=True):
        known = torch.isfinite(two)
        torch.testing.assert_close(
            one[known], two[known], rtol=1e-5, atol=1e-5, msg=lambda text: f"{seed}\n{op}\n{text}"
        )
    return True


@pytest.mark.parametrize("first", in_depth(range(0, 450, 75), quick=[0]))
def test_random_programs(first: int) -> None:
    """More than a quarter of them have gradients."""
    assert sum(map(check, range(first, first + 75))) >= 20
