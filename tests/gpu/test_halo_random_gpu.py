"""Thousands of random convolutions by a handful of kernels, each against the reference in float64.

Shapes, strides, dilations, paddings and batches are drawn; inputs and outputs lie in larger tensors of NaN. A launch
that does not end is named, and ends the process, for nothing else would.
"""

from __future__ import annotations

import math
import os
import random
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pytest
import torch

import evt
from evt.compilation import KernelSource
from evt.ir.convolution import Convolution
from evt.ir.dtype import B1, BY_NAME
from evt.reference.compare import distance
from evt.request import typed_graph
from evt.runtime.arguments import bind
from evt.runtime.kernels import device_target, plan_kernels
from evt.runtime.plans import kernel_sources
from tests.gpu.builds import build_selected
from tests.support.convolutions import convolution, last

pytestmark = pytest.mark.gpu

#: The most multiply-adds of a reference, and the time limit of a launch in seconds.
MOST_WORK, PATIENCE = 2 * 10**9, 30.0
#: Products of a sum that is as exact as any.
LONG = 8192


@dataclass(frozen=True)
class Kernel:
    """A program, the type of A and B, and the one configuration in which it is compiled."""

    text: str
    dtype: str
    config: str
    operation: str = "conv2d"
    route: str = "conv-halo-3x"
    channels: int = 64  # of a problem that it serves, in some groups
    groups: int = 1
    #: The taps, strides and dilations that a depthwise kernel is made for.
    filter: tuple[tuple[int, int], tuple[int, int], tuple[int, int]] | None = None
    #: A gradient of convolutions with a stride.
    strided: bool = False

    @property
    def dimensions(self) -> int:
        return 3 if "3d" in self.operation else 2

    @property
    def filters(self) -> int:
        return 3 if "taps" in self.route else 64

    @property
    def backwards(self) -> bool:
        return "dgrad" in self.operation

    def program(self, geometry: Mapping[str, Any]) -> evt.Program:
        return convolution(self.text, self.operation, route=self.route, config=self.config, **geometry)


