"""Values that are computed twice to move fewer bytes: in a region's kernel, and in readers of its results."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn.functional import pad

from evt.fx.records import RECORDS, ProductReport

from . import training

pytestmark = [
    pytest.mark.filterwarnings("ignore"),  # PyTorch's warning about a future removal
    pytest.mark.usefixtures("fresh_compiler"),
]
A, B, C = (torch.linspace(-1, 1, 64 * 64).reshape(64, 64).half() for _ in range(3))


def row_of(function: Callable[..., Any], *given: torch.Tensor) -> ProductReport:
    """Return the outcome of the last product, after comparing the results with eager's."""
    for got, want in zip(training.fused(function)(*given), function(*given), strict=True):
        torch.testing.assert_close(got, want, rtol=1e-2, atol=1e-2)
    return RECORDS[-1].rows[-1]


def statistics(x: torch.Tensor) -> torch.Tensor:
    return x.float() * torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + 1e-6)


def test_readers_cast_again() -> None:
    """A norm reads the residual in f32 for its statistics, and for each element; it is stored in f16."""
    row = row_of(lambda a, b, c: (y := a @ b + c, statistics(y)), A, B, C)
    assert "out D: f16[m, n], D1: f32[m]\n" in row.formula


def test_readers_compute_again_what_is_wider() -> None:
    """A factor of each column is no reason to store f32; the product is."""
    row = row_of(lambda a, b, c: (torch.cumsum((a @ b + c).float() * c[0].float() * 2, -1),), A, B, C)
    assert row.formula.endswith("out D: f16[m, n]\nD = acc + x0")


def test_results_of_the_graph_are_stored_as_they_are() -> None:
    """A norm that reads one too finds it in f32."""
    row = row_of(lambda a, b, c: ((y := (a @ b + c).float()) * 2, torch.cumsum(y, -1), y), A, B, C)
    assert "out D: f32[m, n], D1: f32[m, n]\n" in row.formula


def test_wide_operands_of_narrow_ones() -> None:
    """A value that others read in f32 is computed in the kernel from f16 values and vectors."""

    def run(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> tuple[torch.Tensor, ...]:
        normed = (c.float() - c.float().mean(-1, keepdim=True)) * 0.5
        return (a @ b).float() * normed, torch.cumsum(normed, -1)

    row = row_of(run, A, B, C)
    assert "in x0: f16[m, n], x1: f32[m]" in row.formula


def test_narrow_operands_of_wide_ones() -> None:
    """A value that others store in f16 is not recomputed from f32."""

    def run(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> tuple[torch.Tensor, ...]:
        half = (c * 0.5).half()
        return a @ b * half, half @ b

    RECORDS.clear()
    row_of(run, A, B, C.float())
    rows = [row for record in RECORDS for row in record.rows if row.fused]
    assert any("in x0: f16[m, n]" in row.formula for row in rows)


@pytest.mark.parametrize("long", [False, True])
@pytest.mark.parametrize("is_read_again", [False, True])
@pytest.mark.parametrize("function", ["erf", "tanh"])
def test_an_error_function_before_a_reduction(function: str, is_read_again: bool, long: bool) -> None:
    """A kernel that reads long rows again after their reduction would evaluate it twice, so the region does."""
    columns = 1536 if long else 1024
    a, b = torch.randn(8, 64).half(), (torch.randn(64, columns) / 8).half()

    def run(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = getattr(torch, function)((a @ b).float())
        reduced = y.prod(-1, keepdim=True)  # evt has no function for it
        return (torch.cumsum(y + reduced if is_read_again else reduced, -1),)

    formula = row_of(run, a, b).formula
    assert ("out D: f32[m, n]" in formula) == (function == "erf" and is_read_again and long)


def test_filter_gradients_read_what_a_region_stores() -> None:
    """The product of the filters' gradient is a part of its operator's results, and its operand stayed the old one."""

    def run(x: torch.Tensor, w: torch.Tensor, scale: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = torch.relu(torch.nn.functional.conv2d(x, w))
        given = (torch.zeros_like(w), None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1)
        gradient = torch.ops.aten.convolution_backward(y * scale, x, *given, [False, True, False])[1]
        return y, torch.relu(gradient)

    assert row_of(run, A.view(1, 64, 8, 8), B[..., None, None], C[:, :1, None]).fused


#: Zeros around an image: on one side, in two steps, and in front of two convolutions.
PADDED: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "sides": lambda y: pad(y, (1, 1, 1, 1)),
    "side": lambda y: pad(y, (1, 0, 2, 0)),
    "steps": lambda y: pad(pad(y, (1, 1)), (0, 0, 2, 2)),
    "part": lambda y: pad(y, (1, 1))[:, :, 1:],
    "ones": lambda y: pad(y, (1, 1), value=1.0),
}


@pytest.mark.parametrize("name", PADDED)
@pytest.mark.parametrize("others", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_convolutions_read_in_front_of_zeros(name: str, others: bool) -> None:
    """Autograd stores the first convolution, so readers could compute the batch norm and ReLU again."""
    torch.manual_seed(0)
    first, norm = torch.nn.Conv2d(4, 4, 3, padding=1), torch.nn.BatchNorm2d(4).eval()
    second = torch.nn.Conv2d(4, 5, 3)

    def run(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        padded = PADDED[name](y := torch.relu(norm(first(x))))
        return torch.relu(second(padded)), *([padded.cumsum(1), y.mean()] if others else [])

    with torch.enable_grad():
        row_of(run, torch.randn(2, 4, 5, 5))
