"""The default rule takes kernels that measurements cover, and leaves all others to the libraries (E1022)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product
from typing import Any

import pytest
import torch
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional

from evt.diagnostics import page
from evt.fx import choose
from evt.fx.backend import FusePass
from evt.fx.cost_model import LEAST_GAIN
from evt.fx.covered import COVERED
from evt.fx.regions import Outcome
from evt.plan import ROUTES, TARGETS

from .fusing import estimated

HALF = (torch.float16, torch.bfloat16)
#: A function, the shapes of its tensors, their type, and the target.
Case = tuple[Callable[..., Any], tuple[tuple[int, ...], ...], Any, str]


def outcomes(function: Callable[..., Any], *given: torch.Tensor) -> tuple[Outcome, ...]:
    """Return the default rule's outcomes for a function's products, on the CPU as if it were an sm90."""
    graph = make_fx(function)(*given).graph
    return FusePass(devices=("cpu",)).choose(graph).outcomes


def code_of(case: Case) -> str:
    """Return the code under which the estimate leaves a function's only product to the libraries, or ""."""
    benefit = estimated(*case)
    return "" if benefit.wins else benefit.code


def linear(dtype: Any, target: str = "sm90", rows: int = 4096, columns: int = 4096, k: int = 1024) -> Case:
    return lambda x, w: torch.relu(functional.linear(x, w)), ((rows, k), (columns, k)), dtype, target


