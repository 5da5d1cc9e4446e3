"""Convolutions: their geometry, sizes, reference and memory formats against PyTorch; routes, and what is refused."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional, grad

import evt
from evt.diagnostics import Source
from evt.emission import emit
from evt.ir.convolution import Convolution
from evt.plan import Layout, find_target
from evt.plan.plan import Convolution2x, MatrixProduct
from evt.program import Program
from evt.runtime.arguments import bind
from evt.runtime.bound import Bound
from evt.runtime.kernels import plan_kernels
from evt.spec import packed_problem, problem_sizes

ROOT = Path(__file__).parents[2]
FPROP: Mapping[int, Callable[..., Tensor]] = {1: functional.conv1d, 2: functional.conv2d, 3: functional.conv3d}
TRANSPOSED: Mapping[int, Callable[..., Tensor]] = {
    1: functional.conv_transpose1d,
    2: functional.conv_transpose2d,
    3: functional.conv_transpose3d,
}
WGRAD: Mapping[int, Callable[..., Tensor]] = {1: grad.conv1d_weight, 2: grad.conv2d_weight, 3: grad.conv3d_weight}


def convolution(text: str, operation: str = "conv2d", **keywords: Any) -> Program:
    return Program(Source(text), operation, **keywords)


def geometry(operation: str = "conv2d", **keywords: Any) -> Convolution:
    found = convolution("D = acc", operation, **keywords).spec.convolution
    assert found is not None
    return found


def last(tensor: Tensor) -> Tensor:
    """The same numbers with channels last in memory, made without evt."""
    return tensor.movedim(1, -1).contiguous().movedim(-1, 1)


# Geometry


@pytest.mark.parametrize(
    ("operation", "keywords", "expected"),
    [
        ("conv2d", {}, {"stride": (1, 1), "padding": ((0, 0), (0, 0)), "dilation": (1, 1), "groups": 1}),
        ("conv2d", {"stride": 2, "dilation": 3}, {"stride": (2, 2), "dilation": (3, 3)}),
        ("conv2d", {"stride": (2, 3), "dilation": [1, 2]}, {"stride": (2, 3), "dilation": (1, 2)}),
        ("conv2d", {"stride": torch.Size([2, 3])}, {"stride": (2, 3)}),
        ("conv2d", {"padding": 2}, {"padding": ((2, 2), (2, 2))}),
        ("conv2d", {"padding": (1, 2)}, {"padding": ((1, 1), (2, 2))}),
        ("conv2d", {"padding": [[1, 2], (3, 0)]}, {"padding": ((1, 2), (3, 0))}),
        ("conv2d", {"padding": "valid", "stride": 2}, {"padding": ((0, 0), (0, 0))}),
        ("conv2d", {"padding": "same"}, {"padding": None}),
        ("conv2d", {"groups": 4}, {"groups": 4}),
        ("conv1d", {"padding": (3,), "stride": 2}, {"padding": ((3, 3),), "stride": (2,)}),
        ("conv1d", {"padding": ((1, 2),)}, {"padding": ((1, 2),)}),
        ("conv3d", {"padding": ((0, 1), (2, 3), (4, 5))}, {"padding": ((0, 1), (2, 3), (4, 5))}),
        ("conv2d_dgrad", {"output_padding": (1, 0), "stride": 2}, {"output_padding": (1, 0), "kernel_size": ()}),
        ("conv3d_wgrad", {"kernel_size": 3}, {"kernel_size": (3, 3, 3), "output_padding": ()}),
        ("conv1d_wgrad", {"kernel_size": (5,)}, {"kernel_size": (5,)}),
    ],
)
def test_geometry(operation: str, keywords: dict[str, Any], expected: dict[str, Any]) -> None:
    found = geometry(operation, **keywords)
    assert {name: getattr(found, name) for name in expected} == expected


@pytest.mark.parametrize(
    ("operation", "keywords", "code", "said"),
    [
        ("conv2d", {"stride": 0}, "E0607", "`stride` is 0; expected a whole number of at least 1, or 2 of them"),
        ("conv2d", {"stride": (1, 2, 3)}, "E0607", "`stride` is (1, 2, 3); expected a whole number"),
        ("conv2d", {"stride": ()}, "E0607", "`stride` is ()"),
        ("conv2d", {"stride": True}, "E0607", "`stride` is True"),
        ("conv2d", {"stride": 1.0}, "E0607", "`stride` is 1.0"),
        ("conv2d", {"stride": "2"}, "E0607", "`stride` is '2'"),
        ("conv1d", {"stride": (1, 2)}, "E0607", "`stride` is (1, 2); expected a whole number of at least 1\n"),
        ("conv2d", {"dilation": (1, 0)}, "E0607", "`dilation` is (1, 0)"),
        ("conv2d", {"groups": 0}, "E0607", "`groups` is 0; expected a whole number of at least 1\n"),
        ("conv2d", {"groups": (1, 2)}, "E0607", "`groups` is (1, 2)"),
        ("conv2d", {"padding": -1}, "E0607", "`padding` is -1; expected a whole number of at least 0, or 2 of them"),
        ("conv2d", {"padding": 2**31}, "E0607", "`padding` is 2147483648"),
        ("conv2d", {"padding": None}, "E0607", "`padding` is None"),
        ("conv2d", {"padding": "full"}, "E0607", '`padding` is \'full\'; expected numbers, "same" or "valid"'),
        ("conv2d", {"padding": b"same"}, "E0607", "`padding` is b'same'"),
        ("conv2d", {"padding": torch.tensor([1, 2])}, "E0607", "`padding` is tensor([1, 2])"),
        ("conv2d", {"padding": ((1, 2), 3)}, "E0607", "`padding` is ((1, 2), 3)"),
        ("conv2d", {"padding": ((1, 2), (3, -4))}, "E0607", "`padding` is (3, -4)"),
        ("conv2d", {"padding": ((1, 2, 3), (4, 5))}, "E0607", "`padding` is (1, 2, 3)"),
        ("conv3d", {"padding": ((1, 2), (3, 4))}, "E0607", "or 3 of them"),
        ("conv2d", {"padding": "same", "stride": (1, 2)}, "E0607", "is 'same', and the stride (1, 2) is not 1"),
        ("conv2d_dgrad", {"output_padding": -1}, "E0607", "`output_padding` is -1"),
        ("conv2d_wgrad", {"kernel_size": (3, 0)}, "E0607", "`kernel_size` is (3, 0)"),
        ("conv2d_wgrad", {}, "E0601", "conv2d_wgrad needs `kernel_size`"),
        ("conv2d", {"kernel_size": 3}, "E0602", "conv2d has no keyword `kernel_size`"),
        ("conv2d", {"output_padding": 1}, "E0602", "keywords: stride, padding, dilation, groups\n"),
        ("conv2d_dgrad", {"kernel_size": 3}, "E0602", "conv2d_dgrad has no keyword `kernel_size`"),
        ("conv2d_wgrad", {"kernel_size": 3, "output_padding": 1}, "E0602", "no keyword `output_padding`"),
        ("conv2d", {"strides": 2}, "E0602", "`strides`"),
        ("gemm", {"padding": 1}, "E0602", "`padding` is for convolutions, and the operation is gemm"),
        ("linear", {"groups": 2}, "E0602", "`groups` is for convolutions, and the operation is linear"),
    ],
)
def test_mistakes_of_geometry(operation: str, keywords: dict[str, Any], code: str, said: str) -> None:
    with pytest.raises(evt.ArgumentError) as caught:
        convolution("D = acc", operation, **keywords)
    assert [each.code for each in caught.value.diagnostics] == [code]
    assert said in f"{caught.value}\n"


@pytest.mark.parametrize(
    ("operation", "a", "b", "keywords", "said"),
    [
        ("conv2d", (1, 8, 5), (8, 8, 3, 3), {}, "`A`, x, has 3 dimensions; expected [N, C, H, W]"),
        ("conv2d", (1, 8, 5, 5), (8, 8, 3), {}, "`B`, weight, has 3 dimensions; expected [K, C, R, S]"),
        ("conv1d", (8, 5), (8, 8, 3), {}, "`A`, x, has 2 dimensions; expected [N, C, L]"),
        ("conv1d", (1, 8, 5), (8, 8), {}, "`B`, weight, has 2 dimensions; expected [K, C, S]"),
        ("conv3d", (1, 8, 5, 5), (8, 8, 3, 3, 3), {}, "`A`, x, has 4 dimensions; expected [N, C, D, H, W]"),
        ("conv3d", (1, 8, 5, 5, 5), (8, 8, 3, 3), {}, "expected [K, C, T, R, S]"),
        ("conv2d_dgrad", (1, 8, 5), (8, 8, 3, 3), {}, "`A`, the gradient, has 3 dimensions"),
        ("conv2d_wgrad", (1, 8, 5, 5), (8, 3, 3), {"kernel_size": 3}, "`B`, x, has 3 dimensions"),
        ("conv2d", (1, 8, 5, 5), (8, 7, 3, 3), {}, "A has 8 channels and B has 7\n"),
        ("conv2d", (1, 9, 5, 5), (8, 4, 3, 3), {"groups": 2}, "A has 9 channels and B has 4 in each of 2 groups"),
        ("conv2d", (1, 8, 5, 5), (9, 4, 3, 3), {"groups": 2}, "9 filters do not divide into 2 groups"),
        ("conv2d_dgrad", (1, 7, 5, 5), (8, 8, 3, 3), {}, "A has 7 channels and B has 8 filters"),
        ("conv2d_wgrad", (1, 8, 3, 3), (1, 9, 5, 5), {"kernel_size": 3, "groups": 2}, "9 input channels do not divide"),
        ("conv2d_wgrad", (2, 8, 3, 3), (1, 8, 5, 5), {"kernel_size": 3}, "A has 2 images and B has 1"),
        (*("conv2d_wgrad", (1, 8, 3, 3), (1, 8, 7, 6), {"kernel_size": 3}), "A has 3 x 3 pixels; the output of this"),
        ("conv2d", (1, 8, 5, 5), (8, 8, 7, 7), {}, "the filters reach over 7 pixels, and the padded input has 5"),
        ("conv2d", (0, 8, 5, 5), (8, 8, 7, 7), {}, "the filters reach over 7 pixels"),
        ("conv2d", (1, 8, 5, 5), (8, 8, 3, 3), {"dilation": 3}, "the filters reach over 7 pixels"),
        ("conv2d", (1, 8, 5, 5), (8, 8, 0, 3), {}, "the filters have 0 x 3 taps"),
        ("conv2d_dgrad", (1, 8, 1, 1), (8, 8, 1, 1), {"padding": 1}, "the result would have -1 pixels"),
        (
            *("conv2d_dgrad", (1, 8, 5, 5), (8, 8, 3, 3), {"output_padding": 1}),
            "output_padding (1, 1) is not smaller than the stride (1, 1)",
        ),
    ],
)
def test_shapes_that_are_none(
    operation: str, a: tuple[int, ...], b: tuple[int, ...], keywords: dict[str, Any], said: str
) -> None:
    op = convolution("D = acc", operation, **keywords)
    calls: tuple[Callable[[], object], ...] = (
        lambda: op(torch.zeros(a), torch.zeros(b)),
        lambda: op.plan("sm80", shapes=(a, b)),
        lambda: problem_sizes(op.spec, (a, b)),
    )
    for call in calls:
        with pytest.raises(evt.ArgumentError) as caught:
            call()
        assert [each.code for each in caught.value.diagnostics] == ["E0604"]
        assert said in f"{caught.value}\n"


# The reference, over a grid of problems


@dataclass(frozen=True)
class Case:
    """A convolution, its operands, and its result by PyTorch in f64, as [N, C, ...]."""

    operation: str
    keywords: dict[str, Any]
    a: Tensor
    b: Tensor
    acc: Tensor

    @property
    def program(self) -> Program:
        return convolution("D = acc", self.operation, **self.keywords)


def by_autograd(
    x: Sequence[int], weight: Tensor, pads: Sequence[int], gradient: Tensor, keywords: dict[str, Any]
) -> Tensor:
    """The gradient of an input that is padded by PyTorch's ``pad``."""
    made = torch.zeros(*x, dtype=torch.float64, requires_grad=True)
    result = FPROP[len(x) - 2](functional.pad(made, [*pads]), weight, **keywords)
    (found,) = torch.autograd.grad(result, made, gradient)
    return found


