"""One small launch of every kind of kernel, as a program for compute-sanitizer: ``python tests/gpu/launches.py``.

Sizes are no multiples of the tiles. Each kind is compared with the reference; the names of the launched ones are
printed.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial

import torch
from torch.nn import functional

import evt
from evt.compilation import build
from evt.diagnostics import Source
from evt.ir.dtype import B1, BF16, from_torch_name
from evt.program import program_of
from evt.reference.compare import error, limit
from evt.request import typed_graph
from evt.runtime.arguments import bind
from evt.runtime.group_norm import group_norm
from evt.runtime.kernels import device_target, plan_kernels
from evt.runtime.plans import kernel_sources

Call = tuple[evt.Program, torch.Tensor, torch.Tensor, dict[str, torch.Tensor]]

REDUCED = """
    out D, rows: f32[m], columns: f32[n], amax: f32, mask: b1[m, n]
    D = relu(acc + bias + C)
    rows = sum[n](D)
    columns = max[m](D)
    amax = max[m, n](abs(D))
    mask = D > 0
"""
SUMMED = """
    out D, E: f32[m, n], rows: f32[m], columns: f32[n], amax: f32
    E = acc + bias
    D = relu(E + C)
    rows = sum[n](D)
    columns = max[m](D)
    amax = max[m, n](abs(D))
"""
PAIRED = """
    out D: f16[m, n/2], scales: f32[m, n/32]
    D = silu(even(acc, 32)) * odd(acc, 32)
    scales = max[n%32](abs(acc))
"""
NEIGHBOURS = "out D: f16[m, n/2]; D = silu(even(acc))*odd(acc)"
DUAL = "out D: f16; D = silu(acc)*matmul(A, up)"
PLACED = "out D, mask: b1[m, n]; mask = acc + bias > 0; D = dropout(acc + bias, 0.5, 1234, 7) + C"
DROPOUT = "D = dropout(acc + bias, 0.5, 1234, 7)"
PLAIN = "D = silu(acc + bias) + C"
TYPED = "in bias: f16[n], C: f16[m, n]; out D: f16; D = silu(acc + bias) + C"
UPDATED = """
    in w: f32[m, n], v: f32[m, n], C: f16[m, n]; out D: f16[m, n], W: f32[m, n], V: f32[m, n]
    V = 0.5*v + acc; W = w - V; D = W + C
"""
WEIGHED = "in g: f16[n, k/128], z: i8[n, k/128]; B = g*(B - z); D = silu(acc + bias)"
BYTES = "linear(A: f16[m, k], B: i8[n, k]); in q: f16[n]; B = q[n]*B; D = silu(acc + bias)"
SCALED = "in r: f16[m, k/128], c: f16[n/128, k/128]; out D: f16; A = r*A; B = c*B; D = silu(acc)"
SCALED_ROWS = """
    in r: f16[m, k/128], c: f16[n/128, k/128], u: f16[m], bias: f16[n], C: f16[m, n]; out D, E: f16
    A = r*A; B = c*B; E = u*acc + bias; D = silu(E) + C
