"""Convolutions that are expected to win: copies of images, first layers, volumes, depthwise ones."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch

from evt.fx.cost_model import LAUNCH

from .costs import row_of, rows_of
from .fusing import estimated

pytestmark = [
    pytest.mark.filterwarnings("ignore"),  # PyTorch's warning about a future removal
    pytest.mark.usefixtures("fresh_compiler"),
]


@pytest.mark.parametrize("padded", [False, True])
def test_inductor_writes_an_image_in_the_order_of_its_only_reader(padded: bool) -> None:
    """The copy of an image that Inductor computes takes the place of the image; a given image is copied."""

    def lost(read_again: bool | None) -> float:
        def convolved(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
            image = x if read_again is None else torch.sin(x)
            around = torch.nn.functional.pad(image, (1, 1, 1, 1)) if padded else image
            y = torch.relu(torch.conv2d(around, w, padding=0 if padded else 1))
            return (y, image) if read_again else (y,)

        torch._dynamo.reset()
        x, w = torch.zeros(1, 64, 32, 32).half(), torch.zeros(64, 64, 3, 3).half()
        benefit = row_of(convolved, x, w.to(memory_format=torch.channels_last)).benefit
        assert benefit is not None
        return benefit.lost

    assert lost(None) - lost(False) == pytest.approx(2 * 64 * 32 * 32 * 2 / 3.6e6 + LAUNCH)
    assert lost(True) == pytest.approx(lost(None))


@pytest.mark.parametrize("summed", [False, True])
def test_sums_over_pixels_and_what_reads_them_are_two_kernels(summed: bool) -> None:
    """As in the gradient of a batch norm: both kernels of Inductor would read the residual."""

    def normed(x: torch.Tensor, w: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        y = torch.conv2d(x, w, padding=1) + residual
        return torch.sigmoid(y - y.float().sum((0, 2, 3), keepdim=True).half() if summed else y)

    x = torch.zeros(8, 64, 32, 32).half().to(memory_format=torch.channels_last)
    w = torch.zeros(64, 64, 3, 3).half().to(memory_format=torch.channels_last)
    row = row_of(normed, x, w, x)
    assert row.benefit is not None
    assert ("sigmoid" in row.formula) == (not summed)
    assert row.benefit.bytes == pytest.approx((1 if summed else 2) * 8 * 64 * 32 * 32 * 2, rel=1e-3)


def test_what_a_region_reads_is_read_by_no_kernel_of_inductor_s() -> None:
    """A bias would be a further kernel: the shortcut's kernel reads the sum."""

    def block(x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        y = torch.conv2d(torch.conv2d(x, w, padding=1).sin(), w, bias, padding=1)
        return torch.conv2d(x, v) + y

    x = torch.zeros(2, 128, 64, 64).half().to(memory_format=torch.channels_last)
    w = torch.zeros(128, 128, 3, 3).half().to(memory_format=torch.channels_last)
    v = torch.zeros(128, 128, 1, 1).half().to(memory_format=torch.channels_last)
    rows = rows_of(block, x, w, torch.zeros(128).half(), v)
    (biased,) = (row for row in rows if "x0: f16[n]" in row.formula)
    assert biased.benefit is not None
    assert biased.fused
    assert biased.benefit.bytes == 2 * 2 * 128 * 64 * 64


@pytest.mark.parametrize("channels", [3, 1])
def test_first_layers_are_faster_than_the_library_s(channels: int) -> None:
    x = torch.zeros(16, channels, 224, 224).half().to(memory_format=torch.channels_last)
    w = torch.zeros(64, channels, 3, 3).half().to(memory_format=torch.channels_last)
    row = row_of(lambda x, w: torch.relu(torch.conv2d(x, w, padding=1)), x, w)
    assert row.benefit is not None
    result = 16 * 64 * 224 * 224 * 2
    saved = 2 * result / 3.6e6 + 1.5  # relu's kernel
    faster = 16 * 224 * 224 * (64 * 1.75e-6 - 7.5e-5)
    assert row.benefit.saved - row.benefit.lost == pytest.approx(saved + faster, rel=0.01)


@pytest.mark.parametrize(("images", "fused"), [(256, True), pytest.param(32, True, marks=pytest.mark.slow), (1, False)])
def test_a_first_layer_is_faster_without_anything_saved(images: int, fused: bool) -> None:
    """ResNet's, before the pooling which reads relu's input as well as its result: 267 us and 554 at batch 256."""
    x = torch.zeros(images, 3, 224, 224).half().to(memory_format=torch.channels_last)
    w = torch.zeros(64, 3, 7, 7).half().to(memory_format=torch.channels_last)

    def pooled(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        y = torch.relu(torch.conv2d(x, w, stride=2, padding=3))
        return torch.max_pool2d(y, 3, 2, 1)

    assert row_of(pooled, x, w).fused == fused


def test_a_first_layer_that_is_summed_takes_longer() -> None:
    """Its sums are combined as in other convolutions."""

    def first(x: torch.Tensor, w: torch.Tensor, sums: bool) -> tuple[torch.Tensor, ...]:
        y = torch.relu(torch.conv2d(x, w, stride=2, padding=1))
        return (y, y.sum((0, 2, 3))) if sums else (y,)

    gained = []
    for sums in (False, True):
        torch._dynamo.reset()
        x = torch.zeros(1, 3, 192, 192).half().to(memory_format=torch.channels_last)
        w = torch.zeros(32, 3, 3, 3).half().to(memory_format=torch.channels_last)
        row = row_of(partial(first, sums=sums), x, w)
        assert row.benefit is not None
        gained.append(row.benefit.saved - row.benefit.lost)
    elements = 96 * 96 * 32
    reading = elements * 2 / 3.6e6 + LAUNCH  # by a kernel of Inductor's
    assert gained[1] - gained[0] == pytest.approx(reading - elements * 1e-6, rel=0.01)


def test_first_layers_are_left_to_the_library_where_a_step_has_several_chunks() -> None:
    """A step of four columns is two chunks of 16 bytes, which the model of first layers does not know."""

    def first(x: torch.Tensor, w: torch.Tensor, stride: int) -> torch.Tensor:
        return torch.relu(torch.conv2d(x, w, stride=stride, padding=1))

    for channels, images, stride, fused in ((3, 64, 4, False), (3, 16, 2, True), (64, 4, 4, True)):
        torch._dynamo.reset()
        x = torch.zeros(images, channels, 192, 192).half().to(memory_format=torch.channels_last)
        w = torch.zeros(32, channels, 3, 3).half().to(memory_format=torch.channels_last)
        row = row_of(partial(first, stride=stride), x, w)
        assert row.fused == fused, row


@pytest.mark.parametrize(("dtype", "stride", "each"), [("half", 1, 5e-8), ("half", 2, 1.3e-7), ("float", 1, None)])
def test_depthwise_convolutions_are_faster_than_the_library_s(dtype: str, stride: int, each: float | None) -> None:
    """By our kernel: 65 us and 152 in bf16, which are further apart than is assumed; in f32 it may be slower."""
    kind = getattr(torch, dtype)
    x = torch.zeros(64, 96, 56, 56, dtype=kind).to(memory_format=torch.channels_last)
    w, b = torch.zeros(96, 1, 7, 7, dtype=kind), torch.zeros(96, dtype=kind)
    row = row_of(lambda x, w, b: torch.conv2d(x, w, b, stride, 3, 1, 96), x, w, b)
    assert row.benefit is not None
    assert row.fused
    elements = x.numel() // stride**2
    saved = elements * x.element_size() / 3.6e6 + LAUNCH  # the bias is added by a kernel of Inductor's
    faster = elements * 49 * each if each is not None else -0.1 * 2 * elements * x.element_size() / 3.6e6
    assert row.benefit.saved - row.benefit.lost == pytest.approx(saved + faster, rel=0.01)


@pytest.mark.parametrize(("channels", "filters", "taps", "lost"), [(64, 64, 1, 0.0), (640, 64, 3, 0.0)])
def test_convolutions_that_cutlass_computes_no_faster(channels: int, filters: int, taps: int, lost: float) -> None:
    def activated(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return torch.relu(torch.conv2d(x, w, padding=taps // 2))

    images, weights = torch.zeros(8, channels, 14, 14).half(), torch.zeros(filters, channels, taps, taps).half()
    given = (each.contiguous(memory_format=torch.channels_last) for each in (images, weights))
    row = row_of(activated, *given)
    assert row.benefit is not None
    assert row.benefit.lost == pytest.approx(lost)


@pytest.mark.parametrize(
    ("channels", "filters", "depth", "side"),
    [(384, 384, 5, 32), (384, 384, 10, 64), (384, 192, 20, 128), (192, 192, 20, 128), (192, 192, 20, 256)],
)
def test_volumes_are_faster_than_the_library_s(channels: int, filters: int, depth: int, side: int) -> None:
    """Layers of a video decoder that take 0.59 to 0.95 of cuDNN's time, with nothing but a bias saved."""
    shapes = ((1, channels, depth, side, side), (filters, channels, 3, 3, 3), (filters,))
    benefit = estimated(lambda x, w, b: torch.conv3d(x, w, b, padding=1), shapes, torch.bfloat16)
    assert benefit.wins


@pytest.mark.parametrize(
    ("shapes", "padding", "stride", "least", "most"),
    [
        (((8, 3, 16, 112, 112), (64, 3, 3, 7, 7)), (1, 3, 3), (1, 2, 2), 200, 300),  # 87 us on an H200, cuDNN 518
        (((1, 3, 9, 256, 256), (128, 3, 3, 3, 3)), 1, 1, 100, 200),  # 100, cuDNN 462
        (((2, 1, 64, 64, 64), (32, 1, 3, 3, 3)), 1, 1, 0, 25),  # 44, cuDNN 38: only the bytes of relu
    ],
)
def test_first_layers_of_volumes(shapes: Any, padding: Any, stride: Any, least: float, most: float) -> None:
    """Count on at most 80 TFLOP/s of the library, whose fastest layer reaches 78."""
    function = partial(torch.conv3d, padding=padding, stride=stride)
    benefit = estimated(lambda x, w: torch.relu(function(x, w)), shapes, torch.float16, replayed=True)
    assert least < benefit.saved - benefit.lost < most


@pytest.mark.parametrize(
    ("layer", "stride", "wins"),
    [
        ((32, 50, 50, 112), 1, True),  # 0.41 of torch.compile's time on an H100
        ((32, 100, 32, 56), 1, True),  # 0.44
        ((8, 51, 51, 112), 1, True),  # 0.46
        ((8, 128, 2, 64), 1, True),  # 0.70
        ((8, 96, 1, 112), 1, True),  # 0.43 of cuDNN's time on an H200, taps being rows of a tile
        ((1, 128, 3, 512), 1, True),  # 0.29
        ((8, 20, 20, 112), 2, False),  # 1.03
    ],
)
def test_unaligned_pixels(layer: tuple[int, ...], stride: int, wins: bool) -> None:
    """The library copies most of them first, and has no tile of fewer than 64 filters."""
    images, channels, filters, side = layer
    shapes = (images, channels, side, side), (filters, channels, 3, 3), (filters,)
    function = partial(torch.conv2d, stride=stride, padding=1)
    benefit = estimated(lambda x, w, b: torch.relu(function(x, w, b)), shapes, torch.float16, replayed=True)
    assert benefit.wins == wins


#: Microseconds of 1-d convolutions with an activation: images, columns, filters, taps, stride, dilation; evt's kernel,
#: and the library's without its copies, in chains of layers: NVIDIA H200, 2026-11-29, bf16.
LINES = {
    (16, 512, 9599, 512, 3, 2, 1): (187.8, 167.8),
    (16, 512, 2399, 512, 3, 2, 1): (57.7, 46.2),
    (16, 512, 599, 512, 2, 2, 1): (15.3, 16.7),
    (8, 80, 3000, 512, 3, 1, 1): (24.5, 28.4),
    (8, 512, 3000, 512, 3, 2, 1): (35.9, 36.7),
    (8, 128, 8192, 128, 3, 1, 5): (13.6, 16.1),
}


def line(images: int, channels: int, length: int, filters: int, taps: int, stride: int, dilation: int) -> Any:
    """Return a convolution of one dimension with an activation, and its operands."""

    def convolved(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return torch.relu(torch.nn.functional.conv1d(x, w, stride=stride, padding=dilation, dilation=dilation))

    return convolved, torch.zeros(images, channels, length).bfloat16(), torch.zeros(filters, channels, taps).bfloat16()


@pytest.mark.parametrize("sizes", LINES)
def test_lines_gain_about_the_measured_time(sizes: Any) -> None:
    """The library turned the image, the filter and the result at 2.0e6 to 2.8e6 bytes per microsecond."""
    call, x, w = line(*sizes)
    row = row_of(call, x, w)
    own, library = LINES[sizes]
    result = call(x.to("meta"), w.to("meta"))
    turned, copied = (4 * sum(each.numel() for each in tensors) for tensors in ((x, w, result), (x, w)))
    assert row.fused
    assert row.benefit is not None
    measured = library - own + (turned - copied) / 2.4e6 + row.benefit.bytes / 3.6e6
    assert row.benefit.gain < 1.15 * measured + 3 * LAUNCH


#: Microseconds of depthwise convolutions of one dimension: images, channels, columns, taps; evt's kernel, and PyTorch's
#: without its copies: NVIDIA H200, 2026-11-29, bf16.
DEPTHWISE_LINES = {
    (8, 768, 512, 7): (9.0, 39.3),
    (4, 2048, 2048, 3): (28.7, 171.2),
    (1, 384, 300, 9): (2.1, 3.0),
    (8, 512, 400, 31): (9.6, 34.8),
    (4, 1536, 1024, 4): (10.5, 67.6),
}


@pytest.mark.parametrize("sizes", DEPTHWISE_LINES)
def test_depthwise_lines_gain_at_most_the_measured_time(sizes: Any) -> None:
    images, channels, length, taps = sizes
    x, w = torch.zeros(images, channels, length).bfloat16(), torch.zeros(channels, 1, taps).bfloat16()
    row = row_of(lambda x, w: torch.relu(torch.conv1d(x, w, padding=taps // 2, groups=channels)), x, w)
    own, library = DEPTHWISE_LINES[sizes]
    assert row.benefit is not None
    assert row.benefit.gain < library - own + row.benefit.bytes / 3.6e6 + LAUNCH


def test_a_line_of_one_tap_is_a_product_of_the_library() -> None:
    """The library turns no tensor for it, and evt's kernel needs a copy of the image."""
    x, w = torch.zeros(16, 256, 800).bfloat16(), torch.zeros(256, 256, 1).bfloat16()
    row = row_of(lambda x, w: torch.relu(torch.conv1d(x, w)), x, w)
    assert "E1017" in row.reason


def test_gradients_of_lines_gain_by_what_the_library_turns() -> None:
    call, x, w = line(8, 128, 8192, 128, 3, 1, 1)
    with torch.enable_grad():
        assert row_of(call, x, w.requires_grad_()).fused
