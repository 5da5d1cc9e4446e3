"""Which of the kernels that are built serves a size: the ones that were the fastest on an H200 or H100."""

from __future__ import annotations

import pytest

import evt
from evt.ir.convolution import ConvolutionProblem
from evt.launch.halo_call import Call
from evt.plan import Plan, survey
from evt.plan.cards import find_card
from evt.plan.configurations.config import Config, Speed
from evt.plan.geometry.halo_schedule import scheduled
from evt.plan.speed import duration, fastest, time
from evt.request import packed_problem, problem_sizes

MULTIPROCESSORS = 132
EPILOGUE = "D = relu(acc + bias + residual)"


def plan_of(op: evt.Program, a: tuple[int, ...], b: tuple[int, ...], card: str) -> Plan:
    """Return the kernel that serves operands of these shapes on a card."""
    plans = survey(packed_problem(op.request, "sm90", "f16", "f16", (a, b)), op.request.settings.route).defaults
    return plans[fastest(plans, problem_sizes(op.request, (a, b)), find_card(card))]


def taken(op: evt.Program, a: tuple[int, ...], b: tuple[int, ...], card: str = "h100") -> str:
    """Return its configuration."""
    return plan_of(op, a, b, card).config.name


#: (m, n, k): the fastest of CUTLASS's default configurations, in interleaved runs on an H200.
PRODUCTS = {
    (6304, 3072, 768): "pingpong_192x128x64_1x2",
    (16384, 1024, 1024): "pingpong_128x128x64",
    (8192, 11008, 4096): "pingpong_192x128x64_1x2",
    (2048, 4096, 11008): "pingpong_128x128x64",
    (512, 4096, 4096): "pingpong_128x128x64",
    (128, 4096, 4096): "pingpong_64x64x64",
    (64, 8192, 8192): "pingpong_64x64x64",
    (16, 4096, 4096): "pingpong_64x64x64",
    (12544, 2048, 512): "pingpong_192x128x64_1x2",
    (200704, 128, 512): "pingpong_128x128x64",
}


@pytest.mark.parametrize("size", PRODUCTS)
def test_products(size) -> None:
    m, n, k = size
    assert taken(evt.linear(EPILOGUE, route="stock"), (m, k), (n, k), "h200") == PRODUCTS[size]


#: (m, n, k): the configuration of the least estimate, within 5 % of the fastest one where an H100 or H200 measured it.
OWN_PRODUCTS = {
    (4096, 4096, 4096): "own_cooperative_256x128x64_1x2",
    (8192, 6144, 4096): "own_pingpong_128x192x64",
    (2048, 7168, 8192): "own_pingpong_152x128x64",
    (8192, 3072, 768): "own_pingpong_192x128x64_1x2",
    (4096, 3072, 768): "own_pingpong_152x128x64",
    (2048, 768, 3072): "own_cooperative_96x128x64",
    (3152, 1024, 4096): "own_cooperative_200x128x64",
    (1024, 7168, 8192): "own_pingpong_152x128x64",
    (512, 4096, 4096): "own_cooperative_128x128x64",
    (512, 6144, 4096): "own_pingpong_128x192x64",
    (1024, 3072, 768): "own_pingpong_96x128x64",
    (64, 1280, 8192): "own_cooperative_64x128x64_1x1x4",
    (128, 4096, 4096): "own_pingpong_64x64x64",
    (256, 768, 3072): "own_cooperative_64x128x64_1x1x4",
    (16, 4096, 14336): "own_stages_16x64x64_1x1x2",
}


@pytest.mark.parametrize("size", OWN_PRODUCTS)
@pytest.mark.parametrize("route", [None, "own"])
def test_own_products(size, route) -> None:
    m, n, k = size
    assert taken(evt.linear(EPILOGUE, route=route), (m, k), (n, k)) == OWN_PRODUCTS[size]