KERNELS = {
    "f16": Kernel("D = relu(acc + bias + C)", "f16", "halo_232x64x64"),
    "e4m3": Kernel("out D: f16; D = acc + C", "e4m3", "halo_120x64x64"),
    "i8": Kernel("out D: bf16, E: i32[m, n]; E = acc; D = acc*0.5 + bias", "i8", "halo_176x64x32"),
    "dgrad": Kernel("D = where(z > 0, acc, 0)", "bf16", "halo_208x64x32", "conv2d_dgrad"),
    "dgrad-strides": Kernel(
        "out D, s: f32[n]; D = where(z > 0, acc, 0); s = sum[m](D)",
        "f16",
        "halo_176x64x64",
        "conv2d_dgrad",
        strided=True,
    ),
    "few": Kernel("D = relu(acc + bias + C)", "f16", "halo_208x64x32", route="conv-halo-padded-3x", channels=3),
    "volumes": Kernel("D = relu(acc + bias)", "bf16", "halo_152x64x32", "conv3d"),
    "shared-volumes": Kernel("D = relu(acc + bias + C)", "f16", "halo_shared_120x64x64", "conv3d", channels=256),
    "reductions": Kernel(
        "out D, s: f32[n], r: f32[m]; D = acc + C; s = sum[m](acc*acc); r = max[n](D)", "f16", "halo_88x64x16"
    ),
    "shared": Kernel(
        "out D, s: f32[n]; D = relu(acc + bias + C); s = sum[m](acc*acc)", "f16", "halo_shared_136x64x64", channels=256
    ),
    "shared-i8": Kernel(
        "out D: bf16, E: i32[m, n]; E = acc; D = acc*0.5 + bias", "i8", "halo_shared_64x64x64", channels=256
    ),
    "bits": Kernel(
        "in keep: b1[m, n]; out D, above: b1[m, n]; above = acc > 0; D = where(keep, acc + C, 0)",
        "bf16",
        "halo_224x64x64",
    ),
    "depthwise": Kernel(
        "out D, s: f32[n], r: f32[m]; D = relu(acc + bias + C); s = sum[m](acc*acc); r = max[n](D)",
        "f16",
        "depthwise_2x7",
        route="conv-depthwise-3x",
        filter=((3, 3), (1, 1), (1, 1)),
    ),
    "depthwise-rows": Kernel(
        "D = relu(acc + bias + C)",
        "bf16",
        "depthwise_4x7",
        route="conv-depthwise-3x",
        filter=((5, 7), (2, 1), (1, 1)),
    ),
    "depthwise-bits": Kernel(
        "in keep: b1[m, n]; out D, above: b1[m, n]; above = acc > 0; D = where(keep, acc + C, 0)",
        "f16",
        "depthwise_1x5",
        route="conv-depthwise-3x",
        filter=((2, 3), (1, 2), (3, 2)),
    ),
    "depthwise-dgrad": Kernel(
        "D = where(z > 0, acc, 0)",
        "bf16",
        "depthwise_2x8",
        "conv2d_dgrad",
        "conv-depthwise-3x",
        filter=((3, 5), (1, 1), (1, 1)),
    ),
    "groups": Kernel("D = relu(acc + bias + C)", "f16", "halo_groups_208x64x64", route="conv-halo-groups-3x", groups=8),
    "groups-reductions": Kernel(
        "out D, s: f32[n], r: f32[m]; D = acc + C; s = sum[m](acc*acc); r = max[n](D)",
        "bf16",
        "halo_groups_120x64x32",
        route="conv-halo-groups-3x",
        groups=8,
    ),
    "groups-dgrad": Kernel(
        "D = where(z > 0, acc, 0)",
        "bf16",
        "halo_groups_176x64x64",
        "conv2d_dgrad",
        "conv-halo-groups-3x",
        groups=8,
    ),
    "group": Kernel(
        "out D, s: f32[n], r: f32[m]; D = relu(acc + bias + C); s = sum[m](acc*acc); r = max[n](D)",
        "f16",
        "halo_group_216x64x64",
        route="conv-halo-groups-3x",
        channels=256,
        groups=2,
    ),
    "group-dgrad": Kernel("D = acc + C", "f16", "halo_group_120x64x32", "conv2d_dgrad", "conv-halo-groups-3x", 256, 2),
    "words": Kernel("D = relu(acc + bias + C)", "f16", "halo_words_120x64x32", route="conv-halo-words-3x", channels=30),
    "words-odd": Kernel(
        "D = relu(acc + bias + C)", "f16", "halo_words_120x64x32", route="conv-halo-words-3x", channels=29
    ),
    "words-wide": Kernel(
        "out D, s: f32[n], r: f32[m]; D = acc + C; s = sum[m](acc*acc); r = max[n](D)",
        "bf16",
        "halo_words_104x64x64",
        route="conv-halo-words-3x",
        channels=62,
    ),
    "taps": Kernel("D = relu(acc + bias + C)", "f16", "halo_taps_256x64x64", route="conv-halo-taps-3x"),
    "taps-reductions": Kernel(
        "out D, s: f32[n], r: f32[m]; D = acc + C; s = sum[m](acc*acc); r = max[n](D)",
        "bf16",
        "halo_taps_96x64x32",
        route="conv-halo-taps-3x",
        channels=32,
    ),
    "implicit": Kernel(
        "out D, s: f32[n]; D = gelu(acc + bias) + C; s = sum[m](acc*acc)",
        "f16",
        "implicit_pingpong_128x128x64",
        route="conv-evt-3x",
    ),
    "implicit_light": Kernel("D = relu(acc + bias + C)", "bf16", "implicit_pingpong_128x192x64", route="conv-evt-3x"),
}
Problem = tuple[Mapping[str, Any], tuple[int, ...], tuple[int, ...]]  # the geometry, the shapes of A and B


