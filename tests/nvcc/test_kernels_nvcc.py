"""Emitted kernels through the real nvcc: a representative few, of every family and kind, as whole libraries.

They are compiled with the warnings of the host compiler on. CUTLASS is included by ``-isystem``, so warnings are about
evt's text.
"""

from __future__ import annotations

import ctypes
import json
import re
import struct
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

import evt
from evt.compilation import BuildEvent, Cache, KernelSource, build
from evt.diagnostics import Source
from evt.emission import emit
from evt.plan import LayoutClass, Plan, Problem, Signature, find_target, natural_signature, plan
from evt.plan.plan import OwnProduct
from evt.request import optimised_graph, problem_sizes

pytestmark = pytest.mark.nvcc

RELU_RESIDUAL = "D = relu(alpha*acc + beta*C) + residual"
#: Weights of 4 bits, whose sums are multiplied in halves.
PACKED = "linear(A: bf16[m, k], B: i4[n, k]); in s: bf16[n, k/128], z: i8[n, k/128]; B = s*(B - z); D = acc"
#: Every way of a tile: the source C, auxiliary loads and stores; a vector or scalar.
TILES = """\
in scale: f32[m?], bias[n]
out D, E
E = alpha*acc + beta*C
D = relu(E*scale) + residual + bias
"""
#: Moments of rows and of columns, and over both.
MOMENTS = """\
out D, mu: f32[m], rstd: f32[m], centre: f32[n], spread: f32[n], all: f32
D = acc
mu = mean[n](acc)
rstd = rsqrt(var[n](acc) + 1e-5)
centre = mean[m](acc)
spread = var[m](acc)
all = var[m, n](acc)
"""
#: ``z`` is shared: two outputs and a column-major D, with every broadcast.
SHARED = """\
in alpha, rows: f32[m], bias: bf16[n], mask: bf16[m, n]
out D: bf16[n, m], gate: bf16[m, n], twice: f32[m, n]
z = alpha*acc + rows + bias
gate = sigmoid(z)
twice = gate*mask
D = z*gate + twice*z
"""
#: Bytes and integers of 64 bits, wide random numbers, and pairs that turn.
TURNED = """\
in c: f32[m, n/2], s: f32[m, n/2], seed: i64[], mask: bool[m, n], t: i64[n]
out D, above: bool[m, n]
x = even(acc, 16)
y = odd(acc, 16)
z = interleave(x*c - y*s, x*s + y*c, 16)*(rand(seed, 3) >= 0.5)
above = z > t
D = where(mask, z, 0)
"""
ON_BOTH = "in t: f32[k]; A = relu(s[k]*(A - mu[m]) + alpha*t); B = B*u[n]; D = relu(acc + bias)"
CONVOLUTION = "D = relu(acc + bias) + residual"
#: Every part of an epilogue on a fragment, in a few programs.
HALO_NODES = """\
in s: f32[m], t: f16[n?], beta: f16, other: bf16[m, n]
out D, E: f32[m, n], sums: f32[n], most: f32, place: i32[m], norm: f32[m]
out rstd: f32[m], centre: f32[n], spread: f32[n]
E = acc*s + t + beta*other
D = relu(E + C + iota(n) - iota(m)*size(k))
sums = sum[m](E)
most = max[m, n](abs(E))
place = argmax[n](E)
norm = sqrt(sum[n](E*E)/size(n))
rstd = rsqrt(var[n](E) + 0.1)
centre = mean[m](E)
spread = var[m](E)
"""
HALO_PLACED = """\
in rows: i32[m], columns: i32[n], x: f16[m, columns[n]], y: f32[rows[m]]
out D, E: bf16[rows[m], n], r: f32[n]
E = acc + x + y
r = sqrt(s[n])
D = dropout(E, 0.5, seed, 3)
"""
HALO_BITS = """\
in keep: b1[m, n], t: i64[m], seed: i64
out D, above: b1[m, n]
above = acc > i32(t)
D = where(keep, dropout(acc, 0.5, seed, 3), 0)
"""
WIDE = (8, 64, 56, 56), (64, 64, 3, 3)
DEEP = (1, 512, 7, 7), (512, 512, 3, 3)
DEPTHWISE = (8, 96, 56, 56), (96, 1, 3, 3)
VOLUME = (8, 64, 8, 28, 28), (64, 64, 3, 3, 3)
FIRST = (2, 3, 33, 35), (64, 3, 7, 7)
PADDED = (2, 20, 9, 11), (64, 20, 3, 3)