def convolution(
    dtype: Any,
    target: str = "sm90",
    *,
    rank: int = 2,
    channels: int = 128,
    filters: int = 128,
    taps: int | tuple[int, int, int] = 3,
    groups: int = 1,
    transposed: bool = False,
    stride: int = 1,
) -> Case:
    """Return a convolution, large enough to be taken, and an activation."""
    call = getattr(functional, f"conv{'_transpose' if transposed else ''}{rank}d")
    size = taps if isinstance(taps, tuple) else (taps,) * rank
    options = {"padding": tuple(each // 2 for each in size), "groups": groups, "stride": stride}
    weights = (channels, filters // groups) if transposed else (filters, channels // groups)
    pixels = (4 * 56 * 56,) if rank == 1 else (56, 56, *(8,) * (rank - 2))
    shapes = ((8, channels, *pixels), (*weights, *size))
    return lambda x, w: torch.relu(call(x, w, **options)), shapes, dtype, target


def covered() -> Iterator[Case]:
    for dtype in HALF:
        yield linear(dtype)
        for channels, filters, taps in ((64, 64, 3), (128, 256, 1), (256, 128, 5), (1024, 256, 1)):
            yield convolution(dtype, channels=channels, filters=filters, taps=taps)
        for channels, filters in ((18, 18), (20, 64), (64, 60), (100, 100), (51, 51)):
            yield convolution(dtype, channels=channels, filters=filters)
        yield convolution(dtype, transposed=True)
        yield convolution(dtype, transposed=True, taps=2, stride=2)
        for taps, stride in ((3, 1), (3, 2), (2, 2), (5, 1)):
            yield convolution(dtype, rank=1, taps=taps, stride=stride)
        yield convolution(dtype, rank=1, transposed=True)
        for groups, taps in ((2, 3), (32, 3), (128, 3), (128, 31)):
            yield convolution(dtype, rank=1, groups=groups, taps=taps)
        for volume in ((3, 3, 3), (1, 3, 3), (2, 1, 3), (1, 1, 1)):
            yield convolution(dtype, rank=3, taps=volume)
        yield convolution(dtype, rank=3, stride=2)
        for channels, groups in product((128, 256), (2, 4, 8, 32)):
            yield convolution(dtype, channels=channels, filters=channels, groups=groups)
        for taps in (3, 7):
            yield convolution(dtype, channels=3, filters=64, taps=taps)
            yield convolution(dtype, groups=128, taps=taps)
        yield convolution(dtype, rank=3, channels=3, filters=64, taps=(3, 7, 7))
    yield convolution(torch.float32, groups=128)


def uncovered() -> Iterator[Case]:
    for name, dtype in product(TARGETS, HALF):
        if name != "sm90":
            yield linear(dtype, name)
            yield convolution(dtype, name)
    for dtype in (*HALF, torch.float32):
        yield linear(dtype, k=1022)
        yield linear(dtype, columns=4095)
        for channels, groups, taps in ((1, 1, 10), (20, 1, 3), (128, 1, 7), (128, 2, 7), (128, 128, 33)):
            yield convolution(dtype, rank=1, channels=channels, groups=groups, taps=taps)
        yield convolution(dtype, rank=3, taps=(3, 1, 1))
        small = (8, 512, 2, 7, 7), (512, 512, 3, 3, 3)
        yield lambda x, w: torch.relu(functional.conv3d(x, w, padding=1)), small, dtype, "sm90"
        yield convolution(dtype, groups=32, taps=7)
        yield convolution(dtype, groups=32, rank=3)
        for channels, filters, taps in ((3, 21, 3), (18, 18, 1), (64, 60, 1), (18, 18, 7)):
            yield convolution(dtype, channels=channels, filters=filters, taps=taps)
        yield convolution(dtype, channels=18, filters=18, transposed=True)
        yield convolution(dtype, taps=7)
        yield convolution(dtype, transposed=True, taps=2, stride=3)
        yield convolution(dtype, transposed=True, rank=3, stride=2)
    for dtype in (torch.float32, torch.float64):
        yield linear(dtype)
        for groups in (1, 2, 128):
            yield convolution(dtype, rank=1, groups=groups)
        yield convolution(dtype, rank=1, transposed=True)
    yield lambda a, b: torch._int_mm(a, b).float() * 0.5, ((4096, 1024), (1024, 4096)), torch.int8, "sm90"
    yield convolution(torch.float32)
    for channels in (3, 18):
        yield convolution(torch.float32, channels=channels)


@pytest.mark.parametrize("case", tuple(covered()))
def test_measured_classes_are_taken(case: Case) -> None:
    assert code_of(case) == ""


@pytest.mark.parametrize("case", tuple(uncovered()))
def test_other_classes_stay_with_the_library(case: Case) -> None:
    assert code_of(case) in ("E1022", "E1018")


def test_the_report_says_so() -> None:
    x = torch.zeros(2, 128, 28, 28).half().contiguous(memory_format=torch.channels_last)
    w = torch.zeros(128, 4, 7, 7).half().contiguous(memory_format=torch.channels_last)
    (outcome,) = outcomes(lambda x, w: torch.relu(torch.conv2d(x, w, padding=3, groups=32)), x, w)
    assert outcome.fused is None
    assert outcome.reason is not None
    assert outcome.reason.code == "E1022"
    said = "no measurement covers conv2d of 32 groups (f16, route conv-halo-groups-3x, sm90)"
    assert outcome.reason.reason == said


def test_what_an_uncovered_product_leaves_may_go_to_another() -> None:
    """The grouped convolution, which was given the sum, stays with the library; the other one takes the sum."""
    x = torch.zeros(32, 128, 56, 56).half().contiguous(memory_format=torch.channels_last)
    w = torch.zeros(128, 128, 3, 3).half().contiguous(memory_format=torch.channels_last)
    grouped = torch.zeros(128, 4, 7, 7).half().contiguous(memory_format=torch.channels_last)

    def both(x: torch.Tensor, w: torch.Tensor, grouped: torch.Tensor) -> torch.Tensor:
        return torch.relu(torch.conv2d(x, grouped, padding=3, groups=32) + torch.conv2d(x, w, padding=1))

    first, second = outcomes(both, x, w, grouped)
    assert first.reason is not None
    assert first.reason.code == "E1022"
    assert second.fused is not None
    assert [node.name for node in second.fused.nodes] == ["convolution_1", "add", "relu"]


def test_a_kernel_without_its_reduction_may_be_covered() -> None:
    """The kernel of depthwise convolutions has no means over pixels: they are Inductor's, not a grouped kernel's."""
    x = torch.zeros(32, 480, 14, 14).half().contiguous(memory_format=torch.channels_last)
    w = torch.zeros(480, 1, 5, 5).half().contiguous(memory_format=torch.channels_last)

    def squeezed(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = torch.relu(torch.conv2d(x, w, padding=2, groups=480))
        return y, y.mean((2, 3))

    (outcome,) = outcomes(squeezed, x, w)
    assert outcome.fused is not None
    assert [node.name for node in outcome.fused.nodes] == ["convolution", "relu"]
    assert [(reason.code, reason.node.name) for reason in outcome.behind] == [("E1022", "mean")]


def centred(y: torch.Tensor, r: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return a residual sum, and a part of its norm, which Inductor's kernel computes of the sum alone."""
    total = y + r
    wide = total.float()
    return total, (wide - wide.mean(1, keepdim=True)).to(y.dtype)


#: Functions of a product and a matrix of its size, whose results are read by later kernels too.
REDUCING: tuple[Callable[..., Any], ...] = (
    centred,
    lambda y, r: (y + r).float().mean(1),
    lambda y, r: ((y + r) * 2, (y + r).float().mean(1)),
    lambda y, r: ((y + r), (y + r) - (y + r).mean(1, keepdim=True)),
    lambda y, r: torch.relu(y + r).sum(0),
    lambda y, r: (torch.relu(y), torch.relu(y).sum(0), r.sum(0)),
    lambda y, r: (y.amax(1), (y * r).sum()),
)


@pytest.mark.parametrize("function", REDUCING)
@pytest.mark.parametrize(("m", "n", "k"), [(200704, 96, 384), (12544, 384, 1536), (512, 4096, 4096)])
def test_a_region_keeps_its_reductions_only_if_it_gains_by_them(
    function: Callable[..., Any], m: int, n: int, k: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The choice gains as much as the better of both ways, or is within the error of the estimate of it."""

    def gain(**patches: Any) -> tuple[float, bool]:
        with FakeTensorMode(), monkeypatch.context() as patch:
            for name, value in patches.items():
                patch.setattr(choose, name, value)
            shapes = (m, k), (n, k), (m, n)
            given = [torch.zeros(shape, dtype=torch.bfloat16) for shape in shapes]
            graph = make_fx(lambda x, w, r: function(functional.linear(x, w), r))(*given).graph
            (outcome,) = (choice := FusePass(devices=("cpu",)).choose(graph)).outcomes
        if outcome.fused is None:
            return 0.0, False
        reduces = any(each.reduced for each in outcome.fused.region.index_maps.values())
        return choice.benefits[outcome.product].gain, reduces

    best, _ = gain()
    kept, _ = gain(_try_without=lambda *_: False)
    without, reduces = gain(_keep_reductions=lambda *_: False)
    assert not reduces
    assert best > max(kept, without) - LEAST_GAIN


def test_the_table_names_what_there_is() -> None:
    """Routes and targets exist, each class has a source, and the page names each class."""
    text = " ".join(page("E1022").split())
    for known in COVERED:
        assert known.target in TARGETS
        assert set(known.routes) <= set(ROUTES)
        assert known.source
        assert known.title.replace("gradients of the inputs of depthwise", "depthwise") in text