#: (m, n, k) of gated units with two weights: within 4 % of the fastest configuration on an H200.
GATED = {
    (1000, 5632, 2048): "own_pingpong_168x128x64",
    (1000, 11008, 4096): "own_pingpong_168x128x64",
    (2000, 4864, 896): "own_pingpong_168x128x64",
    (1000, 14336, 4096): "own_cooperative_128x256x64",
    (1536, 5632, 2048): "own_cooperative_128x256x64",
}


@pytest.mark.parametrize("size", GATED)
def test_gated_units(size) -> None:
    m, n, k = size
    assert taken(evt.linear("D = silu(acc)*matmul(A, up)"), (m, k), (n, k)) == GATED[size]


#: (images, channels, filters, pixels, filter, stride) as measured.
CONVOLUTIONS = {
    (256, 64, 64, 56, 3, 1): "implicit_128x64x64_3blocks",
    (32, 64, 64, 56, 3, 1): "implicit_128x64x64_3blocks",
    (256, 128, 128, 28, 3, 1): "implicit_pingpong_128x128x64",
    (256, 128, 128, 56, 3, 2): "implicit_pingpong_128x128x64",
    (256, 256, 256, 14, 3, 1): "implicit_pingpong_128x128x64",
    (256, 256, 256, 28, 3, 2): "implicit_pingpong_128x128x64",
    (32, 256, 256, 14, 3, 1): "implicit_pingpong_128x128x64",
    (256, 512, 512, 7, 3, 1): "implicit_pingpong_128x128x64",
    (32, 512, 512, 7, 3, 1): "implicit_own_128x64x64_1x2",
    (256, 256, 512, 56, 1, 2): "implicit_pingpong_128x128x64",
    (8, 320, 320, 64, 3, 1): "implicit_128x160x64_2blocks",
    (8, 320, 320, 64, 3, 2): "implicit_own_128x160x64",
    (2, 320, 320, 64, 3, 2): "implicit_own_128x64x64_1x2",
    (8, 320, 640, 32, 3, 1): "implicit_128x160x64_2blocks",
    (8, 640, 640, 32, 3, 1): "implicit_128x160x64_2blocks",
    (8, 640, 640, 32, 3, 2): "implicit_own_128x128x64",
    (2, 640, 640, 32, 3, 2): "implicit_own_128x64x64_1x2",
    (8, 640, 1280, 16, 3, 1): "implicit_own_128x160x64",
    (128, 96, 96, 27, 5, 1): "implicit_own_256x96x32",
    (8, 96, 96, 28, 3, 1): "implicit_own_128x96x32",
    (128, 192, 192, 28, 3, 1): "implicit_pingpong_128x192x64",
    (128, 384, 384, 14, 3, 1): "implicit_pingpong_128x192x64",
    (8, 1280, 1280, 16, 3, 1): "implicit_own_128x160x64",
    (2, 1280, 1280, 16, 3, 1): "implicit_own_128x64x64_1x2",
    (8, 2560, 1280, 16, 3, 1): "implicit_own_128x160x64",
    (1, 64, 64, 56, 3, 1): "implicit_own_128x64x64",
    (1, 512, 512, 7, 3, 1): "implicit_own_128x64x64_1x2",
    (4, 128, 128, 28, 3, 1): "implicit_own_128x64x64_1x2",
    (256, 3, 64, 224, 7, 2): "implicit_128x64x32_3blocks",
    (128, 3, 96, 224, 11, 4): "implicit_own_256x96x64",
    (256, 256, 64, 56, 1, 1): "pingpong_64x64x64",
    (256, 512, 128, 28, 1, 1): "pingpong_128x128x64",
    (256, 2048, 512, 7, 1, 1): "pingpong_128x128x64",
    (256, 64, 256, 56, 1, 1): "cooperative_128x128x64",
    (256, 128, 512, 28, 1, 1): "cooperative_128x128x64",
    (256, 512, 2048, 7, 1, 1): "pingpong_192x128x64_1x2",
    (1, 2048, 512, 7, 1, 1): "pingpong_64x64x64",
}