def aligned_to_one(signature: Signature, general: str) -> Signature:
    """Return the signature of tensors that start and stride anywhere; ``general`` has no mode with stride 1."""

    def loosen(name: str, layout: LayoutClass) -> LayoutClass:
        return replace(layout, alignment=1, contiguous=None if name == general else layout.contiguous)

    return Signature(
        loosen("A", signature.a),
        loosen("B", signature.b),
        tuple((name, loosen(name, layout)) for name, layout in signature.tensors),
    )


def strided() -> Plan:
    dag = optimised_graph(evt.gemm("D = gelu(acc + bias) * gate + other[n, m]").request, "f16")
    return plan(Problem(dag, aligned_to_one(natural_signature(dag), "gate"), find_target("sm89")))


def gemm(text: str, arch: str, dtype: str, *, fused: bool = True, **settings: Any) -> Callable[[], Plan]:
    return lambda: evt.gemm(text, **settings).plan(arch, dtype, dtype, fused=fused)


def conv(
    arch: str, shapes: Any, text: str = CONVOLUTION, a: str = "f16", b: str = "", **settings: Any
) -> Callable[[], Plan]:
    return lambda: evt.conv2d(text, padding=1, **settings).plan(arch, a, b or a, shapes=shapes)


KERNELS: dict[str, Callable[[], Plan]] = {
    "sm80-f16": gemm(RELU_RESIDUAL, "sm80", "f16"),
    "sm90-f16": gemm(RELU_RESIDUAL, "sm90", "f16"),
    "sm80-conv-few": conv("sm80", FIRST),
    "sm90-conv": conv("sm90", WIDE, route="evt"),
    "sm89-f16-strided": strided,
    "sm80-bf16-transposed": gemm(SHARED.replace("bf16[n]", "bf16[l, n]"), "sm80", "bf16"),
    "sm90-bf16-shared": gemm(SHARED, "sm90", "bf16", fused=False, config="cooperative_128x128x64"),
    "sm90-f32": gemm("D = silu(acc * scale[m] + bias)", "sm90", "f32"),
    "sm100-f16": gemm(TILES, "sm100", "f16"),
    "sm80-moments": gemm(MOMENTS, "sm80", "f16"),
    "sm90-moments": gemm(MOMENTS, "sm90", "bf16"),
    "sm100-moments": gemm(MOMENTS, "sm100", "bf16"),
    "sm100-turned": gemm(TURNED, "sm100", "f16"),
    "sm120-e4m3": gemm(TILES, "sm120", "e4m3"),
    "sm80-stock": gemm("D = relu(alpha*acc + bias)*C + residual", "sm80", "f16", route="stock"),
    "sm90-stock": gemm("out D, Z; Z = alpha*acc + bias + 0.5*C; D = clamp(Z, 0, 6)", "sm90", "f16", route="stock"),
    "sm80-conv": conv("sm80", WIDE, route="evt"),
    "sm89-conv-stock": conv("sm89", WIDE, route="stock"),
    "sm90-conv-few": conv("sm90", FIRST, route="evt"),
    "sm90-halo-few": conv("sm90", FIRST),
    "sm90-halo-few-i8": conv("sm90", FIRST, HALO_NODES, "i8", route="own"),
    "sm90-halo-few-f32": conv("sm90", ((2, 4, 33, 35), (64, 4, 3, 3)), a="f32", route="own"),
    "sm90-halo-few-8": conv("sm90", ((2, 8, 33, 35), (64, 8, 3, 3)), HALO_NODES, route="own"),
    "sm90-halo": conv("sm90", WIDE),
    "sm90-halo-nodes": conv("sm90", WIDE, HALO_NODES, route="own"),
    "sm90-halo-placed": conv("sm90", WIDE, HALO_PLACED, route="own"),
    "sm90-halo-bits": conv("sm90", WIDE, HALO_BITS),
    "sm90-halo-f32": conv("sm90", WIDE, a="f32"),
    "sm90-halo-e4m3": conv("sm90", WIDE, a="e4m3", b="e5m2"),
    "sm90-halo-shared": conv("sm90", DEEP, route="own", config="halo_shared_64x64x64"),
    "sm90-halo-shared-i8": conv("sm90", DEEP, HALO_NODES, "i8", route="own", config="halo_shared_112x64x128"),
    "sm90-halo-i8": conv("sm90", WIDE, HALO_NODES, "i8", route="own"),
    "sm90-halo-dgrad": lambda: evt.Program(Source("D = where(z > 0, acc, 0)"), "conv2d_dgrad", padding=1).plan(
        "sm90", "bf16", shapes=WIDE
    ),
    "sm90-halo-volume": lambda: evt.conv3d(CONVOLUTION, padding=1, route="own").plan("sm90", shapes=VOLUME),
    "sm90-own": gemm(RELU_RESIDUAL, "sm90", "f16", route="own"),
    "sm90-own-nodes": gemm(HALO_NODES, "sm90", "i8", route="own"),
    "sm90-own-cluster": gemm(RELU_RESIDUAL, "sm90", "bf16", route="own", config="own_cooperative_256x128x64_1x2"),
    "sm90-own-split": gemm(RELU_RESIDUAL, "sm90", "bf16", route="own", config="own_cooperative_64x128x64_1x1x4"),
    "sm90-own-packed": lambda: evt.linear(PACKED, route="own", config="own_cooperative_128x128x128").plan("sm90"),
    "sm90-own-e4m3": gemm("out D: f16; D = acc + C", "sm90", "e4m3", route="own"),
    "sm90-depthwise": conv("sm90", DEPTHWISE, groups=96),
    "sm90-depthwise-rows": conv("sm90", DEPTHWISE, a="bf16", groups=96, config="depthwise_4x7"),
    "sm90-depthwise-f32": conv("sm90", DEPTHWISE, a="f32", groups=96),
    "sm90-depthwise-nodes": conv("sm90", DEPTHWISE, HALO_NODES, groups=96, config="depthwise_1x7"),
    "sm90-depthwise-placed": conv("sm90", DEPTHWISE, HALO_PLACED, groups=96),
    "sm90-depthwise-bits": conv("sm90", DEPTHWISE, HALO_BITS, groups=96),
    "sm90-depthwise-dgrad": lambda: evt.Program(
        Source("D = where(z > 0, acc, 0)"), "conv2d_dgrad", padding=1, groups=96
    ).plan("sm90", "bf16", shapes=DEPTHWISE),
    "sm90-conv-padded": conv("sm90", PADDED),
    "sm80-mainloop": gemm(ON_BOTH, "sm80", "bf16"),
    "sm80-conv-mainloop": conv("sm80", WIDE, "A = relu(s[k]*A + t[k]); D = relu(acc + bias) + C"),
}
#: Kernels that are not left to `make test-slow`. nvcc takes 5 seconds of CPU time for each, and 70 for one of CUTLASS.
QUICK = ("sm90-halo",)
#: The bytes that a kernel may spill. HALO_NODES keeps the parts of seven reductions beside the sums of a tile; blocks
#: of columns in products also keep the values of rows that they share. Beside warps that widen the input, a consumer
#: has 200 registers; it loads elements of f32 ahead into 24. Two thread blocks of a depthwise convolution share an SM:
#: a thread has 128 registers.
SPILLS = {
    "sm90-own-nodes": 436,
    "sm90-halo-nodes": 136,
    "sm90-halo-i8": 508,
    "sm90-halo-few-8": 216,
    "sm90-halo-few-i8": 1428,
    "sm90-halo-few-f32": 36,
    "sm90-depthwise-f32": 20,
    "sm90-depthwise-nodes": 40,
}
#: For kernels that copy their operands: the channels of the copies, the pixels of a row, and the taps.
COPIES = {"sm80-conv-few": (4, 35, 7), "sm90-conv-few": (8, 37, 7)}


