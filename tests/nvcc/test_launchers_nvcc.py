"""The launcher of cubins and the compiled launcher of the same text make the same launches, byte by byte."""

from __future__ import annotations

import ctypes
import os
import random
import shutil
import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

import evt
from evt.compilation import find_toolchain
from evt.compilation.jit import Missing, Nvrtc, find_nvrtc
from evt.compilation.own import compile_own
from evt.compilation.toolchain import toolkit_home
from evt.emission import emitted
from evt.errors import BuildError
from evt.ir.convolution import Convolution
from evt.launch.layout import Layout
from evt.launch.members import structs
from evt.launch.recipe import C_TYPES, Kernel, recipe_of
from evt.plan import Plan
from evt.plan.moved import moved
from evt.plan.overwritten import overwritten
from evt.runtime.driver import Driver
from evt.runtime.launcher import Launcher
from evt.runtime.plans import kernel_sources
from tests.support.calls import arguments, of_convolution, of_product
from tests.support.plans import plan_of_planes

FAKE = Path(__file__).with_name("fake_driver.cpp")
#: Functions of the static runtime that nvcc calls in a host pass.
REGISTRATION = """#include <cstddef>
extern "C" {
extern unsigned char const evt_cubin[4];
unsigned char const evt_cubin[4] = {};
void** __cudaRegisterFatBinary(void*) { static void* handle; return &handle; }
void __cudaRegisterFatBinaryEnd(void**) {}
void __cudaUnregisterFatBinary(void**) {}
char __cudaInitModule(void**) { return 1; }
void __cudaRegisterVar(void**, char*, char*, char const*, int, std::size_t, int, int) {}
}
"""
_DESCRIPTOR = 128


class Recorded(ctypes.Structure):
    """A launch, as fake_driver.cpp records it."""

    _fields_ = (
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared", ctypes.c_uint),
        ("cluster", ctypes.c_uint * 3),
        ("with_pdl", ctypes.c_uint),
        ("params", ctypes.c_ubyte * 8192),
    )


def _tools() -> str:
    try:
        find_toolchain()
    except BuildError as error:
        return str(error.diagnostics[0].message)
    found = find_nvrtc()
    return found.reason if isinstance(found, Missing) else "" if shutil.which("g++") else "there is no g++"


pytestmark = [pytest.mark.nvcc, pytest.mark.skipif(bool(_tools()), reason=_tools())]


