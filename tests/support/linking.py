"""Emitted kernels as parts of a program in C, built as a user builds them with `evt emit`, nvcc and gcc."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

from evt.compilation import find_toolchain
from evt.emission import emitted
from evt.plan import Plan

TWO_KERNELS = Path(__file__).with_name("two_kernels.c")
FIRST = "D = relu(acc + bias)"
SECOND = "out D: f16[m, n], s: f32[m]; z = gelu(alpha*acc) + residual; D = z; s = sum[n](z)"


def objects(plans: Mapping[str, Plan], folder: Path, *, jobs: int = 1) -> list[Path]:
    """Compile kernels by their names, with the headers of CUTLASS and CUDA alone; their own stand beside them."""

    def compiled(name: str) -> Path:
        plan = plans[name]
        kernel = emitted(plan, name)
        (folder / f"{name}.h").write_text(kernel.header)
        (folder / f"{name}.cu").write_text(kernel.text)
        target = f"-gencode=arch={plan.target.virtual},code={plan.target.gencode}"
        nvcc(folder, "-std=c++17", "--expt-relaxed-constexpr", target, "-c", f"{name}.cu", "-o", f"{name}.o")
        return folder / f"{name}.o"

    with ThreadPoolExecutor(jobs) as pool:
        return list(pool.map(compiled, plans))


def program(source: Path, parts: Sequence[Path], folder: Path) -> Path:
    """Compile a program of C beside the kernels' headers, and link it."""
    made = folder / source.stem
    strict = "-Wall,-Wextra,-Wpedantic,-Werror,-std=c11"
    nvcc(folder, "-Xcompiler", strict, "-I", str(folder), "-c", str(source), "-o", f"{made}.o")
    nvcc(folder, f"{made}.o", *map(str, parts), "-o", str(made))
    return made


def nvcc(folder: Path, *words: str) -> None:
    """Run nvcc, which calls gcc for C and g++ to link."""
    tools = replace(find_toolchain(), evt_include=None)
    libraries = (f"-L{path}" for path in tools.cuda_lib)
    command = [str(tools.nvcc), *tools.include_flags, *libraries, *words]
    done = subprocess.run(command, cwd=folder, capture_output=True, encoding="utf-8")
    assert done.returncode == 0, done.stderr
    assert "warning" not in done.stderr, done.stderr