@dataclass(frozen=True)
class Kernel:
    """A compiled plan; ``said`` is the compilers' output."""

    plan: Plan
    path: Path
    said: str

    @property
    def library(self) -> ctypes.CDLL:
        return ctypes.CDLL(str(self.path))


def compiled(made: Plan, folder: Path) -> Kernel:
    """Compile a plan. A cache that other processes share may have its library without the messages of the compilers."""
    said: list[str] = []

    def listen(event: BuildEvent) -> None:
        if event.kind == "end":
            said.append(event.text)

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NVCC_APPEND_FLAGS", "-Xcompiler -Wall,-Wextra -Xptxas -v")
        source = KernelSource(emit(made, "evt"), made.target.gencode)
        (path,) = build([source], cache=Cache(folder), on_event=listen)
    return Kernel(made, path, "\n".join(said))


def marks(name: str) -> list[pytest.MarkDecorator]:
    """Return the marks that keep a kernel's tests in one process, which compiles it."""
    return [pytest.mark.xdist_group(name)] + [pytest.mark.slow] * (name not in QUICK)


@pytest.fixture(scope="module", params=[pytest.param(name, marks=marks(name)) for name in KERNELS])
def name(request: pytest.FixtureRequest) -> str:
    chosen: str = request.param
    return chosen