def make_case(number: int, integers: bool = False) -> Case:
    """A random convolution: every operator and rank, and every form of padding."""
    rng = random.Random(number)
    generator = torch.Generator().manual_seed(number)

    def tensor(*shape: int) -> Tensor:
        if integers:
            return torch.randint(-9, 10, shape, generator=generator).to(torch.int8)
        return torch.randn(shape, generator=generator)

    rank, operator = 1 + number % 3, ("", "_dgrad", "_wgrad")[number // 3 % 3]
    form = rng.choice(("number", "tuple", "pairs", "same", "valid"))
    groups = rng.choice((1, 1, 2, 3))
    images, channels, filters = rng.randint(1, 3), groups * rng.randint(1, 4), groups * rng.randint(1, 4)
    stride = tuple(1 if form == "same" else rng.randint(1, 3) for _ in range(rank))
    dilation = tuple(rng.randint(1, 2) for _ in range(rank))
    size = tuple(rng.randint(1, 3) for _ in range(rank))
    spans = tuple(step * (taps - 1) + 1 for step, taps in zip(dilation, size, strict=True))
    pads: list[tuple[int, int]] = [(0, 0)] * rank
    padding: Any = form
    match form:
        case "number":
            padding = rng.randint(0, 2)
            pads = [(padding, padding)] * rank
        case "tuple":
            padding = tuple(rng.randint(0, 2) for _ in range(rank))
            pads = [(each, each) for each in padding]
        case "pairs":
            padding = pads = [(rng.randint(0, 2), rng.randint(0, 2)) for _ in range(rank)]
        case "same":
            pads = [((span - 1) // 2, span // 2) for span in spans]
    pixels = [max(1, span - sum(pad)) + rng.randint(0, 4) for span, pad in zip(spans, pads, strict=True)]
    rows = list(zip(pixels, pads, spans, stride, strict=True))
    results = [(count + sum(pad) - span) // step + 1 for count, pad, span, step in rows]
    flat = [each for pad in reversed(pads) for each in pad]
    given: dict[str, Any] = {"stride": stride, "dilation": dilation, "groups": groups}
    keywords = {**given, "padding": padding, "dilation": dilation if number % 2 else list(dilation)}
    x, weight = tensor(images, channels, *pixels), tensor(filters, channels // groups, *size)
    gradient = tensor(images, filters, *results)
    padded = functional.pad(x.double(), flat)
    symmetric = all(before == after for before, after in pads)
    match operator:
        case "":
            native = symmetric or form == "same"
            what = x.double() if native else padded
            with warnings.catch_warnings():  # "same" of an even filter copies
                warnings.simplefilter("ignore", UserWarning)
                acc = FPROP[rank](what, weight.double(), **given, padding=padding if native else 0)
            return Case(f"conv{rank}d", keywords, x, weight, acc)
        case "_dgrad":
            keywords["output_padding"] = tuple((count + sum(pad) - span) % step for count, pad, span, step in rows)
            acc = by_autograd(x.shape, weight.double(), flat, gradient.double(), given)
            if symmetric:
                both = {
                    **given,
                    "padding": [before for before, _ in pads],
                    "output_padding": keywords["output_padding"],
                }
                transposed = TRANSPOSED[rank](gradient.double(), weight.double(), **both)
                torch.testing.assert_close(transposed, acc)
            return Case(f"conv{rank}d_dgrad", keywords, gradient, weight, acc)
        case _:
            keywords["kernel_size"] = size
            acc = WGRAD[rank](padded, weight.shape, gradient.double(), stride, 0, dilation, groups)
            return Case(f"conv{rank}d_wgrad", keywords, gradient, x, acc)


GRID = range(180)
#: All ways in which an epilogue's tensors meet the accumulator.
EPILOGUE = """
in  alpha: f32, bias: f32[n], s: f32[m], C: f32[m, n], E: f32[n, m]
out D: f32[m, n], Z: f32[m, n], T: f32[n, m], rows: f32[m], columns: f32[n], top: f32
Z = alpha*acc + bias
D = relu(Z) + C
T = Z*s + E
rows = sum[n](Z)
columns = sum[m](Z*Z)
top = max[m, n](abs(Z))
"""


def test_the_grid_has_everything() -> None:
    cases = [make_case(number) for number in GRID]
    assert len({case.operation for case in cases}) == 9
    geometries = [case.program.spec.convolution for case in cases]
    assert {each.groups for each in geometries} == {1, 2, 3}
    assert {max(each.stride) for each in geometries} == {1, 2, 3}
    assert {max(each.output_padding, default=0) for each in geometries} == {0, 1, 2}
    assert {max(each.dilation) for each in geometries} == {1, 2}
    assert any(each.padding is None for each in geometries)
    assert any(each.padding and any(before != after for before, after in each.padding) for each in geometries)


@pytest.mark.parametrize("number", GRID)
def test_sizes_are_those_of_pytorch(number: int) -> None:
    case = make_case(number)
    op = case.program
    assert op.spec.convolution is not None
    problem = op.spec.convolution.problem(case.a.shape, case.b.shape)
    view = tuple(case.acc.movedim(1, -1).shape)
    assert (*problem.leads["m"], *problem.leads["n"]) == view
    assert problem_sizes(op.spec, (case.a.shape, case.b.shape))["m"] * problem.sizes["n"] == case.acc.numel()
    assert op.reference(case.a, case.b).shape == case.acc.shape
    groups = op.spec.convolution.groups
    other = {"": (case.a, case.b), "_dgrad": (case.acc, case.b), "_wgrad": (case.b, case.acc)}
    x, weight = other[case.operation[6:]]
    assert (problem.images, problem.channels, *problem.pixels) == x.shape
    assert (problem.filters, problem.channels // groups, *problem.filter_size) == weight.shape
    taps = case.a[:, 0] if case.operation.endswith("wgrad") else case.b[0]
    results = case.a if case.operation.endswith("dgrad") else case.acc
    assert problem.multiplications == results.numel() * taps.numel()


@pytest.mark.parametrize("number", GRID)
def test_the_reference_is_pytorchs(number: int) -> None:
    case = make_case(number)
    generator = torch.Generator().manual_seed(1000 + number)
    op = convolution(EPILOGUE, case.operation, **case.keywords)
    view = case.acc.movedim(1, -1)  # [m..., n...]
    inner = 1 if case.operation.endswith("wgrad") else view.dim() - 1  # dimensions of m
    m, n = view.shape[:inner], view.shape[inner:]
    C = torch.randn(case.acc.shape, generator=generator)  # noqa: N806
    bias, s = torch.randn(n, generator=generator), torch.randn(m, generator=generator)
    E = torch.randn(*n, *m, generator=generator)  # noqa: N806
    got = op.reference(case.a, case.b, float64=True, alpha=1.5, bias=bias, s=s, C=C, E=E)

    z = 1.5 * view + bias.double()
    flat = z.reshape(m.numel(), n.numel())
    turned = (flat * s.double().reshape(-1, 1)).mT.reshape(*n, *m)
    want = {
        "D": (torch.relu(z) + C.double().movedim(1, -1)).movedim(-1, 1),
        "Z": z.movedim(-1, 1),
        "T": turned + E.double(),
        "rows": flat.sum(1).reshape(m),
        "columns": (flat * flat).sum(0).reshape(n),
        "top": flat.abs().max(),
    }
    assert got._fields == tuple(want)
    for name, each in want.items():
        torch.testing.assert_close(getattr(got, name), each, rtol=1e-10, atol=1e-10, msg=f"{name} of {case.keywords}")


@pytest.mark.parametrize("number", range(0, 180, 4))
def test_integers_are_exact(number: int) -> None:
    case = make_case(number, integers=True)
    op = convolution("out D: i32, t: i32[n]; D = 3*acc; t = sum[m](acc)", case.operation, **case.keywords)
    got = op(case.a, case.b)
    assert torch.equal(got.D, 3 * case.acc.int())
    rows = [0] if case.operation.endswith("wgrad") else [0, *range(2, case.acc.dim())]
    assert torch.equal(got.t, case.acc.sum(rows).int().movedim(0, -1))


def test_results_are_rounded_to_their_types() -> None:
    x, w = torch.randn(2, 5, 6, 7).bfloat16(), torch.randn(4, 5, 3, 3).bfloat16()
    op = evt.conv2d("out D, E: f32[m, n], b: b1[m, n]; D = acc; E = acc; b = acc > 0", padding=1)
    found = op(x, w)
    exact = functional.conv2d(x.double(), w.double(), padding=1)
    torch.testing.assert_close(found.E, exact.float(), rtol=1e-4, atol=1e-4)
    assert torch.equal(found.D, found.E.bfloat16())
    assert found.b.shape == (2, 6, 7, 1)  # bits stay channels last
    assert torch.equal(evt.unpack_bits(found.b, 4).bool(), (found.E > 0).movedim(1, -1))


@pytest.mark.parametrize(
    ("operation", "a", "b", "keywords", "expected"),
    [
        ("conv2d", (0, 8, 5, 5), (4, 8, 3, 3), {}, (0, 4, 3, 3)),
        ("conv2d", (2, 0, 5, 5), (4, 0, 3, 3), {}, (2, 4, 3, 3)),
        ("conv2d", (2, 8, 5, 5), (0, 8, 3, 3), {}, (2, 0, 3, 3)),
        ("conv1d_dgrad", (0, 8, 5), (8, 4, 3), {}, (0, 4, 7)),
        ("conv2d_wgrad", (0, 8, 3, 3), (0, 4, 5, 5), {"kernel_size": 3}, (8, 4, 3, 3)),
    ],
)
def test_of_nothing_the_product_is_zero(
    operation: str, a: tuple[int, ...], b: tuple[int, ...], keywords: dict[str, Any], expected: tuple[int, ...]
) -> None:
    op = convolution("D = acc + 1", operation, **keywords)
    assert torch.equal(op(torch.ones(a), torch.ones(b)), torch.ones(expected))


# The language


def test_there_are_no_batches() -> None:
    for text in ("in b: f32[l, n]; D = acc + b", "D = acc + C[l, m, n]", "out D[l, m, n]; D = acc"):
        with pytest.raises(evt.ProgramError, match="E0301"):
            evt.conv2d(text)
    with pytest.raises(evt.ProgramError, match="images count among the rows: leave `l` out"):
        evt.conv2d("D = acc + b[l]")


def test_a_header_says_that_it_is_a_convolution(tmp_path: Path) -> None:
    op = convolution("conv2d(A: bf16, B: bf16); D = relu(acc)", "gemm", padding=1)
    assert op.spec.operation == "conv2d"
    assert op.spec.convolution == geometry(padding=1)
    x, w = torch.ones(1, 8, 4, 4), torch.ones(8, 8, 3, 3)
    assert op(x.bfloat16(), w.bfloat16()).shape == (1, 8, 4, 4)
    with pytest.raises(evt.ArgumentError, match="E0603"):
        op(x.half(), w.half())
    path = tmp_path / "program.evt"
    path.write_text("conv1d_wgrad(A: f16, B: f16)\nD = acc\n")
    assert evt.load(path, kernel_size=3).spec.convolution == geometry("conv1d_wgrad", kernel_size=3)
    with pytest.raises(evt.ArgumentError, match="E0601"):
        evt.load(path)
    with pytest.raises(evt.ArgumentError, match=r"E0602.*\n?.*padding"):
        evt.conv2d("gemm(A: f16, B: f16); D = acc", padding=1)


# Memory formats

FORMS = ("contiguous", "last", "permuted", "sliced", "sliced-last", "stepped", "cropped-last", "expanded")


def formed(shape: tuple[int, ...], form: str, rng: random.Random, generator: torch.Generator) -> Tensor:
    """Random numbers of a shape, lying in memory in one of many ways."""
    images, channels, *pixels = shape
    match form:
        case "contiguous":
            return torch.randn(shape, generator=generator)
        case "last":
            return last(torch.randn(shape, generator=generator))
        case "permuted":
            order = rng.sample(range(len(shape)), len(shape))
            made = torch.randn([shape[dim] for dim in order], generator=generator)
            return made.permute([order.index(dim) for dim in range(len(shape))])
        case "sliced":
            return torch.randn(images, channels + 3, *pixels, generator=generator)[:, 1 : 1 + channels]
        case "sliced-last":
            return last(torch.randn(images, channels + 3, *pixels, generator=generator))[:, 1 : 1 + channels]
        case "stepped":
            made = torch.randn([2 * size for size in shape], generator=generator)
            return made[tuple(slice(None, None, 2) for _ in shape)]
        case "cropped-last":
            made = last(torch.randn(images, channels, *(size + 2 for size in pixels), generator=generator))
            return made[(..., *(slice(1, size + 1) for size in pixels))]
        case _:
            return torch.randn(1, *shape[1:], generator=generator).expand(shape)


def is_ambiguous(tensor: Tensor) -> bool:
    """One element an image, in wider memory: PyTorch's back ends do not agree on what that is."""
    return tensor[:1].numel() == 1 and not tensor.is_contiguous()


@pytest.fixture
def _onednn() -> Iterator[None]:
    """Convolutions of oneDNN, which keep PyTorch's rule of memory formats; for 1x1 filters they want two threads."""
    if not torch.backends.mkldnn.is_available():
        pytest.skip("PyTorch has no oneDNN here")
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(threads)


@pytest.mark.usefixtures("_onednn")
@pytest.mark.parametrize("chunk", range(10))
def test_memory_formats_are_pytorchs(chunk: int) -> None:
    rng, generator = random.Random(chunk), torch.Generator().manual_seed(chunk)
    done = 0
    while done < 40:
        rank, transposed = rng.choice((1, 2, 2, 3)), rng.random() < 0.25
        images, channels, filters = (rng.choice(choice) for choice in ((1, 2, 3, 16), (1, 1, 2, 3, 8), (1, 1, 2, 8)))
        pixels, size, groups = [rng.choice((1, 1, 2, 5)) for _ in range(rank)], [rng.choice((1, 1, 2, 3))] * rank, 1
        if images == 1:  # or else PyTorch takes loops of its own, whose results are always contiguous
            groups, channels, filters = 2, 2 * channels, 2 * filters
        pads = [max(0, (taps - count + 1) // 2) for taps, count in zip(size, pixels, strict=True)]
        if transposed:
            groups, images, channels, filters, pads = 1, max(2, images), channels, filters, [0] * rank
        a = formed((images, channels, *pixels), rng.choice(FORMS), rng, generator)
        outer, inner = (channels, filters) if transposed else (filters, channels // groups)
        b = formed((outer, inner, *size), rng.choice(FORMS), rng, generator)
        if is_ambiguous(a) or is_ambiguous(b):
            continue
        done += 1
        op = convolution("D = acc", f"conv{rank}d_dgrad" if transposed else f"conv{rank}d", padding=pads, groups=groups)
        eager = (TRANSPOSED if transposed else FPROP)[rank](a, b, padding=tuple(pads), groups=groups)
        found = op(a, b)
        torch.testing.assert_close(found, eager, rtol=1e-4, atol=1e-4)
        assert found.stride() == eager.stride(), (a.shape, a.stride(), b.shape, b.stride())


@pytest.mark.usefixtures("_onednn")
@pytest.mark.parametrize("rank", [1, 2, 3])
def test_a_weights_gradient_has_the_memory_format_of_x(rank: int) -> None:
    op = convolution("D = acc", f"conv{rank}d_wgrad", kernel_size=2)
    for x_form in (last, Tensor.contiguous):
        for form in (last, Tensor.contiguous):
            x, gradient = x_form(torch.randn(3, 5, *[6] * rank)), form(torch.randn(3, 4, *[5] * rank))
            eager = WGRAD[rank](x, (4, 5, *[2] * rank), gradient)
            found = op(gradient, x)
            torch.testing.assert_close(found, eager, rtol=1e-4, atol=1e-4)
            assert found.stride() == eager.stride()


@pytest.mark.parametrize("shape", [(2, 3, 5), (2, 3, 4, 5), (2, 3, 4, 5, 6), (1, 3, 1, 1), (2, 1, 4, 5)])
def test_channels_last(shape: tuple[int, ...]) -> None:
    x = torch.randn(shape)
    converted = evt.channels_last(x)
    assert torch.equal(converted, x)
    assert converted.movedim(1, -1).is_contiguous()
    assert evt.channels_last(converted) is converted
    if len(shape) > 3:
        formats = {4: torch.channels_last, 5: torch.channels_last_3d}
        assert converted.is_contiguous(memory_format=formats[len(shape)])
    if shape[1] > 1 and shape[2] > 1:
        assert converted.data_ptr() != x.data_ptr()


# What a call hands on


def bound(op: Program, a: Tensor, b: Tensor, buffers: Mapping[str, Tensor] | None = None, **inputs: Any) -> Bound:
    return bind(op.spec, a, b, inputs, buffers or {})


def half(*shape: int) -> Tensor:
    return torch.zeros(shape, dtype=torch.float16)


X, WEIGHT = last(half(2, 16, 9, 7)), last(half(24, 16, 3, 3))
IMAGE = (2, 24, 9, 7)
OP = evt.conv2d("D = relu(acc + bias) + residual", padding=1)


def strides(found: Bound, name: str) -> dict[str, int]:
    return dict(found.tensors[name].strides)


def test_strides_of_channels_last_tensors() -> None:
    found = bound(OP, X, WEIGHT, bias=half(24), residual=last(half(*IMAGE)))
    assert found.copied == ()
    activation = {"outer": 1008, "height": 112, "width": 16, "pixel": 16, "m": 16, "k": 1, "l": 0}
    assert strides(found, "A") == activation
    assert strides(found, "B") == {"outer": 144, "height": 48, "width": 16, "pixel": 1, "n": 144, "k": 1, "l": 0}
    assert strides(found, "residual") == strides(found, "D") == {"m": 24, "n": 1, "l": 0}
    assert {name: each.layout.alignment for name, each in found.tensors.items()} == dict.fromkeys(found.tensors, 8)
    assert found.signature.a == found.signature.b == Layout("k", 8)
    assert found.signature["residual"] == Layout("n", 8)
    assert found.signature.convolution is not None
    assert found.signature.convolution.packed


@pytest.mark.parametrize("text", ["D = relu(acc + bias) + C", "in bias: f16[n], C: f16[m, n]; D = bias*acc + C"])
@pytest.mark.parametrize("size", [1, 3])
def test_packed_tensors_are_planned_as_they_are_called(text: str, size: int) -> None:
    """What explain says of shapes is true of a call with them."""
    op = evt.conv2d(text, padding="same")
    for channels, filters in ((16, 24), (3, 24), (6, 9)):
        x, weight = last(half(2, channels, 9, 7)), last(half(filters, channels, size, size))
        called = bound(op, x, weight, bias=half(filters), C=last(half(2, filters, 9, 7)))
        asked = packed_problem(op.spec, "sm90", None, None, (x.shape, weight.shape)).signature
        vector = ("bias", called.signature["bias"])  # which is aligned to 16 bytes where its extent is not known
        tensors = tuple(vector if name == "bias" else (name, layout) for name, layout in asked.tensors)
        assert replace(asked, tensors=tensors) == called.signature


def test_strides_of_rows_and_volumes() -> None:
    found = bound(evt.conv1d("D = acc"), last(half(2, 16, 9)), last(half(24, 16, 3)))
    assert strides(found, "A") == {"outer": 144, "height": 144, "width": 16, "pixel": 16, "m": 16, "k": 1, "l": 0}
    assert strides(found, "B") == {"outer": 48, "height": 48, "width": 16, "pixel": 1, "n": 48, "k": 1, "l": 0}
    found = bound(evt.conv3d("D = acc"), last(half(2, 16, 5, 9, 7)), last(half(24, 16, 3, 3, 3)))
    assert [strides(found, "A")[name] for name in ("outer", "depth", "height", "width")] == [5040, 1008, 112, 16]
    assert [strides(found, "B")[name] for name in ("outer", "depth", "height", "width")] == [432, 144, 48, 16]


def test_strides_of_gradients() -> None:
    gradient, weight = last(half(2, 24, 7, 5)), last(half(24, 16, 3, 3))
    found = bound(convolution("D = acc + C", "conv2d_dgrad"), gradient, weight, C=last(half(2, 16, 9, 7)))
    assert strides(found, "A") == {"outer": 840, "height": 120, "width": 24, "pixel": 24, "m": 24, "k": 1, "l": 0}
    assert strides(found, "B") == {"outer": 144, "height": 48, "width": 16, "pixel": 1, "k": 144, "n": 1, "l": 0}
    assert strides(found, "C") == {"m": 16, "n": 1, "l": 0}
    found = bound(convolution("D = acc + C", "conv2d_wgrad", kernel_size=3), gradient, X, C=weight)
    assert strides(found, "A") == {"outer": 840, "height": 120, "width": 24, "pixel": 24, "k": 24, "m": 1, "l": 0}
    assert strides(found, "B") == {"outer": 1008, "height": 112, "width": 16, "pixel": 16, "k": 16, "n": 1, "l": 0}
    assert strides(found, "C") == {"m": 144, "n": 1, "l": 0}
    assert (found.sizes["m"], found.sizes["n"], found.sizes["k"]) == (24, 144, 70)


def test_slices_are_read_in_place() -> None:
    wide = last(half(2, 40, 9, 7))
    for start, alignment in ((8, 8), (4, 4), (6, 2), (3, 1)):
        found = bound(OP, wide[:, start : start + 16], WEIGHT, bias=half(24), residual=last(half(*IMAGE)))
        assert found.copied == ()
        shown = {"outer": 2520, "height": 280, "width": 40, "pixel": 40, "m": 40, "k": 1, "l": 0}
        assert strides(found, "A") == shown
        assert found.signature.a == Layout("k", alignment)
    cropped = last(half(2, 16, 11, 9))[:, :, 1:10, 1:8]
    found = bound(OP, cropped, WEIGHT, bias=half(24), residual=last(half(2, 40, 9, 7))[:, 8:32])
    assert found.copied == ()
    assert [strides(found, "A")[name] for name in ("outer", "height", "width", "pixel")] == [1584, 144, 16, 0]
    assert strides(found, "residual") == {"m": 40, "n": 1, "l": 0}
    assert found.signature.convolution is not None
    assert not found.signature.convolution.packed


def test_what_is_not_channels_last_is_copied() -> None:
    residual = last(half(*IMAGE))
    assert bound(OP, X.contiguous(), WEIGHT, bias=half(24), residual=residual).copied == ("A",)
    found = bound(OP, X.contiguous(), WEIGHT.contiguous(), bias=half(24), residual=half(*IMAGE))
    assert found.copied == ("A", "B", "residual")
    assert strides(found, "A") == strides(bound(OP, X, WEIGHT, bias=half(24), residual=residual), "A")
    assert strides(found, "residual") == {"m": 24, "n": 1, "l": 0}
    assert found.signature == bound(OP, X, WEIGHT, bias=half(24), residual=residual).signature
    expanded = half(1, 1, 9, 7).expand(2, 16, 9, 7)
    assert bound(OP, expanded, WEIGHT, bias=half(24), residual=residual).copied == ("A",)
    cropped = last(half(2, 24, 11, 9))[:, :, 1:10, 1:8]  # an operand of the product may lie so, an epilogue's not
    assert bound(OP, X, WEIGHT, bias=half(24), residual=cropped).copied == ("residual",)
    one = bound(OP, half(2, 1, 9, 7), half(24, 1, 3, 3), bias=half(24), residual=residual)
    assert one.copied == ()  # one channel is next to itself


def test_buffers_are_written_where_the_kernel_can() -> None:
    given = {"bias": half(24), "residual": last(half(*IMAGE))}
    wide = last(half(2, 40, 9, 7))
    found = bound(OP, X, WEIGHT, {"D": wide[:, 8:32]}, **given)
    assert (found.copied, strides(found, "D")) == ((), {"m": 40, "n": 1, "l": 0})
    assert OP(X, WEIGHT, out=wide[:, 8:32], **given).data_ptr() == wide[:, 8:32].data_ptr()
    with pytest.raises(evt.ArgumentError, match=r"E0608.*\n?.*elements share memory"):
        OP(X, WEIGHT, out=half(1, 24, 9, 7).expand(IMAGE), **given)


def test_other_buffers_are_written_by_a_copy() -> None:
    """What a call returns without buffers may be its buffer too, and so may any other memory of that shape."""
    given = {"bias": half(24), "residual": last(half(*IMAGE))}
    want = OP(X.contiguous(), WEIGHT.contiguous(), **given)
    assert want.is_contiguous()
    cropped = last(half(2, 24, 11, 9))[:, :, 1:10, 1:8]
    for buffer in (half(*IMAGE), half(24, 2, 9, 7).transpose(0, 1), cropped, half(2, 24, 9, 14)[..., ::2]):
        found = bound(OP, X, WEIGHT, {"D": buffer}, **given)
        assert (found.copied, strides(found, "D")) == (("D",), {"m": 24, "n": 1, "l": 0})
        assert OP(X, WEIGHT, out=buffer, **given) is buffer
        assert torch.equal(buffer, want)


def test_shapes_are_pytorchs() -> None:
    for name, wrong, expected in (
        ("residual", half(2, 9, 7, 24), "`residual` has shape [2, 9, 7, 24]; expected [2, 24, 9, 7]"),
        ("residual", half(1, 24, 9, 7), "`residual` has shape [1, 24, 9, 7]; expected [2, 24, 9, 7]"),
        ("bias", half(9), "`bias` has shape [9]; expected [24]"),
        ("bias", half(1, 24, 1, 1), "`bias` has shape [1, 24, 1, 1]; expected [24]"),
    ):
        inputs = {"bias": half(24), "residual": last(half(*IMAGE)), name: wrong}
        with pytest.raises(evt.ArgumentError) as caught:
            OP(X, WEIGHT, **inputs)
        assert [each.code for each in caught.value.diagnostics] == ["E0604"]
        assert expected in str(caught.value)


# Routes

TYPICAL = ((2, 64, 14, 14), (64, 64, 3, 3))
POINTWISE = ((2, 64, 14, 14), (64, 64, 1, 1))
STOCK, TREE = "D = relu(acc + bias) + residual", "D = silu(acc)"


def chosen(op: Program, arch: str, dtype: str = "f16", shapes: Any = None) -> str:
    (found,) = (route.name for route in op.explain(arch, dtype, dtype, shapes=shapes).routes if route.chosen)
    return found


@pytest.mark.parametrize(
    ("arch", "stock", "tree", "pointwise"),
    [
        ("sm80", "conv-stock-2x", "conv-evt-2x", "stock-2x"),
        ("sm86", "conv-stock-2x", "conv-evt-2x", "stock-2x"),
        ("sm89", "conv-stock-2x", "conv-evt-2x", "stock-2x"),
        ("sm90", "conv-evt-3x", "conv-evt-3x", "evt-3x"),
        ("sm100", "conv-stock-2x", "conv-evt-2x", "evt-3x"),
        ("sm103", "conv-stock-2x", "conv-evt-2x", "evt-3x"),
        ("sm120", "conv-stock-2x", "conv-evt-2x", "stock-2x"),
    ],
)
def test_routes_by_target(arch: str, stock: str, tree: str, pointwise: str) -> None:
    assert chosen(evt.conv2d(STOCK, padding=1), arch, shapes=TYPICAL) == stock
    assert chosen(evt.conv2d(STOCK, padding=1), arch) == stock
    assert chosen(evt.conv2d(TREE, padding=1), arch, shapes=TYPICAL) == tree
    assert chosen(evt.conv2d(STOCK), arch, shapes=POINTWISE) == pointwise
    for op in (evt.conv1d(TREE), evt.conv3d(TREE), convolution(TREE, "conv2d_dgrad")):
        assert chosen(op, arch) == tree
    wgrad = convolution(TREE, "conv2d_wgrad", kernel_size=3)
    assert chosen(wgrad, arch) == "conv-evt-2x"
    for dtype in ("bf16", "f32", "i8", *(["e4m3", "e5m2"] if arch not in ("sm80", "sm86") else [])):
        assert chosen(evt.conv2d(TREE, padding=1), arch, dtype, TYPICAL) == tree


@pytest.mark.parametrize(
    ("operation", "shapes", "keywords"),
    [
        ("conv1d", ((2, 64, 14), (64, 64, 1)), {}),
        ("conv2d", POINTWISE, {"padding": "same"}),
        ("conv3d", ((2, 64, 3, 4, 5), (64, 64, 1, 1, 1)), {}),
        ("conv2d_dgrad", POINTWISE, {}),
        ("conv2d_wgrad", (POINTWISE[0], POINTWISE[0]), {"kernel_size": 1}),
    ],
)
@pytest.mark.parametrize(("arch", "route"), [("sm80", "evt-2x"), ("sm90", "evt-3x"), ("sm100", "evt-3x")])
def test_a_pointwise_convolution_is_a_gemm(
    operation: str, shapes: Any, keywords: dict[str, Any], arch: str, route: str
) -> None:
    op = convolution(TREE, operation, **keywords)
    assert chosen(op, arch, shapes=shapes) == route
    assert isinstance(op.plan(arch, shapes=shapes).mainloop, MatrixProduct)
    assert op.plan(arch, shapes=shapes).template.startswith("gemm_")


EMIT = f"""
import evt
from evt.diagnostics import Source
from evt.spec import packed_problem, problem_sizes
for operation in ("conv2d", "conv3d", "conv2d_dgrad", "conv2d_wgrad"):
    size = {{"kernel_size": 3}} if operation.endswith("wgrad") else {{}}
    for text in ({STOCK!r}, "out D, Z, t: f32[n]; Z = acc*s[n] + bias; D = hardswish(Z) + C; t = sum[m](Z)"):
        op = evt.Program(Source(text), operation, padding=1, **size)
        for arch in ("sm80", "sm90"):
            print(op.emit(arch))
            print(op.explain(arch))
"""


@pytest.mark.parametrize("seeds", [2, pytest.param(6, marks=pytest.mark.slow)])
def test_output_does_not_depend_on_the_hash_seed(seeds: int) -> None:
    texts = set()
    for seed in range(seeds):
        environment = {**os.environ, "PYTHONHASHSEED": str(seed)}
        command = [sys.executable, "-c", EMIT]
        texts.add(subprocess.run(command, capture_output=True, check=True, cwd=ROOT, env=environment).stdout)
    assert len(texts) == 1
    assert texts.pop().count(b'extern "C"') >= 16


def test_filters_and_channels_decide_the_iterators() -> None:
    large = ((1, 64, 64, 64), (64, 64, 33, 33))
    for shapes, expected in ((TYPICAL, "optimized"), (large, "analytic")):
        plan = evt.conv2d(TREE, padding=1).plan("sm80", shapes=shapes)
        assert isinstance(plan.mainloop, Convolution2x)
        assert plan.mainloop.iterators == expected
        assert f"cutlass::conv::IteratorAlgorithm::k{expected.capitalize()}," in emit(plan)


def test_groups_fill_tiles() -> None:
    for groups, filters, expected in ((2, 256, "kSingleGroup"), (8, 64, "kMultipleGroup")):
        shapes = ((2, 64, 14, 14), (filters, 64 // groups, 3, 3))
        text = evt.conv2d(TREE, groups=groups).emit("sm80", shapes=shapes)
        assert "DefaultConv2dGroupFprop<" in text
        assert f"GroupMode::{expected}" in text


# Refusals

MASK = "out D, mask: b1[m, n]; D = acc; mask = acc > 0"


@dataclass(frozen=True)
class Refusal:
    """A convolution that a route refuses, and its reason."""

    route: str
    reason: str
    operation: str = "conv2d"
    arch: str = "sm80"
    dtype: str = "f16"
    shapes: Any = None
    text: str = TREE
    keywords: tuple[tuple[str, Any], ...] = ()

    def program(self, route: str | None) -> Program:
        return convolution(self.text, self.operation, route=route, **dict(self.keywords))


def of(*shapes: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
    return shapes


def kw(**keywords: Any) -> tuple[tuple[str, Any], ...]:
    return tuple(keywords.items())


_PERMUTES = "CUTLASS permutes the rows of a dgrad with a stride, of which visitors know nothing"
_GROUPS = "CUTLASS has groups for the fprop of one and two dimensions only"
_REACH = "a stride is beyond 8, or padding or dilated filters reach too far"
_K = "8-bit operands must be contiguous along k, and the channels of"
_BIG = (2, 64, 300, 300)
REFUSALS = {
    "strided dgrad, 2x": Refusal("conv-evt-2x", _PERMUTES, "conv2d_dgrad", keywords=kw(stride=2)),
    "strided dgrad, 3x": Refusal("conv-evt-3x", _PERMUTES, "conv2d_dgrad", "sm90", keywords=kw(stride=(1, 2))),
    "strided dgrad, 3-D": Refusal("conv-evt-2x", _PERMUTES, "conv3d_dgrad", keywords=kw(stride=2)),
    "strided, dilated dgrad": Refusal(
        *("conv-stock-2x", "CUTLASS's dgrad with a stride has no dilation", "conv2d_dgrad"),
        text="D = acc",
        keywords=kw(stride=2, dilation=2),
    ),
    "wgrad, 3x": Refusal(
        *("conv-evt-3x", "visitors do not know the nested columns of wgrad", "conv2d_wgrad", "sm90"),
        keywords=kw(kernel_size=3),
    ),
    "depthwise": Refusal(
        *("conv-evt-2x", "are 1 channels: depthwise needs a kernel of its own"),
        shapes=of((2, 64, 14, 14), (64, 1, 3, 3)),
        keywords=kw(groups=64),
    ),
    "depthwise, stock": Refusal(
        *("conv-stock-2x", "depthwise needs a kernel of its own"),
        text="D = relu(acc)",
        shapes=of((2, 64, 14, 14), (128, 1, 3, 3)),
        keywords=kw(groups=64),
    ),
    "narrow groups of 8 bits": Refusal(
        *("conv-evt-2x", "a group's channels must be multiples of 4 bytes, and are 2 channels"),
        dtype="i8",
        shapes=of((2, 64, 14, 14), (64, 2, 3, 3)),
        keywords=kw(groups=32),
    ),
    "filters of groups": Refusal(
        *("conv-evt-2x", "a group has 24 filters, which divide no tile of 64 columns and are divided by none"),
        shapes=of((2, 64, 14, 14), (48, 32, 3, 3)),
        keywords=kw(groups=2),
    ),
    "groups of volumes": Refusal("conv-evt-2x", _GROUPS, "conv3d", keywords=kw(groups=2)),
    "groups of dgrad": Refusal("conv-evt-2x", _GROUPS, "conv2d_dgrad", keywords=kw(groups=2)),
    "groups of wgrad": Refusal("conv-stock-2x", _GROUPS, "conv2d_wgrad", keywords=kw(groups=2, kernel_size=3)),
    "groups, 3x": Refusal("conv-evt-3x", "the collectives have no groups", arch="sm90", keywords=kw(groups=2)),
    "narrow volumes": Refusal(
        *("conv-evt-2x", "iterators of volumes take 16 bytes at a time, and `B` is aligned to 8", "conv3d_dgrad"),
        shapes=of((2, 64, 6, 14, 14), (64, 4, 3, 3, 3)),
    ),
    "e4m3 dgrad": Refusal("conv-evt-2x", f"{_K} dgrad", "conv2d_dgrad", "sm89", "e4m3"),
    "i8 wgrad": Refusal("conv-evt-2x", f"{_K} wgrad", "conv2d_wgrad", dtype="i8", keywords=kw(kernel_size=3)),
    "f32 dgrad, 3x": Refusal("conv-evt-3x", "WGMMA takes f32 along k only", "conv2d_dgrad", "sm90", "f32"),
    "f64": Refusal("conv-evt-2x", "CUTLASS's convolutions have no f64", dtype="f64"),
    "f64, stock": Refusal("conv-stock-2x", "CUTLASS's convolutions have no f64", dtype="f64", text="D = acc"),
    "f64, 3x": Refusal(
        "conv-evt-3x", "f64 is multiplied by the mma instructions of 2.x kernels", arch="sm90", dtype="f64"
    ),
    "e4m3 on sm80": Refusal("conv-evt-2x", "sm80 does not multiply e4m3; sm89 and later do", dtype="e4m3"),
    "stride of TMA": Refusal("conv-evt-3x", _REACH, arch="sm90", shapes=TYPICAL, keywords=kw(stride=9)),
    "padding of TMA": Refusal("conv-evt-3x", _REACH, arch="sm90", shapes=TYPICAL, keywords=kw(padding=128)),
    "dilation of TMA": Refusal(
        *("conv-evt-3x", _REACH), arch="sm90", shapes=of(_BIG, TYPICAL[1]), keywords=kw(dilation=128)
    ),
    "volume of TMA": Refusal(
        *("conv-evt-3x", _REACH, "conv3d", "sm90"),
        shapes=of((1, 64, 8, 8, 8), (64, 64, 3, 3, 3)),
        keywords=kw(padding=16),
    ),
    "narrow channels of TMA": Refusal(
        *("conv-evt-3x", "`A` is aligned to 2 bytes: address, strides and extent along `k`"),
        arch="sm90",
        shapes=of((2, 3, 14, 14), (64, 3, 3, 3)),
    ),
    "collectives of sm80": Refusal("conv-evt-3x", "the target is sm80"),
    "collectives of sm100": Refusal("conv-evt-3x", "the target is sm100", arch="sm100"),
    "collectives of sm120": Refusal("conv-evt-3x", "the target is sm120", arch="sm120"),
    "taps as a GEMM": Refusal("evt-2x", "the filters have more than one tap", shapes=TYPICAL),
    "stride as a GEMM": Refusal("evt-3x", "the stride is not 1", arch="sm90", shapes=POINTWISE, keywords=kw(stride=2)),
    "padding as a GEMM": Refusal("evt-2x", "the input is padded", shapes=POINTWISE, keywords=kw(padding=1)),
    "groups as a GEMM": Refusal(
        *("stock-2x", "it has groups"),
        shapes=of(POINTWISE[0], (64, 32, 1, 1)),
        text="D = acc",
        keywords=kw(groups=2),
    ),
    "a stock epilogue of another formula": Refusal("conv-stock-2x", "CUTLASS has no functor with the values of `silu`"),
    "a vector in a gradient": Refusal(
        *("conv-stock-2x", "CUTLASS has such convolutions for fprop without groups only", "conv2d_dgrad"), text=STOCK
    ),
    "two residuals": Refusal("conv-stock-2x", "are two tensors, and convolutions read one", text="D = acc+bias+C+R"),
    "work on volumes": Refusal("conv-mainloop-2x", "there are three dimensions", "conv3d", text="A = relu(A); D = acc"),
    "work in groups": Refusal(
        "conv-mainloop-2x", "there are groups", text="A = relu(A); D = acc", keywords=kw(groups=2)
    ),
    "work by visitors": Refusal("conv-evt-2x", "`A` is worked on", text="A = relu(A); D = acc"),
    "no work": Refusal("conv-mainloop-2x", "A and B are multiplied as they are"),
}


#: Of these no other route is left.
NOTHING_LEFT = {
    *("strided dgrad, 2x", "strided dgrad, 3x", "strided dgrad, 3-D", "strided, dilated dgrad"),
    *("bits of a wgrad", "pairs of a wgrad", "depthwise", "depthwise, stock", "narrow groups of 8 bits"),
    *("filters of groups", "groups of volumes", "groups of dgrad", "groups of wgrad", "narrow volumes"),
    *("e4m3 dgrad", "i8 wgrad", "f64", "f64, stock", "f64, 3x", "e4m3 on sm80"),
    *("work on volumes", "work in groups"),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_refusals(name: str) -> None:
    case = REFUSALS[name]
    with pytest.raises(evt.TargetError) as caught:
        case.program(case.route).plan(case.arch, case.dtype, case.dtype, shapes=case.shapes)
    assert [each.code for each in caught.value.diagnostics] == ["E0502"]
    assert case.reason in str(caught.value)
    assert f"the route {case.route} cannot compile this program" in str(caught.value)
    free = case.program(None)
    if name not in NOTHING_LEFT:
        assert free.plan(case.arch, case.dtype, case.dtype, shapes=case.shapes)
        return
    with pytest.raises(evt.TargetError, match="E0503") as caught:
        free.plan(case.arch, case.dtype, case.dtype, shapes=case.shapes)
    assert f"note: {case.route}: " in str(caught.value)
    assert case.reason in str(caught.value)


def test_the_pitch_of_pixels_is_a_rule_of_matrices() -> None:
    weight = last(half(24, 16, 1, 1))
    op = evt.conv2d(TREE)
    for x, route in ((X, "evt-2x"), (last(half(2, 16, 11, 9))[:, :, 1:10, 1:8], "conv-evt-2x")):
        (plan, *_) = plan_kernels(op.spec, bound(op, x, weight), find_target("sm80"))
        assert plan.template == {"evt-2x": "gemm_2x", "conv-evt-2x": "conv_2x"}[route]
    with pytest.raises(evt.TargetError, match="the pixels of an operand have no single pitch"):
        plan_kernels(evt.conv2d(TREE, route="evt-2x").spec, bound(op, x, weight), find_target("sm80"))


def test_routes_of_convolutions_are_unknown_to_matrices() -> None:
    with pytest.raises(evt.TargetError, match="there is no route `conv-evt-2x`"):
        evt.gemm(TREE, route="conv-evt-2x").plan("sm80")
    assert evt.conv2d(TREE, route="evt").plan("sm80").template == "conv_2x"


def test_large_operands_are_left_to_tma():
    """CUTLASS 2.x's iterators count bytes in 32 bits."""
    op = evt.conv2d("D = acc", padding=1)
    large = ((256, 512, 128, 128), (64, 512, 3, 3))
    assert op.plan("sm90", "f16", "f16", shapes=large).template == "conv_3x"
    with pytest.raises(evt.TargetError, match="2 GiB or more"):
        op.plan("sm80", "f16", "f16", shapes=large)
    assert op.plan("sm80", "f16", "f16", shapes=((255, 256, 128, 128), (64, 256, 3, 3))).family == "2x"


@pytest.mark.parametrize(
    "text",
    [
        "D = even(acc)*odd(acc)",
        "out D, mask: b1[m, n]; D = acc; mask = acc > 0",
        "in q: b1[m, n]; D = where(q, acc, 0)",
    ],
)
def test_the_columns_of_a_weights_gradient_are_taps_and_channels(text):
    with pytest.raises(evt.ProgramError, match="in the gradient of a weight are not supported yet"):
        evt.conv2d_wgrad(text, kernel_size=3)


@pytest.mark.parametrize("filters", [65, 72, 96, 112, 160])
def test_groups_that_share_a_tile_with_half_of_another_are_refused(filters):
    op = evt.conv2d("D = relu(acc)", groups=2, padding=1)
    with pytest.raises(evt.TargetError, match=f"a group has {filters} filters"):
        op.plan("sm80", "f16", "f16", shapes=((2, 64, 8, 8), (2 * filters, 32, 3, 3)))


def test_groups_align_the_activation_to_the_channels_of_one():
    x, w = evt.channels_last(torch.zeros(2, 16, 8, 8).half()), evt.channels_last(torch.zeros(64, 2, 3, 3).half())
    op = evt.conv2d("D = acc", groups=8)
    assert bind(op.spec, x, w, {}, {}).signature.a.alignment == 2
    assert packed_problem(op.spec, "sm80", "f16", "f16", (x.shape, w.shape)).signature.a.alignment == 2


def test_a_flat_buffer_has_the_rows_of_the_implicit_gemm():
    x, w = torch.randn(2, 8, 6, 5), torch.randn(4, 8, 3, 3)
    op = evt.conv2d("D = acc")
    flat = torch.empty(24, 4)
    op(x, w, out=flat)
    assert torch.equal(flat, op(x, w).permute(0, 2, 3, 1).reshape(24, 4))


def test_a_copied_tensor_is_a_copy():
    """One whose only image has a stride of 0 is read as it is, at its own alignment."""
    memory = torch.randn(1 + 8 * 6 * 5).half()
    residual = memory[1:].as_strided((1, 8, 6, 5), (0, 1, 40, 8))
    op = evt.conv2d("D = acc + r", padding=1)
    x, w = evt.channels_last(torch.zeros(1, 8, 6, 5).half()), evt.channels_last(torch.zeros(8, 8, 3, 3).half())
    bound = bind(op.spec, x, w, {"r": residual}, {})
    assert bound.copied == ()
    assert bound.signature["r"].alignment == 1


@pytest.mark.parametrize(
    "shapes", [5, ((2, 8, 6, 5),), ("abcd", (4, 8, 3, 3)), ((-2, 8, 6, 5), (4, 8, 3, 3)), (None, None)]
)
def test_what_is_no_pair_of_shapes(shapes):
    with pytest.raises(evt.ArgumentError, match=r"E060[47]"):
        evt.conv2d("D = acc").emit("sm80", shapes=shapes)


@pytest.mark.parametrize("given", [None, 3, torch.zeros(3)])
def test_what_has_no_channels(given):
    with pytest.raises(evt.ArgumentError, match=r"E060[47]"):
        evt.channels_last(given)


def test_groups_of_convolutions_are_refused():
    with pytest.raises(evt.TargetError, match="groups are of matrix products"):
        evt.grouped_gemm("conv2d(A: f16, B: f16); D = acc")


def test_what_reaches_beyond_integers_is_refused():
    with pytest.raises(evt.ArgumentError, match="E0604"):
        evt.conv2d("D = acc", dilation=2**30, padding=2**30)(X, WEIGHT)


@pytest.mark.parametrize("path", [None, 3, b"x.evt"])
def test_what_names_no_file(path):
    with pytest.raises(evt.ArgumentError, match="E0607"):
        evt.load(path)
