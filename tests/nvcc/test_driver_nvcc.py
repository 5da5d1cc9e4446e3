"""The launcher of an emitted kernel of sm90, with a driver that is there and one that is too old; no GPU is needed."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

import evt
from evt.compilation import find_toolchain
from evt.emission import emitted

pytestmark = [pytest.mark.nvcc, pytest.mark.slow]
SOURCE = Path(__file__).with_name("driver.cpp")


@pytest.fixture(scope="module")
def launcher(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Compile the host's half of a kernel, and link it with a CUDA runtime of the test's own."""
    folder = tmp_path_factory.mktemp("driver")
    kernel = emitted(evt.gemm("D = relu(acc)", route="evt-3x").plan("sm90", "f16", "f16"), "kernel")
    (folder / "kernel.cu").write_text(kernel.text)
    (folder / "kernel.h").write_text(kernel.header)
    tools = replace(find_toolchain(), evt_include=None)
    nvcc = (str(tools.nvcc), "-std=c++17", *tools.include_flags)
    strict = ("--expt-relaxed-constexpr", "-DNDEBUG", "-DEVT_HOST_PASS", "-gencode=arch=compute_90a,code=sm_90a")
    for command in (
        (*nvcc, *strict, "-c", "kernel.cu", "-o", "kernel.o"),
        (*nvcc, "-I.", "-c", str(SOURCE), "-o", "driver.o"),
        (*nvcc, "-cudart", "none", "-Xlinker", "--unresolved-symbols=report-all", "kernel.o", "driver.o", "-o", "run"),
    ):
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr[-4000:]
    return folder / "run"


def test_calls(launcher: Path) -> None:
    """Descriptors are encoded once for the same arguments, and errors are reported before any launch."""
    done = subprocess.run([launcher], capture_output=True, text=True)
    assert (done.stdout, done.stderr, done.returncode) == ("0 failures\n", "", 0)


def test_a_driver_that_is_too_old(launcher: Path) -> None:
    done = subprocess.run([launcher, "old"], capture_output=True, text=True)
    assert done.returncode == 0
    assert done.stdout.startswith("0 the CUDA driver has no cuTensorMapEncodeTiled: it has to be one of CUDA 12.0")
