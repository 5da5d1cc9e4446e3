"""Convolutions: sizes, the reference's numbers and memory formats are PyTorch's."""

from __future__ import annotations

import random
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

import evt
from evt.program import Program
from evt.request import problem_sizes
from tests.support.convolutions import FPROP, TRANSPOSED, WGRAD, convolution, last
from tests.support.depth import in_depth

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
    """Return the gradient of an input that is padded by PyTorch's ``pad``."""
    made = torch.zeros(*x, dtype=torch.float64, requires_grad=True)
    result = FPROP[len(x) - 2](functional.pad(made, [*pads]), weight, **keywords)
    (found,) = torch.autograd.grad(result, made, gradient)
    return found


def make_case(number: int, integers: bool = False) -> Case:
    """Return a random convolution: every operator and rank, and every form of padding."""
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
    geometries = [case.program.request.convolution for case in cases]
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
    assert op.request.convolution is not None
    problem = op.request.convolution.problem(case.a.shape, case.b.shape)
    view = tuple(case.acc.movedim(1, -1).shape)
    assert (*problem.leads["m"], *problem.leads["n"]) == view
    assert problem_sizes(op.request, (case.a.shape, case.b.shape))["m"] * problem.sizes["n"] == case.acc.numel()
    assert op.reference(case.a, case.b).shape == case.acc.shape
    groups = op.request.convolution.groups
    other = {"": (case.a, case.b), "_dgrad": (case.acc, case.b), "_wgrad": (case.b, case.acc)}
    x, weight = other[case.operation[6:]]
    assert (problem.images, problem.channels, *problem.pixels) == x.shape
    assert (problem.filters, problem.channels // groups, *problem.filter_size) == weight.shape
    taps = case.a[:, 0] if case.operation.endswith("wgrad") else case.b[0]
    results = case.a if case.operation.endswith("dgrad") else case.acc
    assert problem.multiplications == results.numel() * taps.numel()


@pytest.mark.parametrize("number", in_depth(GRID, range(72)))
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
            inside = [slice(None), slice(None), *(slice(1, size + 1) for size in pixels)]
            return made[tuple(inside)]
        case _:
            return torch.randn(1, *shape[1:], generator=generator).expand(shape)


def is_ambiguous(tensor: Tensor) -> bool:
    """One element in each image, in wider memory: PyTorch's back ends disagree on its memory format."""
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
@pytest.mark.parametrize("chunk", in_depth(range(10), range(1)))
def test_memory_formats_are_pytorchs(chunk: int) -> None:
    rng, generator = random.Random(chunk), torch.Generator().manual_seed(chunk)
    done = 0
    while done < 40:
        rank, transposed = rng.choice((1, 2, 2, 3)), rng.random() < 0.25
        images, channels, filters = (rng.choice(choice) for choice in ((1, 2, 3, 16), (1, 1, 2, 3, 8), (1, 1, 2, 8)))
        pixels, size, groups = [rng.choice((1, 1, 2, 5)) for _ in range(rank)], [rng.choice((1, 1, 2, 3))] * rank, 1
        if images == 1:  # or else PyTorch takes simple loops, whose results are always contiguous
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