@pytest.fixture(scope="module")
def fake(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("fake")
    made = folder / "fake.so"
    home = toolkit_home(find_toolchain().nvcc)
    command = ["g++", "-O1", "-fPIC", "-shared", "-w", f"-I{home}/include", str(FAKE), "-o", str(made)]
    subprocess.run(command, check=True)
    return made


def compiled(text: str, fake: Path, folder: Path) -> ctypes.CDLL:
    """Return the launcher that nvcc compiles from an emitted text, over the fake runtime."""
    (folder / "kernel.cu").write_text(text)
    (folder / "registration.cpp").write_text(REGISTRATION)
    tools = find_toolchain()
    flags = [
        "-std=c++17",
        "-O1",
        "-DNDEBUG",
        "--expt-relaxed-constexpr",
        "-DEVT_HOST_PASS",
        "-Xcompiler",
        "-fPIC",
        "-w",
    ]
    source = str(folder / "kernel.cu")
    subprocess.run([str(tools.nvcc), *flags, *tools.include_flags, "-c", source, "-o", f"{folder}/host.o"], check=True)
    link = ["g++", "-shared", "-fPIC", f"{folder}/host.o", f"{folder}/registration.cpp", str(fake)]
    subprocess.run([*link, f"-Wl,-rpath,{fake.parent}", "-Wl,-z,lazy", "-o", f"{folder}/launcher.so"], check=True)
    # A PyTorch for CUDA has loaded the real runtime for all libraries: the fake one comes first.
    return ctypes.CDLL(f"{folder}/launcher.so", mode=os.RTLD_LOCAL | os.RTLD_DEEPBIND)


def parts(layout: Layout, params: bytes) -> Iterator[tuple[str, bytes]]:
    """Yield the bytes of each member, and of all others together; the parameters state the lengths of arrays.

    The end of an array, up to the next member, may have any bytes, as have four bytes in front of a member of eight. A
    job of operands has another layout with CUTLASS's tuple: GPU tests compare its results.
    """
    if any(".operands." in name for name in layout.members):
        return
    others, starts = bytearray(params), [*sorted(at for at, _ in layout.members.values()), len(params)]
    for name, (at, kind) in layout.members.items():
        is_array = "[0]" in name and "taps.number" in layout.members  # the others have all elements as members
        end = starts[starts.index(at) + 1] if is_array else at
        size = ctypes.sizeof(C_TYPES[kind]) if kind else _DESCRIPTOR
        if is_array:
            count = "taps.groups" if "starts" in name else "taps.number"
            (number,) = struct.unpack_from("i", params, layout.members[count][0])
            size *= number
        yield name, params[at : at + size]
        first, end = at - 4 * (size == 8), max(end, at + size)
        others[first:end] = bytes(end - first)
    yield "others", bytes(others)


def launched(launcher: Launcher, call: bytes) -> list[Layout]:
    """Return the layouts of the kernels that a call launches: the second one of a filter gradient may be missing."""
    values, kernel = launcher._form.unpack(call), launcher._kernel
    recipe = recipe_of(kernel, {name: values[index] for index, name in launcher._sizes}, 132)
    assert recipe is not None
    kernels = {each.kernel for each in recipe.launches}
    pairs = zip(kernel.structs, kernel.layouts, strict=True)
    return [layout for struct, layout in pairs if struct.kernel in kernels]


def compare(plan: Plan, calls: list[bytes], fake: Path, folder: Path) -> None:
    """Compare the launches, the results and the workspaces of both launchers."""
    text, (source,) = emitted(plan), kernel_sources([plan])
    nvrtc = find_nvrtc()
    assert isinstance(nvrtc, Nvrtc)
    launcher = Launcher(plan, compile_own(source, nvrtc), text.name, find=lambda: Driver(str(fake)))
    library, recorder = compiled(text.text, fake, folder), ctypes.CDLL(str(fake))
    recorder.recorded_launch.restype = ctypes.POINTER(Recorded)
    workspace = library[f"{text.name}_workspace"]
    workspace.restype = ctypes.c_int64
    for call in calls:
        found, layouts = [], launched(launcher, call)
        sizes = (ctypes.c_int * 4)(*(each.size for each in layouts))
        for run in (
            lambda call=call: library[f"{text.name}_run"](call, ctypes.c_size_t(len(call)), ctypes.c_void_p(5)),
            lambda call=call: launcher.run(call, len(call), 5),
        ):
            recorder.record_launches(sizes)
            code = run()
            launches = [recorder.recorded_launch(index).contents for index in range(recorder.recorded_launches())]
            found.append(
                (
                    code,
                    [
                        (
                            *(tuple(each.grid), tuple(each.block), each.shared, each.with_pdl),
                            tuple(max(extent, 1) for extent in each.cluster),
                            dict(parts(layout, bytes(each.params)[: layout.size])),
                        )
                        for layout, each in zip(layouts, launches, strict=True)
                    ],
                )
            )
        assert found[0] == found[1]
        assert found[0][0] == 0
        assert workspace(call) == launcher.workspace(call)


REDUCED = "D = relu(acc + bias[n]); s = sum[n](D); c = sum[m](D); a = max[m, n](abs(D))"
BY_ROWS = f"in sa: f32[m, k/128], sb: f32[n/128, k/128]; A = sa*A; B = sb*B; out D: bf16, s, c, a; {REDUCED}"
RESIDUAL = "D = gelu(alpha*acc + bias) + residual"
SLOW = pytest.mark.slow
#: Formulas, types of the operands, and configurations.
PRODUCTS = [
    pytest.param(RESIDUAL, "f16", "own_pingpong_104x128x64", id="pingpong", marks=SLOW),
    pytest.param(REDUCED, "bf16", "own_cooperative_64x128x64_1x1x4", id="split-reductions"),
    pytest.param(
        "in u: i32, v: bool, seed: i64, offset: i32; out D: i8; D = dropout(acc*u + v, 0.25, seed, offset)",
        "f16",
        "own_pingpong_64x128x64",
        id="numbers-bytes",
        marks=SLOW,
    ),
    pytest.param(RESIDUAL, "bf16", "own_cooperative_256x128x64_1x2", id="cluster", marks=SLOW),
    pytest.param(RESIDUAL, "f16", "own_cooperative_64x256x32_2x1", id="cluster-of-rows", marks=SLOW),
    pytest.param("out D: f32; D = acc", "f16", "own_pingpong_40x64x128", id="no-tile", marks=SLOW),
    pytest.param("out D: bf16; D = acc + C", "e4m3", "own_cooperative_128x128x128", id="e4m3", marks=SLOW),
    pytest.param(
        "in sa: f32[m, k/128], sb: bf16[k/256]; A = sa*A; B = sb*B; out D: bf16; D = acc + C",
        "e4m3",
        "own_cooperative_128x128x128_1x2",
        id="scales",
        marks=SLOW,
    ),
    pytest.param(BY_ROWS, "e4m3", "own_rows_128x128x128_1x2", id="rows", marks=SLOW),
    pytest.param(BY_ROWS, "e4m3", "own_rows_128x144x128", id="rows-of-three-blocks", marks=SLOW),
    pytest.param(BY_ROWS, "e4m3", "own_rows_128x160x128_2x1", id="rows-of-two-blocks", marks=SLOW),
    pytest.param(
        "out D[m, n/2], r: f32[m]; D = silu(even(acc))*odd(acc); r = sum[n](acc)",
        "bf16*bf16",
        "own_pingpong_192x128x64_1x2",
        id="pairs",
        marks=SLOW,
    ),
    pytest.param(
        "out D: f16[m, n/2]; D = even(acc, 32) + odd(acc, 32)",
        "e4m3*e4m3",
        "own_cooperative_96x256x128",
        id="pairs-32-e4m3",
        marks=SLOW,
    ),
    pytest.param(
        "in s: f32[m]; D = gelu(s*acc)*matmul(A, up)", "bf16*bf16", "own_pingpong_64x128x64", id="dual", marks=SLOW
    ),
    pytest.param("D = acc*s[n] + C", "bf16*i8", "own_pingpong_16x64x128", id="converted", marks=SLOW),
    pytest.param(
        "in s: bf16[n, k/128], z: i8[n, k/128]; B = s*(B - z); D = acc + C",
        "bf16*i4",
        "own_stages_16x64x128_1x1x2",
        id="packed",
        marks=SLOW,
    ),
    pytest.param("out D: f16; D = acc*0.5", "i8", "own_pingpong_16x64x128", id="i8", marks=SLOW),
    pytest.param(REDUCED, "f16", "own_pingpong_192x128x64_1x2", id="reductions", marks=SLOW),
    pytest.param(
        "out rms: f32[m], D; D = acc*2; rms = rsqrt(sum[n](acc*acc)/size(n) + 1e-5)",
        "f16",
        "own_pingpong_64x64x64",
        id="results",
        marks=SLOW,
    ),
]
#: The kernels with the most parameters.
GRADIENTS = [
    pytest.param(
        *("conv2d_dgrad", (2, 64, 15, 9), (64, 32, 3, 4)),
        {"padding": 1, "stride": 2, "output_padding": (0, 1), "dilation": (2, 1)},
        *("conv-halo-3x",),
        id="residues",
    ),
    pytest.param(
        *("conv2d_wgrad", (100, 520, 14, 14), (100, 2048, 14, 14), {"kernel_size": 1}, "conv-wgrad-3x"), id="streamed"
    ),
]
CONVOLUTIONS = [
    pytest.param("conv2d_wgrad", (9, 128, 14, 14), (9, 192, 14, 14), {"kernel_size": 1}, "conv-wgrad-3x", id="blocks"),
    pytest.param("conv2d", (8, 64, 56, 56), (128, 64, 3, 3), {"padding": 1, "stride": 2}, "conv-halo-3x", id="strided"),
    pytest.param("conv2d", (8, 3, 64, 64), (64, 3, 7, 7), {"padding": 3, "stride": 2}, "conv-halo-padded-3x", id="few"),
    pytest.param("conv3d", (2, 32, 8, 14, 14), (64, 32, 3, 3, 3), {"padding": 1}, "conv-halo-3x", id="volume"),
    pytest.param("conv3d", (2, 32, 8, 14, 14), (64, 32, 3, 1, 1), {"padding": (1, 0, 0)}, "conv-halo-3x", id="rows"),
    pytest.param(
        "conv2d", (8, 64, 56, 56), (64, 1, 7, 7), {"padding": 3, "groups": 64}, "conv-depthwise-3x", id="depth"
    ),
    pytest.param(
        "conv2d", (8, 128, 28, 28), (128, 4, 3, 3), {"padding": 1, "groups": 32}, "conv-halo-groups-3x", id="groups"
    ),
    pytest.param(
        *("conv2d", (8, 336, 28, 28), (336, 168, 3, 3), {"padding": 1, "stride": 2, "groups": 2}),
        *("conv-halo-groups-3x",),
        id="wide-groups",
    ),
    pytest.param(
        "conv2d", (8, 30, 28, 28), (40, 30, 3, 3), {"padding": 1, "stride": 2}, "conv-halo-words-3x", id="words"
    ),
    pytest.param(
        *("conv2d", (8, 54, 28, 28), (96, 18, 3, 3), {"padding": 1, "groups": 3}, "conv-halo-words-3x"),
        id="words-of-groups",
    ),
    pytest.param("conv2d", (8, 96, 28, 28), (3, 96, 3, 3), {"padding": 1}, "conv-halo-taps-3x", id="taps"),
    pytest.param(
        "conv2d", (8, 6, 57, 60), (16, 6, 5, 5), {"padding": 2, "stride": 2}, "conv-halo-padded-3x", id="steps"
    ),
    *(
        pytest.param("conv2d", (8, inner, 28, 28), (40, inner, 3, 3), {"padding": 1}, "conv-halo-words-3x", id=name)
        for name, inner in (("odd-words", 33), ("blocks-of-words", 100))
    ),
    *(
        pytest.param(kind, *sizes, {"padding": 1}, "conv-halo-copied-3x", id=f"copies-of-{name}")
        for name, kind, *sizes in (
            ("both", "conv2d", (8, 51, 28, 28), (51, 51, 3, 3)),
            ("volumes", "conv3d", (2, 18, 5, 9, 14), (20, 18, 3, 3, 3)),
        )
    ),
    *(
        pytest.param(
            *("conv2d_wgrad", (8, filters, *size), (8, 72, *pixels), settings, "conv-wgrad-3x"), id=f"wgrad-{name}"
        )
        for name, filters, size, pixels, settings in (
            ("taps", 136, (14, 14), (14, 14), {"kernel_size": 3, "padding": 1}),
            ("wide", 64, (20, 256), (20, 256), {"kernel_size": 3, "padding": 1}),
            ("strides", 40, (14, 6), (27, 19), {"kernel_size": (3, 5), "padding": 1, "stride": (2, 3)}),
            ("row", 264, (14, 14), (14, 14), {"kernel_size": 1}),
            ("pixels", 64, (7, 7), (14, 14), {"kernel_size": 1, "stride": 2}),
        )
    ),
]


def drawn_products(plan: Plan) -> Iterator[tuple[int, int, int]]:
    """Yield sizes: whole tiles and odd ones, few tiles and many waves, aligned as TMA needs."""
    draw, step = random.Random(plan.config.name), 128 // min(plan.operand_bits, plan.mainloop.b.dtype.bits)
    step = 128 if plan.mainloop.is_packed else step
    wide = 128 // min([16, *(each.dtype.bits for matrices in moved(plan) for each in matrices)])
    yield from ((1000, 768, 512), (8192, 8192, 4096), (128, 64, 2048), (17, 4096, 1024), (4096, 256, 8192))
    yield 2048, 16384, 4096  # L2 holds A, and not B
    for _ in range(40):
        m, n, k = (round(2 ** draw.uniform(0, most)) for most in (15, 11, 10))
        yield m, wide * n, step * k + plan.config.tile[2] * (plan.config.cluster[2] - 1)


@pytest.mark.parametrize(("text", "dtype", "config"), PRODUCTS)
def test_products(text: str, dtype: str, config: str, fake: Path, tmp_path: Path) -> None:
    a, _, b = dtype.partition("*")
    operation = evt.linear if b else evt.gemm
    plan = operation(text, route="gemm-own-3x", config=config).plan("sm90", a, b or a)
    calls = [arguments(plan, of_product(*each)) for each in drawn_products(plan)]
    calls += [arguments(plan, of_product(1000, 768, 512), in_place=True)] * bool(overwritten(plan))
    compare(plan, calls, fake, tmp_path)


@pytest.mark.parametrize("text", ["in r: f32[m, n]; D = acc + C + r", pytest.param(REDUCED, marks=pytest.mark.slow)])
def test_copies_of_operands(text: str, fake: Path, tmp_path: Path) -> None:
    """The rows of all matrices are odd, and the parts of reductions follow the copies in the workspace."""
    config = "own_cooperative_64x128x64_1x1x4"
    op = evt.gemm(text, route="gemm-own-3x", config=config)
    plan = op.plan("sm90", "f16", "f16", shapes=((64, 1025), (1025, 61)))
    assert [copy.name for copy in plan.row_copies] == ["copy_A", "copy_B"]
    loaded = {f"loads[{i}].{part}" for i in range(2) for part in ("pointer", "stride")}
    assert {name for name, _ in structs(plan)[1].members if "loads" in name} == (loaded if text != REDUCED else set())
    sizes = ((64, 61, 1025), (1000, 767, 511), (8191, 513, 2049), (1, 4095, 8191))
    compare(plan, [arguments(plan, of_product(*each)) for each in sizes], fake, tmp_path)


@pytest.mark.parametrize(
    ("route", "dtype", "config"),
    [
        pytest.param("gemv-own-3x", "bf16", "gemv_8x32x64", marks=pytest.mark.slow),
        pytest.param("gemv-own-3x", "i8", "gemv_32x32x128", marks=pytest.mark.slow),
        pytest.param("gemv-rows-3x", "f16", "gemv_rows_128x64x64", marks=pytest.mark.slow),
    ],
)
def test_few_rows_or_columns(route: str, dtype: str, config: str, fake: Path, tmp_path: Path) -> None:
    """CTAs split k where tiles of few rows are few."""
    op = evt.linear(f"out D: f32, s, c, a; {REDUCED}", route=route, config=config)
    plan = op.plan("sm90", dtype, dtype, shapes=((7, 1025), (61, 1025)))
    sizes = ((1, 61, 1025), (7, 767, 511), (1000, 513, 2049), (1, 16383, 8191), (33, 20, 63), (8, 100, 30001))
    compare(plan, [arguments(plan, of_product(*each)) for each in sizes], fake, tmp_path)


def test_narrow_numbers_after_a_reduction() -> None:
    """The launcher of cubins left such numbers at 0: it had no name for their types."""
    text = "in a: f16, b: bf16, c: f16\nout r: f32[m]\nr = sum[n](acc)*a + b - c"
    plan = evt.gemm(text, route="gemm-own-3x").plan("sm90", "f16", "f16", shapes=((64, 64), (64, 64)))
    (source,), nvrtc = kernel_sources([plan]), find_nvrtc()
    assert isinstance(nvrtc, Nvrtc)
    kernel = Kernel.of(plan, compile_own(source, nvrtc), source.name)
    recipe = recipe_of(kernel, {field.name: 256 for field in plan.fields if field.kind == "size"} | {"m": 100}, 132)
    assert recipe is not None
    numbers = {index for index, field in enumerate(plan.fields) if field.kind == "number"}
    written = {patch.index: patch.type for patch in recipe.launches[-1].patches if patch.index in numbers}
    assert list(written.values()) == ["f", "f", "f"]


#: Formulas of batches whose columns of B are contiguous along n, and along k.
BATCHES = {
    "matrices": "in bias: f16[n], s: f16[l, m]; D = gelu(acc + bias)*s + C",
    "pairs": "gemm(A: f16[m, k], B: f16[n, k]); out D[m, n/2]; D = even(acc) + odd(acc)",
}


@pytest.mark.slow
@pytest.mark.parametrize("shared", ["", "A", "BC"])
@pytest.mark.parametrize("name", BATCHES)
def test_batches(name: str, shared: str, fake: Path, tmp_path: Path) -> None:
    op = evt.gemm(BATCHES[name], route="gemm-own-batches", config="own_pingpong_64x128x64")
    plan, calls = op.plan("sm90", "f16", "f16", shapes=((2, 64, 64), (2, 64, 64))), []
    for batches, m, n, k in ((1, 100, 256, 512), (7, 1000, 768, 64), (1000, 33, 16, 1024)):
        strides = {"A": m * k, "B": n * k, "C": m * n, "D": m * n}
        of_batches = {
            field.name: strides[field.tensor] * (field.tensor not in shared)
            for field in plan.fields
            if field.role == "l" and field.tensor in strides
        }
        calls.append(arguments(plan, {"m": m, "n": n, "k": k, "l": batches, **of_batches}))
    compare(plan, calls, fake, tmp_path)


@pytest.mark.slow
def test_copies_of_batches(fake: Path, tmp_path: Path) -> None:
    """The copies of a batch follow each other."""
    op = evt.gemm("D = acc", route="gemm-own-batches", config="own_pingpong_64x128x64")
    plan, calls = op.plan("sm90", "f16", "f16", shapes=((2, 64, 75), (2, 75, 64))), []
    assert [(copy.name, copy.batches is not None) for copy in plan.row_copies] == [("copy_A", True)]
    for batches, m, n, k in ((1, 100, 256, 511), (7, 1000, 768, 65), (1000, 33, 16, 1025)):
        strides = {"A": m * k, "B": n * k, "D": m * n}
        of_batches = {field.name: strides[field.tensor] for field in plan.fields if field.role == "l" and field.tensor}
        calls.append(arguments(plan, {"m": m, "n": n, "k": k, "l": batches, **of_batches}))
    compare(plan, calls, fake, tmp_path)


GROUPS = {
    "own_pingpong_64x128x64": "in w: f32[m], t: f32[n?]; D = w*gelu(alpha*acc + bias) + t + residual",
    "own_cooperative_256x128x64_1x2": "in w: f32[m], t: f32[n?]; D = w*gelu(alpha*acc + bias) + t + residual",
    "own_pingpong_32x128x64": "gemm(A: f16[m, k], B: f16[n, k]); out D[m, n/2]; D = silu(even(acc))*odd(acc)",
    "own_pingpong_192x128x64_1x2": "gemm(A: f16[m, k], B: f16[n, k]); out D: e4m3[m, n/2]; D = even(acc)*odd(acc)",
}


@pytest.mark.slow
@pytest.mark.parametrize("config", GROUPS)
def test_groups_of_rows(config: str, fake: Path, tmp_path: Path) -> None:
    text = GROUPS[config]
    plan = evt.grouped_gemm(text, route="gemm-own-ragged", config=config).plan("sm90", "f16", "f16")
    calls = [
        arguments(plan, {"m": m, "n": 768, "k": 512, "l": groups}) for m, groups in ((1, 1), (1000, 64), (70000, 1024))
    ]
    compare(plan, calls, fake, tmp_path)


SLOW_CONVOLUTIONS = [pytest.param(*each.values, id=each.id, marks=SLOW) for each in CONVOLUTIONS]


@pytest.mark.parametrize(("operation", "x", "w", "settings", "route"), [*GRADIENTS, *SLOW_CONVOLUTIONS])
def test_convolutions(operation, x, w, settings, route, fake, tmp_path) -> None:
    op = getattr(evt, operation)("D = relu(acc + bias[n]); s = sum[m](D)", route=route, **settings)
    plan, geometry = op.plan("sm90", "f16", "f16", shapes=(x, w)), Convolution.of(operation, settings)
    sizes = ((images, *x[1:]) for images in (1, x[0], 64))
    of_images = [(a, (a[0], *w[1:]) if geometry.operator == "wgrad" else w) for a in sizes]
    calls = [arguments(plan, of_convolution(plan, geometry, a, b)) for a, b in of_images]
    compare(plan, calls, fake, tmp_path)


def test_planes(fake: Path, tmp_path: Path) -> None:
    plan, geometry, filters = plan_of_planes(), Convolution.of("conv2d", {"padding": 1}), (40, 1, 3, 3)
    inputs = ((8, 1, 28, 30), (1, 1, 5, 300), (130, 1, 7, 9))
    compare(plan, [arguments(plan, of_convolution(plan, geometry, x, filters)) for x in inputs], fake, tmp_path)
