"""Emitted kernels for all targets and types of operands: the device code alone, which is quicker to compile."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from evt.compilation import KernelSource, find_toolchain
from evt.compilation.recipe import compile_passes
from evt.emission import emit
from evt.plan import Plan
from evt.program import gemm

pytestmark = [pytest.mark.nvcc, pytest.mark.slow]

SCALED = """\
in rows[m], columns: f32[n], bias[n]
out D: bf16[m, n]
D = relu(rows[m]*(columns*acc) + bias) + beta*C
"""
REQUANTISED = """\
in x_scale: f32[m?], zero_point: i32[m], bias: bf16[n] = 0
out D: i8[m, n], amax: f32
D = x_scale*(acc - zero_point) + bias
amax = max[m, n](abs(D))
"""
#: Everything that depends on an element's place, and no D that the collective could store.
PLACED = """\
in seed: i32
out D[m, n/2], positive: b1[m, n], rows: f32[m], columns: f32[n], blocks: f32[m, n/32]
z = acc + iota(n) + rand(seed, 0)
D = even(z) * odd(z)
positive = z > 0
rows = sum[n](z)
columns = max[m](z)
blocks = max[n%32](abs(z))
"""

#: The program, the target, the type of A and B, the kernel's family.
KERNELS = {
    "sm103-e4m3": (SCALED, "sm103", "e4m3", "sm100"),
    "sm100-placed": (PLACED, "sm100", "bf16", "sm100"),
    "sm120-f16": (SCALED, "sm120", "f16", "2x"),
    "sm103-i8": (REQUANTISED, "sm103", "i8", "2x"),
    "sm90-e4m3": (SCALED, "sm90", "e4m3", "3x"),
    "sm90-i8": (REQUANTISED, "sm90", "i8", "3x"),
    "sm89-e4m3": (SCALED, "sm89", "e4m3", "2x"),
    "sm80-i8": (REQUANTISED, "sm80", "i8", "2x"),
    "sm80-f64": (SCALED, "sm80", "f64", "2x"),
}


def compile_device(made: Plan, folder: Path) -> tuple[bytes, str]:
    """Return the device code of a plan and the output of nvcc and ptxas, with the warnings on."""
    source = KernelSource(emit(made), made.target.gencode)
    device, _ = compile_passes(source, find_toolchain())
    (folder / "kernel.cu").write_text(source.text)
    command = (*device.argv, "-Xcompiler", "-Wall,-Wextra", "-Xptxas", "-v")
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return (folder / "kernel.cubin").read_bytes(), done.stdout + done.stderr


@pytest.mark.parametrize("name", KERNELS)
def test_device_code(tmp_path: Path, name: str) -> None:
    formula, arch, dtype, family = KERNELS[name]
    made = gemm(formula).plan(arch, dtype, dtype)
    assert made.family == family
    cubin, said = compile_device(made, tmp_path)
    assert "warning" not in said
    # CUTLASS reports a missing instruction at run time, and nvcc does not.
    assert b"vprintf" not in cubin
    spills = [line for line in said.splitlines() if "spill" in line and " 0 bytes spill stores" not in line]
    assert spills == []
