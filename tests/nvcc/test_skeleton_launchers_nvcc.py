"""Launchers by the host compiler and by nvcc launch equally, byte for byte, on a CUDA runtime that records."""

from __future__ import annotations

import ctypes
import dataclasses
import itertools
import struct
import subprocess
from pathlib import Path

import pytest

import evt
from evt.compilation import KernelSource, find_toolchain
from evt.compilation.cache import LAUNCHER, SOURCE
from evt.compilation.recipe import TOOLKIT, Pass, compile_passes, parts
from evt.compilation.skeleton import NAME, split
from evt.compilation.toolchain import toolkit_home
from evt.plan import Plan

pytestmark = [pytest.mark.nvcc, pytest.mark.slow]

FORMULA = "D = gelu(alpha*acc + bias[n]) + residual[m, n]"
#: The option that zeroes padding and unset members, which hold old bytes of the stack.
ZEROED = "-ftrivial-auto-var-init=zero"
GEMM = {"m": 256, "n": 384, "k": 128, "l": 1}
IMAGES = {
    "m": 2 * 16 * 16,
    "n": 64,
    "k": 64 * 9,
    "l": 1,
    "images": 2,
    "height": 16,
    "width": 16,
    "channels": 64,
    "output_height": 16,
    "output_width": 16,
    "filters": 64,
    "filter_height": 3,
    "filter_width": 3,
    "stride_width_of_A": 64,
    "stride_height_of_A": 1024,
    "stride_outer_of_A": 16384,
    "stride_width_of_B": 64,
    "stride_height_of_B": 192,
    "stride_outer_of_B": 576,
    **dict.fromkeys(("pad_height", "pad_width", "upper_pad_height", "upper_pad_width"), 1),
    **dict.fromkeys(("stride_height", "stride_width", "dilation_height", "dilation_width"), 1),
    "stride_m_of_in_residual": 64,
    "stride_m_of_out_D": 64,
}
KERNELS = {
    "gemm-3x": (evt.gemm(FORMULA, route="evt-3x"), "sm90", GEMM),
    "gemm-2x": (evt.gemm(FORMULA, route="evt-2x"), "sm80", GEMM),
    "conv-3x": (evt.conv2d(FORMULA, padding=1, route="conv-evt-3x"), "sm90", IMAGES),
    "own-gemm": (evt.gemm(FORMULA, route="gemm-own-3x"), "sm90", GEMM),
    "own-conv": (evt.conv2d(FORMULA, padding=1, route="conv-halo-3x"), "sm90", IMAGES),
}


def with_layout(text: str) -> str:
    """Return an own kernel's file with the size of its parameters and the place of its taps."""
    symbols = {
        "params": f"sizeof({NAME}_impl::Params)",
        "taps": f"offsetof({NAME}_impl::Params, taps)",
        "after_taps": f"offsetof({NAME}_impl::Params, geometry)",
    }
    visible = 'extern "C" __attribute__((visibility("default"))) unsigned const'
    return text + "".join(
        f"{visible} {NAME}_{each};\nunsigned const {NAME}_{each} = {symbols[each]};\n" for each in symbols
    )


def compiled(text: str, gencode: str, folder: Path, *, by_host_compiler: bool) -> ctypes.CDLL:
    """Return the launcher of a skeleton, or of an own kernel's file, with the recording runtime."""
    tools = find_toolchain()
    assert tools.host_compiler is not None
    tools = tools if by_host_compiler else dataclasses.replace(tools, host_compiler=None)
    linked, links = tools.linked()
    home = toolkit_home(tools.nvcc)
    assert home is not None
    folder.mkdir()
    for name, target in {**links, TOOLKIT: home}.items():
        (folder / name).symlink_to(target)
    source, found = KernelSource(text, gencode), split(text)
    (folder / SOURCE).write_text(found.skeleton if found else with_layout(text))
    step = parts(source, found, linked)[LAUNCHER].steps[0] if found else compile_passes(source, linked)[1]
    assert isinstance(step, Pass)
    option = () if by_host_compiler else ("-Xcompiler",)
    subprocess.run((*step.argv, *option, ZEROED), cwd=folder, check=True)
    recorder = Path(__file__).with_name("recorder.cpp")
    include = ("-isystem", f"{home}/include")
    subprocess.run(["g++", "-shared", "-fPIC", *include, LAUNCHER, recorder, "-o", "l.so"], cwd=folder, check=True)
    return ctypes.CDLL(str(folder / "l.so"))


def arguments(plan: Plan, sizes: dict[str, int]) -> bytes:
    """Return a call's arguments: aligned addresses that nothing reads, and strides that are multiples of 64."""
    addresses = itertools.count(0x7000_0000_0000, 0x100_0000)
    words = []
    for field in plan.fields:
        if field.kind == "number":
            words.append(struct.pack("<d", 1.5))
        elif field.kind == "pointer":
            words.append(struct.pack("<Q", 0 if field.name == "in_alpha" else next(addresses)))
        else:
            words.append(struct.pack("<q", sizes.get(field.name, 1024 if field.name.startswith("stride") else 0)))
    return b"".join(words)


@pytest.mark.parametrize("name", KERNELS)
def test_equal_launches(name: str, tmp_path: Path) -> None:
    op, arch, sizes = KERNELS[name]
    plan, text = op.plan(arch, "bf16", "bf16"), op.emit(arch, "bf16", "bf16", name=NAME)
    given = arguments(plan, sizes)
    launches = []
    for by_host_compiler in (True, False):
        folder = tmp_path / str(by_host_compiler)
        library = compiled(text, plan.target.gencode, folder, by_host_compiler=by_host_compiler)
        assert library[f"{NAME}_run"](given, ctypes.c_size_t(len(given)), None) == 0
        size = ctypes.c_uint.in_dll(library, f"{NAME}_params").value
        launch = tuple((ctypes.c_int64 * 9).in_dll(library, "recorded_launch"))
        launches.append((launch, bytes((ctypes.c_ubyte * 16384).in_dll(library, "recorded_params"))[:size]))
    (launch, mine), (launch_by_nvcc, by_nvcc) = launches
    assert launch == launch_by_nvcc
    assert launch[-1] == 1
    assert len(mine) == len(by_nvcc) > 100
    # An own kernel reads the taps that it has; the rest of their array keeps old bytes.
    own = name.startswith("own")
    start, end = (
        ctypes.c_uint.in_dll(library, f"{NAME}_{each}").value if own else 0 for each in ("taps", "after_taps")
    )
    assert [at for at in range(len(mine)) if mine[at] != by_nvcc[at] and not start <= at < end] == []