def taken_for(layer: tuple[int, ...], **settings: str) -> str:
    """Return the configuration of the kernel that serves a layer: images, channels, filters, pixels, filter, stride."""
    images, channels, filters, pixels, size, stride = layer
    op = evt.conv2d(EPILOGUE, stride=stride, padding=size // 2, **settings)
    shapes = (images, channels, pixels, pixels), (filters, channels, size, size)
    assert isinstance(op.request.convolution.problem(*shapes), ConvolutionProblem)
    return taken(op, *shapes, "h200")


@pytest.mark.parametrize("layer", CONVOLUTIONS)
def test_convolutions(layer) -> None:
    assert taken_for(layer, route="evt") == CONVOLUTIONS[layer]


#: (images, channels, filters, pixels, filter, stride): the tiles of the halo kernel, wide ones where there are many.
HALOS = {
    (256, 64, 64, 56, 3, 1): "halo_224x64x64",
    (1, 64, 64, 56, 3, 1): "halo_64x64x64",
    (256, 128, 128, 28, 3, 1): "halo_208x64x64",
    (1, 128, 128, 28, 3, 1): "halo_64x64x64",
    (256, 256, 256, 14, 3, 1): "halo_216x64x64",
    (256, 128, 128, 56, 3, 2): "halo_208x64x64",
    (128, 96, 96, 27, 5, 1): "halo_208x64x32",
}


@pytest.mark.parametrize("layer", HALOS)
def test_halos(layer) -> None:
    assert taken_for(layer, route="own") == HALOS[layer]


#: Layers for which the kernels of both routes are built: the one that was the faster, or the own one of equal ones.
BOTH = {
    (8, 640, 640, 32, 3, 1): "implicit_128x160x64_2blocks",
    (2, 640, 640, 32, 3, 1): "halo_200x64x64",
    (8, 640, 1280, 16, 3, 1): "implicit_own_128x160x64",
    (2, 640, 1280, 16, 3, 1): "halo_104x64x64",
    (8, 1280, 1280, 16, 3, 1): "implicit_own_128x160x64",
    (2, 1280, 1280, 16, 3, 1): "halo_104x64x64",
    (2, 1280, 1280, 8, 3, 1): "halo_shared_128x64x64",
    (2, 2560, 1280, 16, 3, 1): "halo_104x64x64",
    (8, 1280, 1280, 8, 3, 1): "halo_128x64x64",
    (256, 512, 512, 7, 3, 1): "implicit_pingpong_128x128x64",
    (32, 512, 512, 7, 3, 1): "halo_112x64x64",
    (256, 128, 128, 56, 3, 2): "halo_208x64x64",  # not implicit_pingpong_128x128x64, within the error of the estimates
    (1, 64, 128, 160, 3, 2): "halo_104x64x64",  # as fast as implicit_own_128x64x64_1x2
    (16, 64, 128, 160, 3, 2): "halo_208x64x64",  # not halo_256x64x64, with fewer boxes in flight than groups of taps
    (256, 256, 256, 28, 3, 2): "implicit_pingpong_128x128x64",
    (1, 256, 256, 28, 3, 2): "halo_shared_64x64x64",
    (32, 512, 512, 14, 3, 2): "halo_112x64x64",
    (1, 512, 512, 14, 3, 2): "halo_shared_64x64x64",
    (1, 256, 512, 40, 3, 2): "halo_shared_64x64x64",
    (1, 512, 512, 7, 3, 1): "halo_shared_64x64x64",
    (256, 1024, 2048, 14, 1, 2): "implicit_pingpong_128x128x64",
    (1, 1024, 2048, 14, 1, 2): "halo_64x64x64",  # as fast as halo_shared_64x64x64
    # The halo kernel alone: with unusual sizes, or of one tap or few filters with a stride.
    (12, 256, 256, 14, 3, 1): "halo_104x64x64",
    (12, 360, 360, 20, 3, 1): "halo_152x64x64",  # with 720 bytes, pixels begin within lines of L2
    (4, 40, 40, 28, 7, 1): "halo_64x64x64",
    (256, 256, 512, 56, 1, 2): "halo_200x64x64",
    (32, 64, 64, 112, 3, 2): "halo_208x64x64",
}


@pytest.mark.parametrize("layer", BOTH)
def test_routes_together(layer) -> None:
    assert taken_for(layer) == BOTH[layer]


#: Layers of one tap, which the GEMM kernel and the halo kernel both compute: the lower estimate.
POINTWISE = {
    (1, 1024, 256, 14, 1, 1): "own_stages_32x64x64_1x1x4",
    (1, 2048, 512, 7, 1, 1): "own_stages_32x64x64_1x1x4",
    (4, 1024, 256, 14, 1, 1): "own_pingpong_32x64x64",
    (32, 1024, 512, 14, 1, 1): "own_pingpong_96x128x64",
    (32, 1024, 256, 14, 1, 1): "own_cooperative_96x128x64",
    (16, 2048, 512, 7, 1, 1): "own_pingpong_64x64x64",
    (32, 2048, 512, 7, 1, 1): "own_cooperative_64x128x64",
    (64, 2048, 512, 7, 1, 1): "own_cooperative_96x128x64",
    (1, 256, 1024, 14, 1, 1): "own_pingpong_32x64x64",
    (256, 512, 2048, 7, 1, 1): "own_pingpong_192x128x64_1x2",
    (256, 64, 64, 56, 1, 1): "halo_224x64x64",
}


@pytest.mark.parametrize("layer", POINTWISE)
def test_layers_of_one_tap(layer) -> None:
    assert taken_for(layer) == POINTWISE[layer]


#: The fastest kernels of `relu(acc + bias)` on an H200, 2026-11-29: images, channels, filters and pixels.
WITHOUT_C = {
    (256, 128, 512, 28): "halo_200x64x64",  # 72.0 us; own_cooperative_256x128x64_2x1 takes 81.4
    (32, 128, 512, 28): "halo_200x64x64",
    (256, 512, 256, 28): "own_pingpong_192x128x64_1x2",  # 84.0 us; halo_200x64x64 takes 91.3
    (256, 256, 1024, 14): "own_pingpong_192x128x64_1x2",
}


@pytest.mark.parametrize("layer", WITHOUT_C)
def test_layers_of_one_tap_without_c(layer) -> None:
    images, channels, filters, pixels = layer
    shapes = (images, channels, pixels, pixels), (filters, channels, 1, 1)
    assert taken(evt.conv2d("D = relu(acc + bias)"), *shapes, "h200") == WITHOUT_C[layer]


#: The fastest kernels of `relu(acc + bias)` after 1x1 filters of 8 channels on an H200, 2026-11-30: images, filters and
#: side.
FEW_CHANNELS = {
    (128, 13, 56): "halo_224x64x16",  # 24.4 us; a kernel of CUTLASS takes 90.1
    (64, 133, 48): "halo_192x64x16",  # 42.0 us; a kernel of CUTLASS takes 70.3
    (128, 90, 56): "multistage_128x128x32",  # 62.0 us; halo_224x64x16 takes 69.3
}


@pytest.mark.parametrize("layer", FEW_CHANNELS)
def test_few_channels_of_one_tap(layer) -> None:
    images, filters, side = layer
    shapes = (images, 8, side, side), (filters, 8, 1, 1)
    assert taken(evt.conv2d("D = relu(acc + bias)"), *shapes, "h200") == FEW_CHANNELS[layer]


#: The fastest kernels of gradients with a stride of 2 and a mask on an H200, 2026-11-30: images, channels of D, filters
#: and side; whether both consumers multiply the same pixels.
STRIDED = {
    (256, 512, 512, 14): ("halo_224x64x64", True),  # 103.9 us; 116.5 apart
    (200, 256, 256, 32): ("halo_128x64x64", True),  # 112.9 us; 126.0 apart
    (256, 256, 256, 28): ("halo_216x64x64", False),  # 111.1 us; 118.5 together
    (32, 512, 512, 14): ("halo_168x64x64", False),  # 22.3 us; halo_112x64x64 takes 23.8
    (100, 512, 256, 14): ("halo_224x64x64", False),  # 32.2 us; 34.9 together: pairs of filter blocks leave SMs idle
    (64, 320, 384, 28): ("halo_216x64x64", False),  # 53.8 us; halo_104x64x64 takes 68.8
    (128, 192, 256, 20): ("halo_224x64x64", False),  # 30.0 us; halo_112x64x64 takes 34.9
}


@pytest.mark.parametrize("layer", STRIDED)
def test_gradients_with_a_stride(layer) -> None:
    images, channels, filters, side = layer
    op = evt.conv2d_dgrad("in keep: b1[m, n]; D = where(keep, acc, 0)", stride=2, padding=1, output_padding=1)
    shapes = (images, filters, side // 2, side // 2), (filters, channels, 3, 3)
    plan, sizes = plan_of(op, *shapes, "h200"), problem_sizes(op.request, shapes)
    call = Call.of(plan, {**sizes, "tile_rows": 0, "tile_columns": 0})
    made = scheduled(call.multiplied, call.kernel, call.geometry, 132)
    assert (plan.config.name, made.cooperative) == STRIDED[layer]


#: (images, pixels, program) of depthwise convolutions of 384 channels and 7x7 taps: the pixels of a thread.
DEPTHWISE = {
    (64, 56, "D = acc"): "depthwise_4x7",
    (64, 14, "D = acc"): "depthwise_2x7",
    (1, 14, "D = acc"): "depthwise_1x7",
    (64, 56, "D = gelu(acc) * silu(bias*acc)"): "depthwise_2x7",  # it leaves registers to the epilogue
}


@pytest.mark.parametrize("layer", DEPTHWISE)
def test_depthwise_convolutions(layer) -> None:
    images, pixels, text = layer
    op = evt.conv2d(text, padding=3, groups=384)
    assert taken(op, (images, 384, pixels, pixels), (384, 1, 7, 7), "h200") == DEPTHWISE[layer]


def test_clusters_that_a_problem_does_not_fill_are_idle() -> None:
    pair = Config((128, 128, 64), "pingpong", (1, 2, 1))
    alone = Config((128, 128, 64), "pingpong")
    assert time(pair, 4096, 128, 512, 1, 16, 4) == 2 * time(alone, 4096, 128, 512, 1, 16, 4)
    assert time(pair, 4096, 256, 512, 1, 16, 4) == time(alone, 4096, 256, 512, 1, 16, 4)


def test_a_tile_takes_as_long_as_its_epilogue_moves_bytes() -> None:
    bound = Config((128, 128, 64), "pingpong", speed=Speed(bound=150))
    assert time(bound, 128, 128, 64, 1, 132, 4) == 128 * 128 * 600
    assert time(bound, 128, 128, 1024, 1, 132, 4) == 128 * 128 * 1024


#: Epilogues at 16384x1024x1024 by pingpong_128x128x64_2x1, relative to a bare store of D on an H200, 2026-11-21.
EPILOGUES = {
    "D = acc + bias": 1.01,
    "out D, s: f32[m]; D = acc; s = sum[n](acc)": 1.08,
    "out D, s: f32[n]; D = acc; s = sum[m](acc)": 1.22,
    "out D, s: f32; D = acc; s = max[m, n](abs(acc))": 1.09,
    "D = dropout(acc, 0.1, seed, offset)": 1.76,
}


@pytest.mark.parametrize("text", EPILOGUES)
def test_the_cost_of_an_epilogue(text) -> None:
    """Within 12 %: instructions count, and the other consumer hides some."""

    def us(text: str) -> float:
        op, shapes = evt.linear(text), ((16384, 1024), (1024, 1024))
        (found,) = survey(packed_problem(op.request, "sm90", "bf16", "bf16", shapes), "evt-3x").asked
        plan = found.plan(found.search_space["pingpong_128x128x64_2x1"])
        return duration(plan, problem_sizes(op.request, shapes), find_card("h200")).total

    assert us(text) / us("D = acc") == pytest.approx(EPILOGUES[text], rel=0.12)
