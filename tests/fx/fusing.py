"""Helpers for tests of fused models: a function as a module, and the comparison with eager."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from evt.fx.cost_model import Benefit, estimate
from evt.fx.fuse import Fusion, fuse, fusion
from evt.fx.module import dispatch_of
from evt.fx.regions import find_regions

#: By the number of dimensions, how tensors of images and of videos lie.
_FORMATS = {4: torch.channels_last, 5: torch.channels_last_3d}
#: Relative to the largest result: the effect of rounding once instead of after every operator.
TOLERANCES = {torch.float64: 1e-10, torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 6e-2}


class Function(torch.nn.Module):
    """A function as a module."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *inputs: torch.Tensor) -> Any:
        return self.function(*inputs)


def fused(function: Callable[..., Any], *inputs: torch.Tensor, **keywords: Any) -> Fusion:
    """Return the outcomes of a function's products, after comparing its results with eager's."""
    module = function if isinstance(function, torch.nn.Module) else Function(function)
    made = fuse(module, inputs, **keywords).eval()
    with torch.no_grad():
        compare(module(*inputs), made(*inputs), *(each.dtype for each in inputs))
    check_answers(made)
    return fusion(made)


def check_answers(made: torch.nn.Module) -> None:
    """Assert that the fused graph answered the calls of a fused module, or would if there was anything in it."""
    dispatch = dispatch_of(made)
    assert dispatch is not None
    assert dispatch.answers.keys() <= {"fused", "nothing of it is fused"}


def compare(expected: Any, got: Any, *dtypes: torch.dtype) -> None:
    """Assert that results have eager's types, shapes and, up to the coarsest type on the way, values."""
    if isinstance(expected, torch.Tensor):
        expected, got = (expected,), (got,)
    assert len(expected) == len(got)
    for wanted, found in zip(expected, got, strict=True):
        assert (wanted.shape, wanted.dtype) == (found.shape, found.dtype)
        if not wanted.dtype.is_floating_point:
            assert torch.equal(wanted, found)
            continue
        tolerance = max(TOLERANCES.get(each, 0.0) for each in (wanted.dtype, *dtypes))
        finite = torch.isfinite(wanted)
        assert torch.equal(wanted[~finite].float(), found[~finite].float()) or torch.isnan(wanted).any()
        largest = float(wanted[finite].abs().max()) if finite.any() else 0.0
        assert float((wanted[finite].double() - found[finite].double()).abs().max() if finite.any() else 0) <= (
            tolerance * max(largest, 1.0)
        )


def formulas(found: Fusion) -> list[str]:
    """Return the last statements of the regions' programs, each in one line without declarations."""
    texts = (str(region.program).splitlines() for region in found.regions)
    return ["; ".join(line for line in lines if not line.startswith(("in ", "out "))) for lines in texts]


def estimated(
    function: Callable[..., Any],
    shapes: Iterable[tuple[int, ...]],
    dtype: torch.dtype,
    target: str = "sm90",
    replayed: bool = False,
) -> Benefit:
    """Return the default rule's estimate for a function's only product; its tensors have no memory."""
    with FakeTensorMode():
        given = [torch.empty(shape, dtype=dtype) for shape in shapes]
        given = [each.contiguous(memory_format=_FORMATS.get(each.ndim, torch.contiguous_format)) for each in given]
        graph = make_fx(function)(*given).graph
    (outcome,) = find_regions(graph, ("cpu",)).outcomes
    assert outcome.fused is not None
    return estimate(outcome.fused, target, replayed)