def drawn(draw: random.Random, kernel: Kernel) -> Problem | None:
    """Return a problem, or None for sizes that make none."""
    backwards, each_one = kernel.backwards, range(kernel.dimensions)
    taps = [draw.choice((1, 1, 2, 3, 3, 3, 4, 5, 7)) for _ in each_one]
    dilation = [draw.choice((1, 1, 1, 2, 3, 13)) for _ in each_one]
    stride = [1 if backwards else draw.choice((1, 1, 1, 2, 3, 7)) for _ in each_one]
    if kernel.strided:
        stride = list(draw.choice(((2, 2), (2, 2), (2, 1), (1, 2), (1, 4), (3, 1))))
    if kernel.filter:
        taps, stride, dilation = map(list, kernel.filter)
    reach = [d * (t - 1) for t, d in zip(taps, dilation, strict=True)]
    most = [each + (0 if backwards else 3) for each in reach]
    pads = [(each // 2, each - each // 2) for each in reach]
    if draw.random() < 0.5:
        pads = [(draw.randint(0, each), draw.randint(0, each)) for each in most]
    geometry = {"stride": stride, "padding": pads, "dilation": dilation}
    sizes = [draw.choice((draw.randint(1, 12), draw.randint(1, 40), draw.randint(1, 200))) for _ in each_one]
    images = draw.choice((1, 1, 2, 3, 5, 8, 17, 40, 130))
    channels = 128 // BY_NAME[kernel.dtype].bits * draw.choice((draw.randint(1, 8), draw.randint(1, 40)))
    if "padded" in kernel.route:
        channels = draw.randint(1, 8)
    if "words" in kernel.route:
        channels = 2 * draw.randint(2, kernel.config.count("64") * 16) - kernel.channels % 2
    columns = 8 * draw.choice((draw.randint(1, 9), draw.randint(1, 40)))
    if "taps" in kernel.route:
        columns, stride = draw.randint(1, 7), [1] * kernel.dimensions
    groups = 1
    if kernel.groups > 1:
        groups = draw.choice((2, 3, 4, 7, 8, 9, 16, 30, 32))
        narrow = "groups" in kernel.config
        inner, outer = (
            draw.choice((4, 8, 24, draw.randint(1, 32))) if narrow else 8 * draw.randint(5, 30) for _ in "AB"
        )
        channels, columns, geometry["groups"] = groups * inner, groups * outer, groups
    a = (images, channels, *sizes)
    b = (channels, columns // groups, *taps) if backwards else (columns, channels // groups, *taps)
    if kernel.filter:
        geometry["groups"], b = channels, (channels, 1, *taps)
    try:
        problem = Convolution.of(kernel.operation, geometry).problem(a, b)
    except evt.ArgumentError:
        return None
    return (geometry, a, b) if problem.multiplications <= MOST_WORK else None


def values(shape: tuple[int, ...], dtype: str, generator: torch.Generator, scale: float = 1.0) -> torch.Tensor:
    found = BY_NAME[dtype]
    if not found.is_float:
        return torch.randint(-9, 10, shape, device="cuda", generator=generator).to(getattr(torch, found.torch))
    made = torch.randn(shape, device="cuda", generator=generator, dtype=torch.float64) * scale
    return made.to(getattr(torch, found.torch))


def poisoned(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Return a tensor of NaN, or of a pattern that is unlikely, an image with channels last."""
    made = torch.empty(shape, device="cuda", dtype=dtype)
    made = last(made) if len(shape) > 3 else made
    return made.fill_(math.nan if dtype.is_floating_point else 0x55)


MARGIN = 16


def packed(shape: tuple[int, ...]) -> torch.Tensor:
    """Return poisoned bytes of packed bits, whose rows lie in longer ones, at any address."""
    made = torch.full((*shape[:-1], shape[-1] + 3), 0x55, device="cuda", dtype=torch.uint8)
    return made[..., 1:-2]


def embedded(shape: tuple[int, ...], dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Return a poisoned tensor with more channels, and the ones in its middle."""
    wide = poisoned((shape[0], shape[1] + 2 * MARGIN, *shape[2:]), dtype)
    return wide, wide[:, MARGIN : MARGIN + shape[1]]


def within(tensor: torch.Tensor) -> torch.Tensor:
    """Return the same numbers between channels that must not be read."""
    _, middle = embedded(tuple(tensor.shape), tensor.dtype)
    return middle.copy_(tensor)


def operands(kernel: Kernel, problem: Problem, seed: int) -> tuple[Any, Any, Any, dict[str, Any]]:
    """Return the program and its arguments."""
    geometry, a, b = problem
    generator = torch.Generator("cuda").manual_seed(seed)
    op = kernel.program(geometry)
    x = within(last(values(a, kernel.dtype, generator)))
    inner = a[1] // geometry.get("groups", 1)
    weight = last(values(b, kernel.dtype, generator, (inner * math.prod(b[2:])) ** -0.5))
    sizes = op.request.convolution.problem(a, b)
    images, *pixels = sizes.leads["m"]
    inputs = {}
    for value in typed_graph(op.request, kernel.dtype, kernel.dtype).inputs:
        shape = (images, sizes.columns, *pixels) if value.is_tile else (sizes.columns,)
        if value.dtype == B1:
            uniform = torch.rand((images, *pixels, sizes.columns), device="cuda", generator=generator)
            keep = evt.pack_bits(uniform < 0.6)
            inputs[value.name] = packed(tuple(keep.shape)).copy_(keep)
            continue
        made = values(shape, str(value.dtype), generator)
        inputs[value.name] = within(last(made)) if value.is_tile else made
    return op, x, weight, inputs


def plans(kernel: Kernel, problem: Problem, seed: int = 0) -> tuple[Any, ...]:
    op, x, weight, inputs = operands(kernel, problem, seed)
    return plan_kernels(op.request, bind(op.request, x, weight, inputs, {}), device_target(0))


def problems(kernel: Kernel, count: int, seed: int) -> Iterator[tuple[int, Problem]]:
    """Yield ``count`` problems that the kernel's tiles fit, each with a seed."""
    draw = random.Random(seed)
    while count:
        problem = drawn(draw, kernel)
        if problem is None:
            continue
        geometry, *shapes = problem
        try:
            kernel.program(geometry).plan("sm90", kernel.dtype, kernel.dtype, shapes=tuple(shapes))
        except evt.TargetError:
            continue
        yield draw.randrange(2**31), problem
        count -= 1


def sources_of(name: str, launches: int) -> list[KernelSource]:
    """Return the kernel, as it is built for a problem that each of them takes."""
    kernel = KERNELS[name]
    pair = (kernel.channels, kernel.filters) if kernel.backwards else (kernel.filters, kernel.channels)
    a = (2, kernel.channels, *[14] * kernel.dimensions)
    b = (pair[0], pair[1] // kernel.groups, *[3] * kernel.dimensions)
    if kernel.filter:
        taps, stride, dilation = kernel.filter
        geometry = {"stride": stride, "dilation": dilation, "padding": 1, "groups": kernel.channels}
        return kernel_sources(plans(kernel, (geometry, a, (kernel.channels, 1, *taps))))
    geometry = {"padding": 1, "stride": 2 if kernel.strided else 1, "groups": kernel.groups}
    return kernel_sources(plans(kernel, (geometry, a, b)))


@pytest.fixture(scope="session")
def refused(request):
    return build_selected(request, test_random_problems, sources_of)


def ends(event: torch.cuda.Event) -> bool:
    """Wait for a launch; return whether it ended in time."""
    until = time.monotonic() + PATIENCE
    while not event.query():
        if time.monotonic() > until:
            return False
        time.sleep(1e-4)
    return True


@pytest.mark.parametrize("launches", [100, pytest.param(2000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", list(KERNELS))
def test_random_problems(name, launches, record, refused, capfd) -> None:
    kernel = KERNELS[name]
    for source in sources_of(name, launches):
        assert source not in refused, refused[source]
    wrong: list[str] = []
    worst = 0.0
    for seed, problem in problems(kernel, launches, launches):
        what = f"{name}, seed {seed}: {problem}"
        op, x, weight, inputs = operands(kernel, problem, seed)
        want = op.reference(x, weight, float64=True, **inputs)
        want = [want] if len(op.outputs) == 1 else list(want)
        dtypes = [output.dtype for output in typed_graph(op.request, kernel.dtype, kernel.dtype).outputs]
        wides, buffers = [], []
        for exact, dtype in zip(want, dtypes, strict=True):
            element, shape = getattr(torch, dtype.torch), tuple(exact.shape)
            if dtype == B1:
                wide, buffer = None, packed(shape)
            else:
                wide, buffer = embedded(shape, element) if len(shape) > 3 else (None, poisoned(shape, element))
            wides.append(wide)
            buffers.append(buffer)
        torch.cuda.synchronize()
        op(x, weight, out=buffers[0] if len(buffers) == 1 else tuple(buffers), **inputs)
        event = torch.cuda.Event()
        event.record()
        if not ends(event):
            with capfd.disabled():
                print(f"\na launch does not end: {what}", flush=True)
            os._exit(1)
        errors = [
            distance(got, exact, dtype, operand=BY_NAME[kernel.dtype], inside=dtype if dtype.bits == 16 else None)
            for got, exact, dtype in zip(buffers, want, dtypes, strict=True)
        ]
        untouched = [
            torch.equal(bits(wide[:, part]), bits(poisoned(tuple(wide[:, part].shape), wide.dtype)))
            for wide in wides
            if wide is not None
            for part in (slice(MARGIN), slice(-MARGIN, None))
        ]
        worst = max(worst, *errors)
        if max(errors) > _most(problem) or not all(untouched):
            wrong.append(f"{what}: {errors}, {untouched}")
    record((name, kernel.route, kernel.dtype, f"{launches} random problems", f"{worst:.2f}, {len(wrong)} wrong"))
    assert not wrong, "\n".join([f"{len(wrong)} of {launches}", *wrong[:10]])


def _most(problem: Problem) -> float:
    """Return how far results may be off: tensor cores cut off sums, which of many products are less exact in f32."""
    _, (_, channels, *_), (_, _, *taps) = problem
    return max(1.0, channels * math.prod(taps) / LONG)


def bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().view(torch.uint8)