@pytest.fixture(scope="module")
def kernel(name: str, tmp_path_factory: pytest.TempPathFactory) -> Kernel:
    return compiled(KERNELS[name](), tmp_path_factory.mktemp("kernel"))


def test_the_few_are_representative() -> None:
    plans = [make() for make in KERNELS.values()]
    assert {each.family for each in plans} == {"2x", "3x", "own", "sm100", "sm120"}
    assert {each.tree for each in plans} == {True, False}
    assert {each.target.name for each in plans} == {"sm80", "sm89", "sm90", "sm100", "sm120"}
    schedules = {"pingpong", "cooperative", "implicit", "one_sm", "multistage"}
    assert schedules <= {each.config.schedule for each in plans}
    templates = {"gemm_2x", "gemm_2x_stock", "gemm_2x_mainloop", "conv_2x", "conv_2x_stock", "conv_2x_mainloop"}
    templates |= {"gemm_3x", "conv_3x", "own_sm90", "own_depthwise", "gemm_sm100", "gemm_sm120"}
    assert {each.template for each in plans} == templates


def test_compiles_without_a_warning(kernel: Kernel) -> None:
    assert kernel.path.is_file()
    assert "warning" not in kernel.said


def test_multiplications_are_not_serialised(kernel: Kernel) -> None:
    """Ptxas says C7510 and the like where WGMMA waits for each product, for a register that is in use."""
    assert "(C75" not in kernel.said


def test_nothing_spills(kernel: Kernel, name: str) -> None:
    spills = re.findall(r"(\d+) bytes spill stores, (\d+) bytes spill loads", kernel.said)
    assert spills
    assert max(int(bytes) for row in spills for bytes in row) <= SPILLS.get(name, 0)
    used = [int(number) for number in re.findall(r"Used (\d+) registers", kernel.said)]
    print(f"{name}: {used} registers, {kernel.plan.registers} estimated")
    assert 40 < max(used) <= kernel.plan.register_limit


def test_needs_no_driver_to_load(kernel: Kernel) -> None:
    command = ["nm", "-D", "--undefined-only", str(kernel.path)]
    undefined = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert re.findall(r"\bcu[A-Z]\w*", undefined) == []
    command = ["readelf", "-d", str(kernel.path)]
    assert "libcuda" not in subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_says_what_it_takes(kernel: Kernel) -> None:
    library = kernel.library
    library.evt_schema.restype = ctypes.c_char_p
    schema = json.loads(library.evt_schema())
    assert schema == json.loads(kernel.plan.schema)
    assert schema["fields"] == [[field.name, field.kind] for field in kernel.plan.fields]


def test_a_product_of_several_batches_is_refused(kernel: Kernel) -> None:
    if not isinstance(kernel.plan.mainloop, OwnProduct):
        pytest.skip("takes batches, or is a convolution")
    kernel.library.evt_run.argtypes = (ctypes.c_char_p, ctypes.c_size_t, ctypes.c_void_p)
    members = [2 if field.name == "l" else 64 for field in kernel.plan.fields]
    packed = struct.pack(f"={len(members)}q", *members)
    assert kernel.library.evt_run(packed, len(packed), None) == 1 << 16  # evt::Failure::arguments


def test_refuses_arguments_of_another_size(kernel: Kernel) -> None:
    library = kernel.library
    library.evt_run.argtypes = (ctypes.c_char_p, ctypes.c_size_t, ctypes.c_void_p)
    size = 8 * len(kernel.plan.fields)
    for wrong in (0, size - 8, size + 8):
        assert library.evt_run(bytes(size + 8), wrong, None) == 1 << 16  # evt::Failure::arguments
    assert library.evt_run(None, size, None) == 1 << 16


@pytest.mark.parametrize(
    ("name", "channels", "pixels", "taps"),
    [pytest.param(name, *sizes, marks=marks(name)) for name, sizes in COPIES.items()],
    indirect=["name"],
)
def test_the_workspace_holds_the_padded_copies(kernel: Kernel, channels: int, pixels: int, taps: int) -> None:
    library = kernel.library
    library.evt_workspace.restype = ctypes.c_int64
    sizes = problem_sizes(evt.conv2d(CONVOLUTION, padding=1).request, FIRST)
    members = [sizes.get(field.role, 0) if not field.tensor else 0 for field in kernel.plan.fields]
    needed = library.evt_workspace(struct.pack(f"={len(members)}q", *members))
    copies = (2 * 33 * pixels * channels * 2, 64 * 7 * taps * channels * 2)
    assert needed == sum(-(-size // 256) * 256 for size in copies)
