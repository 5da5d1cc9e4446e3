"""Exported packages as tests build them: with the tools that evt finds, and nothing of evt on the path."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from evt.compilation.toolchain import find_cutlass, find_nvcc
from tests.support.command_line import ok

CONVOLUTION = str(Path(__file__).parents[2] / "samples/conv_relu_add.evt")
SCALED = (
    "scaled: gemm(A: e4m3[m, k], B: e4m3[k, n]); in scale_a: f32, scale_b: f32, bias: bf16[n]; out D: bf16[m, n]; "
    "D = scale_a*scale_b*acc + bias"
)


def environment(**more: str) -> Mapping[str, str]:
    """Return an environment in which the build finds nvcc and CUTLASS's headers, and Python no evt."""
    headers, folders = find_cutlass().include.parent, os.environ.get("PYTHONPATH", "").split(os.pathsep)
    is_hidden = any(each and headers.is_relative_to(Path(each).absolute()) for each in folders)
    cutlass = {"CUTLASS_PATH": str(headers)} if is_hidden else {}
    return {**os.environ, "CUDACXX": str(find_nvcc().path), "PYTHONPATH": "", **cutlass, **more}


def run(*words: str | Path, **options: str) -> str:
    """Run a command in this environment; return its output."""
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True, env=environment(**options))
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    return done.stdout


def installed(folder: Path, name: str, *arguments: str, jobs: int = 1) -> Path:
    """Export an extension, build it by pip, and return where it was installed."""
    sources, target = folder / "sources", folder / "site"
    ok("export", "--torch", str(sources), "--name", name, *arguments)
    pip = (sys.executable, "-m", "pip", "install", "--no-build-isolation", "--no-deps", "--no-index")
    run(*pip, "--target", target, sources, MAX_JOBS=str(jobs))
    return target


def imported(target: Path, name: str) -> None:
    """Import an extension from where it was installed."""
    sys.path.insert(0, str(target))
    try:
        importlib.import_module(name)
    finally:
        sys.path.remove(str(target))


def own_tests(folder: Path, target: Path) -> str:
    """Run the tests of an exported extension; return their summary."""
    pytest = (sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", folder / "sources/tests")
    return run(*pytest, "--rootdir", folder, PYTHONPATH=str(target)).strip().splitlines()[-1]


def built_by_cmake(folder: Path, name: str, *arguments: str) -> Path:
    """Export a CMake project, configure and build it; return the build folder."""
    sources, build = folder / "project", folder / "build"
    ok("export", "--cmake", str(sources), "--name", name, *arguments)
    run("cmake", "-S", sources, "-B", build, f"-DCMAKE_CUDA_COMPILER={find_nvcc().path}", CUDACXX=str(find_nvcc().path))
    run("cmake", "--build", build)
    return build