"""
#: Groups of rows whose offsets are on the GPU: the program, and the types of A and B.
EXPERTS = {
    "ragged": ("D = silu(acc)", torch.float16, torch.float16),
    "ragged-bytes": (
        "gemm(A: f16[m, k], B: i8[n, k]); in c: f16[n]; B = c[n]*B; D = silu(acc)",
        torch.float16,
        torch.int8,
    ),
    "ragged-factors": (
        "gemm(A: e4m3[m, k], B: e4m3[n, k]); in r: f16[m, k/128], c: f16[n/128, k/128]; out D: f16[m, n/2]; "
        "A = r*A; B = c*B; D = silu(even(acc))*odd(acc)",
        torch.float8_e4m3fn,
        torch.float8_e4m3fn,
    ),
    "ragged-packed": (
        "gemm(A: f16[m, k], B: i4[n, k]); in c: f16[n, k/128], z: i8[n, k/128]; B = c*(B - z); D = silu(acc)",
        torch.float16,
        torch.int32,
    ),
}
#: The rows of each group of a grouped product.
GROUPS = (37, 128, 0, 5, 200)
WORKED = "A = relu(s[k]*A + t[k]); D = silu(acc + bias) + C"


def random(*shape: int, dtype: torch.dtype = torch.float16) -> torch.Tensor:
    generator = torch.Generator("cuda").manual_seed(sum(shape))
    made = torch.randn(shape, device="cuda", generator=generator)
    if dtype == torch.int8:
        made = (3 * made).round()
    made = made.to(dtype)
    return evt.channels_last(made) if len(shape) > 3 else made


def gemm(
    text: str,
    route: str,
    dtype: torch.dtype = torch.float16,
    sizes: tuple[int, int, int] = (200, 136, 80),
    config: str | None = None,
    of_b: torch.dtype | None = None,
) -> Call:
    m, n, k = sizes
    op = evt.linear(text, route=route, config=config)
    found = {"bias": random(n), "C": random(m, n), "s": random(k), "t": random(k), "up": random(n, k)}
    found |= {"q": random(n), "u": random(m), "w": random(m, n).float(), "v": random(n, m).float().T.contiguous()}
    found |= {"r": random(m, -(-k // 128)), "c": random(-(-n // 128), -(-k // 128))}
    return op, random(m, k, dtype=dtype), random(n, k, dtype=of_b or dtype), found


def few_rows(text: str) -> Call:
    """Return a product of slices that TMA cannot load, with elements behind each row.

    The machine code of cp.async has a source size below 16 in the low bits of the address. Memcheck takes them for a
    part of the address, and would report 16 bytes that begin near the end of an allocation.
    """
    op, a, b, inputs = gemm(text, "gemv-own-3x", sizes=(5, 77, 352))
    return op, a[:, 1:334], b[:, 1:334], inputs


def packed(m: int, config: str) -> Call:
    """Return a product with a weight of 4 bits."""
    n, k = 136, 640
    op = evt.linear("linear(A: f16[m, k], B: i4[n, k]); " + WEIGHED, route="gemm-own-3x", config=config)
    codes = torch.randint(-8, 8, (n, k), device="cuda", generator=torch.Generator("cuda").manual_seed(m))
    found = {"g": random(n, k // 128), "z": random(n, k // 128, dtype=torch.int8), "bias": random(n)}
    return op, random(m, k), evt.prepare(evt.pack_int4(codes)), found


def batches(text: str) -> Call:
    """Return three products whose batches share C."""
    op = evt.gemm(text, route="gemm-own-batches")
    return op, random(3, 200, 80), random(3, 80, 136), {"bias": random(136), "C": random(200, 136)}


def convolution(
    text: str,
    route: str,
    channels: int = 40,
    operation: str = "conv2d",
    filters: int = 72,
    groups: int = 1,
    images: int = 2,
    pixels: tuple[int, ...] = (11, 13),
    stride: int = 1,
    **keywords: object,
) -> Call:
    """Return a convolution of three taps along each dimension, or a gradient.

    A of a gradient is that of D, and B is the weight, or the input.
    """
    op = evt.Program(Source(text), operation, route=route, padding=1, stride=stride, groups=groups, **keywords)
    x, d = random(images, channels, *pixels), random(images, filters, *(-(-each // stride) for each in pixels))
    w = random(filters, channels // groups, *(3 for _ in pixels))
    a, b = {"dgrad": (d, w), "wgrad": (d, x)}.get(operation[7:], (x, w))
    like = {"dgrad": x, "wgrad": w}.get(operation[7:], d)
    columns = like.shape[1]
    found = {"bias": random(columns), "s": random(channels), "t": random(channels)}
    return op, a, b, {**found, "C": random(*like.shape)}


def filter_gradient(config: str | None = None, channels: int = 40, filters: int = 72, images: int = 1) -> Call:
    """Return the gradient of a 3x3 filter. The numbers of channels, filters and images decide the clusters."""
    chosen = {"config": config} if config else {}
    of_filter = {"operation": "conv2d_wgrad", "kernel_size": 3, **chosen}
    return convolution("D = silu(acc) + C", "conv-wgrad-3x", channels, filters=filters, images=images, **of_filter)


#: The kinds by name; each makes its call.
KINDS: dict[str, Callable[[], Call]] = {
    "gemm-3x": lambda: gemm(PLAIN, "evt-3x"),
    "gemm-3x-reductions-masks": lambda: gemm(REDUCED, "evt-3x"),
    "gemm-3x-pairs-blocks": lambda: gemm(PAIRED, "evt-3x", sizes=(200, 192, 80)),
    "gemm-3x-dropout": lambda: gemm(DROPOUT, "evt-3x"),
    "gemm-3x-e4m3": lambda: gemm(TYPED, "evt-3x", torch.float8_e4m3fn),
    "gemm-3x-i8": lambda: gemm(TYPED, "evt-3x", torch.int8),
    "gemm-3x-stock": lambda: gemm("D = relu(acc + bias)", "stock-3x"),
    "gemm-2x": lambda: gemm(PLAIN, "evt-2x"),
    "gemm-2x-reductions-masks": lambda: gemm(REDUCED, "evt-2x"),
    "gemm-2x-pairs-blocks": lambda: gemm(PAIRED, "evt-2x", sizes=(200, 192, 80)),
    "gemm-2x-dropout": lambda: gemm(DROPOUT, "evt-2x"),
    "gemm-2x-odd": lambda: gemm(REDUCED, "evt-2x", sizes=(201, 157, 83)),
    "gemm-2x-f64": lambda: gemm(TYPED, "evt-2x", torch.float64),
    "gemm-2x-stock": lambda: gemm("D = relu(acc + bias)", "stock-2x"),
    "gemm-mainloop": lambda: gemm(WORKED, "mainloop-2x"),
    "own": lambda: gemm(PLAIN, "gemm-own-3x"),
    "own-reductions": lambda: gemm(SUMMED, "gemm-own-3x", sizes=(200, 136, 328), config="own_pingpong_64x64x64"),
    "own-bits-dropout": lambda: gemm(PLACED, "gemm-own-3x"),
    "own-pairs": lambda: gemm(NEIGHBOURS, "gemm-own-3x"),
    "own-dual": lambda: gemm(DUAL, "gemm-own-3x"),
    **{
        f"own-updates-{tile}": partial(gemm, UPDATED, "gemm-own-3x", sizes=(200, 264, 520), config=f"own_{tile}")
        for tile in (
            "pingpong_128x128x64",
            "pingpong_144x128x64_1x2",
            "cooperative_256x128x64_2x1",
            "cooperative_192x128x64_1x1x2",
            "stages_32x64x64_1x1x4",
        )
    },
    "own-updates-unaligned": lambda: gemm(UPDATED, "gemm-own-3x", sizes=(200, 331, 136)),
    **{
        f"own-packed-{m}": partial(packed, m, f"own_{config}")
        for m, config in (
            (16, "cooperative_16x128x128_1x1x2"),
            (100, "cooperative_104x128x128"),
            (200, "cooperative_128x128x128"),
            (96, "stages_96x64x128_1x1x2"),
        )
    },
    "own-bytes": lambda: gemm(BYTES, "gemm-own-3x", of_b=torch.int8, sizes=(200, 136, 264)),
    "own-bytes-few-rows": lambda: gemm(
        BYTES, "gemm-own-3x", sizes=(13, 136, 520), config="own_stages_16x64x128_1x1x2", of_b=torch.int8
    ),
    "own-batches": lambda: batches(TYPED),
    "own-cluster": lambda: gemm(PLAIN, "gemm-own-3x", sizes=(3201, 256, 264), config="own_cooperative_256x128x64_1x2"),
    "own-split": lambda: gemm(PLAIN, "gemm-own-3x", sizes=(200, 136, 520), config="own_cooperative_64x128x64_1x1x4"),
    "own-split-reductions": lambda: gemm(
        SUMMED, "gemm-own-3x", sizes=(200, 136, 520), config="own_cooperative_128x128x64_1x1x2"
    ),
    "own-few-rows": lambda: few_rows(PLAIN),
    "own-i8": lambda: gemm(TYPED, "gemm-own-3x", torch.int8),
    "own-factors": lambda: gemm(
        SCALED, "gemm-own-3x", torch.float8_e4m3fn, (200, 136, 640), "own_cooperative_64x128x128"
    ),
    "own-factors-rows": lambda: gemm(
        SCALED, "gemm-own-3x", torch.float8_e4m3fn, (200, 264, 640), "own_rows_128x128x128_1x2"
    ),
    "own-factors-strips": lambda: gemm(
        SCALED, "gemm-own-3x", torch.float8_e4m3fn, (200, 264, 640), "own_rows_128x144x128"
    ),
    "own-factors-vectors": lambda: gemm(
        SCALED_ROWS, "gemm-own-3x", torch.float8_e4m3fn, (200, 264, 640), "own_rows_128x192x128"
    ),
    "own-factors-split": lambda: gemm(
        SCALED, "gemm-own-3x", torch.float8_e4m3fn, (40, 136, 1032), "own_cooperative_16x128x128_1x1x4"
    ),
    "own-e4m3": lambda: gemm(TYPED, "gemm-own-3x", torch.float8_e4m3fn),
    "conv-halo": lambda: convolution(PLAIN, "conv-halo-3x"),
    "conv-halo-reductions": lambda: convolution(SUMMED, "conv-halo-3x"),
    "conv-halo-bits-dropout": lambda: convolution(PLACED, "conv-halo-3x"),
    "conv-halo-shared": lambda: convolution(PLAIN, "conv-halo-3x", channels=520, config="halo_shared_128x64x64"),
    "conv-halo-shared-bits": lambda: convolution(PLACED, "conv-halo-3x", channels=520, config="halo_shared_64x64x64"),
    "conv-halo-few-channels": lambda: convolution(PLAIN, "conv-halo-padded-3x", channels=3, images=300),
    "conv-halo-images": lambda: convolution(PLAIN, "conv-halo-3x", images=9, pixels=(7, 7)),
    "conv-halo-groups": lambda: convolution(
        PLAIN, "conv-halo-groups-3x", channels=128, filters=128, groups=8, images=9, pixels=(7, 7)
    ),
    "conv-halo-words": lambda: convolution(PLAIN, "conv-halo-words-3x", channels=35),
    "conv-halo-copied": lambda: convolution(PLAIN, "conv-halo-copied-3x", channels=35),
    "conv-halo-taps": lambda: convolution(PLAIN, "conv-halo-taps-3x", filters=5),
    "conv-halo-volumes": lambda: convolution(PLAIN, "conv-halo-3x", operation="conv3d", pixels=(5, 11, 13)),
    "conv-halo-strides": lambda: convolution(PLAIN, "conv-halo-3x", stride=2),
    "conv-halo-dgrad": lambda: convolution(PLAIN, "conv-halo-3x", operation="conv2d_dgrad"),
    "conv-halo-dgrad-strides": lambda: convolution(PLAIN, "conv-halo-3x", operation="conv2d_dgrad", stride=2),
    "conv-depthwise": lambda: convolution(PLAIN, "conv-depthwise-3x", filters=40, groups=40),
    "conv-depthwise-reductions": lambda: convolution(SUMMED, "conv-depthwise-3x", filters=40, groups=40),
    "conv-depthwise-bits-dropout": lambda: convolution(PLACED, "conv-depthwise-3x", filters=40, groups=40),
    "conv-3x": lambda: convolution(PLAIN, "conv-evt-3x"),
    "conv-3x-reductions-masks": lambda: convolution(REDUCED, "conv-evt-3x"),
    "conv-3x-pingpong": lambda: convolution(  # of two tiles or three for each thread block
        PLAIN, "conv-evt-3x", images=260, config="implicit_pingpong_128x128x64"
    ),
    "conv-3x-own": lambda: convolution(PLAIN, "conv-evt-3x", config="implicit_own_128x128x64"),
    "conv-3x-dgrad": lambda: convolution(PLAIN, "conv-evt-3x", operation="conv2d_dgrad"),
    "conv-3x-few-channels": lambda: convolution(PLAIN, "conv-padded-3x", channels=3),
    "conv-3x-odd-channels": lambda: convolution(PLAIN, "conv-padded-3x", channels=35),
    "conv-2x": lambda: convolution(PLAIN, "conv-evt-2x"),
    "conv-2x-reductions-masks": lambda: convolution(REDUCED, "conv-evt-2x"),
    "conv-2x-few-channels": lambda: convolution(PLAIN, "conv-evt-2x", channels=3),
    "conv-2x-groups": lambda: convolution(PLAIN, "conv-evt-2x", channels=128, filters=64, groups=2),
    "conv-2x-wgrad": lambda: convolution("D = silu(acc) + C", "conv-evt-2x", operation="conv2d_wgrad", kernel_size=3),
    "conv-wgrad": lambda: filter_gradient(),
    "conv-wgrad-parts": lambda: filter_gradient("wgrad_64x128", filters=136),
    "conv-wgrad-complete": lambda: filter_gradient("wgrad_64x128", 136, 264),
    "conv-wgrad-exchange": lambda: filter_gradient("wgrad_64x64"),
    "conv-wgrad-exchange-rows": lambda: filter_gradient("wgrad_128x128", 136, 264),
    "conv-wgrad-neighbours": lambda: filter_gradient("wgrad_64x128"),
    "conv-wgrad-many": lambda: filter_gradient("wgrad_256x128", 1024, 256, images=64),
    "conv-2x-stock": lambda: convolution("D = relu(acc + bias)", "conv-stock-2x"),
    "conv-mainloop": lambda: convolution(WORKED, "conv-mainloop-2x"),
}


def inputs_of(call: Call) -> dict[str, torch.Tensor]:
    """Return the given tensors that the program reads."""
    op, a, b, found = call
    of_b = None if b.dtype == torch.int32 else _name(b)  # words of several elements, whose type the program declares
    read = {each.name for each in typed_graph(op.request, _name(a), of_b).inputs}
    return {name: value for name, value in found.items() if name in read}


def _name(tensor: torch.Tensor) -> str:
    return from_torch_name(str(tensor.dtype).removeprefix("torch.")).name


def check(name: str, got: object, want: object) -> None:
    """Compare the outputs of two calls; bits may differ where a number is next to zero."""
    pairs = zip(_several(got), _several(want), strict=True)
    for mine, right in pairs:
        dtype = B1 if mine.dtype == torch.uint8 else from_torch_name(str(mine.dtype).removeprefix("torch."))
        assert dtype is not None
        far = error(mine, right, dtype)
        assert far < 2 * limit([BF16]), f"{name}: relative error {far}"


def _several(outputs: object) -> tuple[torch.Tensor, ...]:
    return (outputs,) if isinstance(outputs, torch.Tensor) else tuple(outputs)


def launch_grouped() -> None:
    """Launch groups of several sizes, one of them empty.

    PyTorch fills the memory that it gives: CUTLASS's kernel fences its tensor maps, in the workspace, by an exchange
    of their words, which initcheck takes for a read, also of words outside any map.
    """
    op = evt.grouped_gemm(PLAIN)
    a, b = [random(m, 80) for m in GROUPS], [random(80, 136) for _ in GROUPS]
    inputs = {"bias": random(136), "C": [random(m, 136) for m in GROUPS]}
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = True  # type: ignore[attr-defined]
    for mine, right in zip(op(a, b, **inputs), op.reference(a, b, **inputs), strict=True):
        if right.numel():
            check("grouped", mine, right)


def launch_ragged(name: str) -> None:
    """Launch groups whose offsets are on the GPU."""
    text, of_a, of_b = EXPERTS[name]
    op = evt.grouped_gemm(text)
    n, k, groups = 144, 80 if name == "ragged" else 384, len(GROUPS)
    a, b = random(sum(GROUPS), k, dtype=of_a), random(groups, *((k, n) if name == "ragged" else (n, k)))
    b = evt.prepare(evt.pack_int4((3 * b).round().clamp(-8, 7).int())) if of_b == torch.int32 else b.to(of_b)
    modes = {each.name: each.modes for each in op.request.dag.inputs}
    extents = {"m": sum(GROUPS), "n": n, "n/128": 2, "k/128": 3}
    inputs = {
        each: random(*(() if "m" in at else (groups,)), *(extents[mode] for mode in at)) for each, at in modes.items()
    }
    if "z" in inputs:
        inputs["z"] = inputs["z"].round().to(torch.int8)
    ends = torch.tensor(GROUPS, device="cuda").cumsum(0).to(torch.int32)
    check(name, op(a, b, offsets=ends, **inputs), torch.cat(op.reference(a, b, offsets=ends.cpu(), **inputs)))


def launch_planes() -> None:
    """Launch convolutions of one channel, whose outputs are contiguous."""
    for images, filters, height, width, taps, stride in ((3, 50, 33, 47, 3, 2), (2, 130, 20, 90, 5, 1)):
        x, w, bias = random(images, 1, height, width).contiguous(), random(filters, 1, taps, taps), random(filters)
        w = w.contiguous() / taps
        found = evt.conv2d("D = relu(acc + bias)", stride=stride, padding=1)(x, w, bias=bias)
        assert found.is_contiguous()
        check("planes", found, functional.conv2d(x.double(), w.double(), bias.double(), stride, 1).relu().half())


def launch_group_norm() -> None:
    """Launch a norm whose clusters have several CTAs: vectors of two groups, and CTAs without pixels."""
    for shape, groups in (((2, 320, 16, 16), 32), ((1, 96, 3, 3), 12)):
        image = random(*shape).to(memory_format=torch.channels_last)
        gain, shift = random(shape[1]), random(shape[1])
        exact = functional.silu(functional.group_norm(image.float(), groups, gain.float(), shift.float()))
        check("group-norm", group_norm(image, gain, shift, groups, 1e-5, True), exact.half())


#: The kinds that are no programs of one product.
OTHERS: dict[str, Callable[[], None]] = {
    "group-norm": launch_group_norm,
    "grouped": launch_grouped,
    "planes": launch_planes,
    **{name: partial(launch_ragged, name) for name in EXPERTS},
}


def main(names: list[str]) -> None:
    names = names or [*KINDS, *OTHERS]
    calls = {name: KINDS[name]() for name in names if name in KINDS}
    plans, taken = [], {}
    for name, call in calls.items():
        op, a, b, _ = call
        (first, *_) = plan_kernels(op.request, bind(op.request, a, b, inputs_of(call), {}), device_target(0))
        taken[name] = (program_of(op.request.forced(op.request.settings.route, first.config.name)), *call[1:])
        plans.append(first)
    build(list(dict.fromkeys(kernel_sources(plans))))
    for name, call in taken.items():
        op, a, b, _ = call
        inputs = inputs_of(call)
        check(name, op(a, b, **inputs), op.reference(a, b, **inputs))
        torch.cuda.synchronize()
        print("ran", name, flush=True)
    for name in names:
        if name in OTHERS:
            OTHERS[name]()
            torch.cuda.synchronize()
            print("ran", name, flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
