"""The work on a main loop's tiles, on the host: `mainloop.cpp` holds every lane's elements against the formula."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from functools import cache
from pathlib import Path

import pytest

from evt.build.toolchain import SYSTEM_CUDA, find_cutlass, find_nvcc
from evt.errors import BuildError

GXX = shutil.which("g++") or ""
INCLUDE = Path(__file__).parents[2] / "codegen/include"


@cache
def include_flags() -> tuple[str, ...]:
    """Flags for CUTLASS's headers and CUDA's, which they include; none when they are not installed."""
    with contextlib.suppress(BuildError):
        cutlass, nvcc = find_cutlass(), find_nvcc()
        homes = (*nvcc.include, nvcc.path.resolve().parents[1] / "include", Path(SYSTEM_CUDA, "include"))
        cuda = next((path for path in homes if (path / "cuda_runtime_api.h").is_file()), None)
        if cuda is not None:
            folders = (cutlass.include, *nvcc.include, cuda, cuda / "cccl")
            return tuple(word for path in folders for word in ("-isystem", str(path)))
    return ()


@pytest.mark.cxx
@pytest.mark.skipif(not GXX, reason="g++ is not on PATH")
@pytest.mark.skipif(not include_flags(), reason="there are no CUTLASS or no CUDA headers")
def test_every_element_is_worked_on_with_its_own_inputs(tmp_path: Path) -> None:
    """The registers of mma instructions of three widths, the ends of k, and padding, which stays zero."""
    program = tmp_path / "mainloop"
    source = Path(__file__).with_name("mainloop.cpp")
    # CUTLASS's device code is not g++'s: its headers have warnings and extensions.
    flags = ["-std=c++17", "-O1", "-w", "-fpermissive", f"-I{INCLUDE}", *include_flags()]
    made = subprocess.run(
        [GXX, *flags, "-o", str(program), str(source)],
        capture_output=True,
        text=True,
        env={**os.environ, "LC_ALL": "C"},
    )
    assert made.returncode == 0, made.stderr[:2000]
    done = subprocess.run([program], capture_output=True, text=True)
    assert (done.stdout, done.returncode) == ("0 failures\n", 0)
