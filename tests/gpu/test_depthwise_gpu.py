"""The depthwise kernel on a GPU: filters, units, epilogues, types, gradients, poisoned outputs, against float64."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn import functional

import evt
from evt.compilation import KernelSource
from evt.ir.dtype import F16, F32
from evt.plan.speed import fastest
from evt.reference.compare import distance
from evt.runtime.arguments import bind
from evt.runtime.kernels import device_target, plan_kernels
from tests.gpu import own_kernels
from tests.gpu.builds import build_selected
from tests.gpu.own_kernels import Case, Shape, check, parameters, poisoned, random, tensors
from tests.support.convolutions import last

pytestmark = pytest.mark.gpu

#: (images, channels, height, width): blocks of 32 channels that are whole and not, units beyond the image, many images
#: of few pixels in a tile, more tiles than a GPU takes at once.
SIZES = (
    (2, 96, 56, 56),
    (1, 64, 14, 14),
    (9, 40, 7, 7),
    (3, 8, 17, 8),
    (2, 72, 23, 67),
    (131, 16, 9, 7),
    (1, 104, 13, 300),
    (33, 32, 112, 30),
)
ROUTE = {"route": "conv-depthwise-3x"}


def layers(taps: tuple[int, int], sizes: tuple[tuple[int, ...], ...] = SIZES, **geometry: Any) -> tuple[Shape, ...]:
    return tuple((size, (size[1], *taps), {**geometry, "groups": size[1]}) for size in sizes)


def case(text: str, shapes: tuple[Shape, ...], dtype: str = "f16", config: str = "", **keywords: Any) -> Case:
    operation = keywords.pop("operation", "conv2d")
    return Case(text, shapes, dtype, operation=operation, keywords={**ROUTE, **keywords}, config=config)


THREE, FIVE = layers((3, 3), padding=1), layers((5, 5), padding=2)
SEVEN = layers((7, 7), padding=3)
RESIDUAL = "D = relu(acc + bias + residual)"
CASES = {
    "3x3": case(RESIDUAL, THREE),
    "3x3-rows-of-4": case(RESIDUAL, THREE, config="depthwise_4x7"),
    "3x3-row": case("D = acc", THREE, config="depthwise_1x8"),
    "3x3-pixel": case("D = acc + bias", THREE[1:6], "bf16", config="depthwise_1x1"),
    "3x3-f32": case(RESIDUAL, THREE, "f32"),
    "3x3-strided": case("D = silu(acc + bias)", layers((3, 3), padding=1, stride=2), "bf16"),
    "3x3-strides": case("D = acc + C", layers((3, 3), padding=(1, 0), stride=(1, 3)), config="depthwise_4x5"),
    "3x3-dilated": case("D = hardswish(acc)", layers((3, 3), padding=2, dilation=2), "bf16"),
    "3x3-dilations": case(
        RESIDUAL, layers((3, 3), padding=((4, 1), (9, 11)), dilation=(3, 10)), config="depthwise_2x6"
    ),
    "5x5": case("D = relu6(acc + bias)", FIVE),
    "5x5-strided": case("D = acc + bias", layers((5, 5), padding=2, stride=2), "bf16", config="depthwise_4x7"),
    "7x7": case("D = acc + bias", SEVEN),
    "7x7-rows-of-4": case(RESIDUAL, SEVEN, "bf16", config="depthwise_4x7"),
    "7x7-f32": case("D = acc + bias", SEVEN[:6], "f32", config="depthwise_4x7"),
    "11x11": case("D = acc", layers((11, 11), padding=5), config="depthwise_2x3"),
    "1x5": case(RESIDUAL, layers((1, 5), padding=(0, 2))),
    "5x1": case(RESIDUAL, layers((5, 1), padding=(2, 0), stride=(2, 1))),
    "1x1": case("D = gelu(acc + bias)", layers((1, 1))),
    "4x2-same": case(RESIDUAL, layers((4, 2), padding="same")),
    "valid": case("D = acc", layers((3, 3), tuple(each for each in SIZES if min(each[2:]) > 2))),
    "rows": case(
        "D = relu(acc + bias)",
        tuple(((n, c, h * w), (c, 7), {"padding": 3, "groups": c}) for n, c, h, w in SIZES[:6]),
        operation="conv1d",
    ),
    "broadcasts": case(
        "in s: f32[m], t: bf16[n], p: f16, q: i32; D = acc*s + t*alpha + p*q + beta*C", THREE, config="depthwise_2x7"
    ),
    "flexible": case("in s: f32[m?], t: f16[n?] = 0.5; out D: f16; D = acc*s + t", THREE[:4]),
    "two-outputs": case(
        "in gate: f32[m, n]; out D, E, F: e4m3[m, n]; E = acc + bias; D = hardswish(E) + C*gate; F = 4*E", THREE
    ),
    "f32-output": case("out D: f32[m, n]; D = acc + C", FIVE, "bf16"),
    "i8-output": case("out D: i8[m, n]; D = 20*acc + bias", THREE[:5]),
    "places": case(
        "out D: f32[m, n], E: i32[m, n]; D = where(iota(n) <= iota(m) - 32, acc, size(k)); E = 20*acc", THREE
    ),
    "reductions": case(
        "out D, a: f32[n], b: f32[m], c: f32, p: i32[m], q: i32[n], r: f32[m]\n"
        "D = acc + bias; a = sum[m](D*D); b = max[n](D); c = max[m, n](abs(acc))\n"
        "p = argmax[n](acc); q = argmin[m](acc)\n"
        "r = rsqrt(sum[n](acc*acc)/size(n) + 0.1)",
        THREE,
    ),
    "moments": case(
        "out D, mu: f32[m], r: f32[m], c: f32[n], s: f32[n], a: f32\n"
        "x = acc + 500; D = acc; mu = mean[n](x); r = rsqrt(var[n](x) + 0.1)\n"
        "c = mean[m](x); s = sqrt(var[m](x, 0.5)); a = var[m, n](x)",
        THREE,
    ),
    "atomic": case(
        "out D, a: f32[n], b: f32[m], c: f32; D = acc; a = sum[m](acc); b = max[n](acc); c = sum[m, n](acc)",
        SEVEN[:5],
        deterministic=False,
    ),
    "no-tile": case("out a: f32[n], b: f32[m]; a = sum[m](acc); b = max[n](acc)", THREE, "bf16"),
    "bits": case(
        "in keep: b1[m, n], t: i64[m]; out D, above: b1[m, n]; above = acc > i32(t)/8; D = where(keep, acc + C, 0)",
        (*THREE, *layers((3, 3), ((2, 24, 9, 11), (3, 88, 5, 6)), padding=1)),
    ),
    "random-numbers": case(
        "in seed: i64, other: i32; out D, E; D = dropout(acc, 0.4, other, 7); E = dropout(acc, 0.4, seed, other)",
        THREE[:6],
        "bf16",
    ),
    "vector-outputs": case(
        "in s: f32[n], t: f32[m], p: f16; out D, a: f32[n], b: f16[m], c: f32\n"
        "D = acc; a = exp(s); b = sigmoid(t); c = 3*p",
        THREE[:6],
    ),
    "dgrad": case("D = where(z > 0, acc, 0) + C", THREE, operation="conv2d_dgrad"),
    "dgrad-5x4": case("D = acc * gelu'(z)", layers((5, 4), padding=((4, 1), (0, 3))), "bf16", operation="conv2d_dgrad"),
    "dgrad-dilated": case("D = acc", layers((3, 3), padding=2, dilation=2), "f32", operation="conv2d_dgrad"),
}


def sources_of(name: str, number: int) -> list[KernelSource]:
    return own_kernels.sources_of(CASES[name], number)


@pytest.fixture(scope="session")
def refused(request):
    """Which kernels of the selected tests nvcc refuses, all built in one go."""
    return build_selected(request, test_depthwise, sources_of)


@pytest.mark.parametrize(("name", "number"), list(parameters(CASES)))
def test_depthwise(name, number, record, refused) -> None:
    made = CASES[name]
    for source in sources_of(name, number):
        assert source not in refused, refused[source]
    errors = check(made, number)
    shape = made.shapes[number]
    record(
        (f"{name}-{number}", "own", made.dtype, f"{shape[0]} {shape[1]}", " ".join(f"{each:.2f}" for each in errors))
    )


def test_given_pitches() -> None:
    """Channels of a larger tensor are read and written in place, and nothing beside them."""
    made = CASES["3x3"]
    op = made.program(made.shapes[0][2])
    x, weight, inputs = tensors(made, 0, op)
    want = op(x, weight, **inputs)
    wide = last(torch.full((2, 192, 56, 56), float("nan"), device="cuda", dtype=torch.float16))
    wide[:, 64:160] = x
    out = last(torch.full((2, 192, 56, 56), float("nan"), device="cuda", dtype=torch.float16))
    op(wide[:, 64:160], weight, out=out[:, 64:160], **inputs)
    assert torch.equal(out[:, 64:160], want)
    assert bool(out[:, :64].isnan().all() and out[:, 160:].isnan().all())


@pytest.mark.parametrize("name", ["3x3", "3x3-f32", "dgrad-5x4"])
def test_filters_lie_anywhere(name) -> None:
    """Taps of larger filters, filters at any address, every second filter."""
    made = CASES[name]
    op = made.program(made.shapes[0][2])
    x, weight, inputs = tensors(made, 0, op)
    want = op(x, weight, **inputs)
    count, _, rows, columns = weight.shape
    larger = torch.full((count, 1, rows + 2, columns + 2), float("nan"), device="cuda", dtype=weight.dtype)
    larger[:, :, 1:-1, 1:-1] = weight
    line = torch.full((weight.numel() + 1,), float("nan"), device="cuda", dtype=weight.dtype)
    line[1:] = weight.flatten()
    pairs = torch.full((2 * count, 1, rows, columns), float("nan"), device="cuda", dtype=weight.dtype)
    pairs[::2] = weight
    turned = weight.mT.contiguous().mT
    for other in (larger[:, :, 1:-1, 1:-1], line[1:].view(weight.shape), pairs[::2], turned):
        out = poisoned(want)
        op(x, other, out=out, **inputs)
        assert torch.equal(out, want)


def test_channels_at_any_address_are_copied() -> None:
    """TMA does not move them, and there is no other kernel."""
    made = CASES["3x3"]
    op = made.program(made.shapes[0][2])
    x, weight, inputs = tensors(made, 0, op)
    want = op(x, weight, **inputs)
    wide = last(torch.full((2, 144, 56, 56), float("nan"), device="cuda", dtype=torch.float16))
    for first in (1, 4, 8):
        wide[:, first : first + 96] = x
        assert torch.equal(op(wide[:, first : first + 96], weight, **inputs), want)


@pytest.mark.parametrize(("channels", "taps"), [(62, 3), (64, 12)])
def test_f32_that_the_kernel_refuses_is_left_to_cutlass(channels, taps) -> None:
    """Whose products are TF32: their accesses stay within a group."""
    op = evt.conv2d("D = silu(acc + bias)", padding=taps // 2, groups=channels)
    generator = torch.Generator("cuda").manual_seed(1)
    x = last(random((3, channels, 17, 19), "f32", generator))
    weight, bias = random((channels, 1, taps, taps), "f32", generator, 1 / taps), random((channels,), "f32", generator)
    plans = plan_kernels(op.request, bind(op.request, x, weight, {"bias": bias}, {}), device_target(0))
    assert {plan.route for plan in plans} == {"conv-evt-2x"}
    want = op.reference(x, weight, float64=True, bias=bias)
    assert distance(op(x, weight, bias=bias), want, F32, operand=F32) <= 1.0


def test_few_images_take_a_unit_of_one_row() -> None:
    """One program, and the unit of a thread by the number of images; weights lie as PyTorch has them."""
    op = evt.conv2d("D = relu(acc + bias)", padding=3, groups=384)
    taken = []
    for images in (1, 64):
        generator = torch.Generator("cuda").manual_seed(images)
        x = last(random((images, 384, 14, 14), "f16", generator))
        weight, bias = random((384, 1, 7, 7), "f16", generator, 0.1), random((384,), "f16", generator)
        out = poisoned(x)
        op(x, weight, out=out, bias=bias)
        want = functional.conv2d(x.double(), weight.double(), bias.double(), padding=3, groups=384).relu()
        assert distance(out, want, F16, operand=F16, inside=F16) <= 1.0
        bound = bind(op.request, x, weight, {"bias": bias}, {})
        plans = plan_kernels(op.request, bound, device_target(0))
        taken.append(plans[fastest(plans, bound.sizes, 132)].config.name)
    few, many = (int(name.removeprefix("depthwise_").partition("x")[0]) for name in taken)
    assert few == 1 < many
