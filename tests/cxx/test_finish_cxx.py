"""Arithmetic in the kernel that combines the parts of reductions, on the host: `finish.cpp` has places and values."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.cxx.cute import GXX, include_flags

INCLUDE = Path(__file__).parents[2] / "codegen/include"


@pytest.mark.cxx
@pytest.mark.skipif(not GXX, reason="g++ is not on PATH")
@pytest.mark.skipif(not include_flags(), reason="there are no CUTLASS or no CUDA headers")
def test_results_and_places(tmp_path: Path) -> None:
    program = tmp_path / "finish"
    # CUTLASS's device code is not g++'s: its headers have warnings and extensions.
    flags = [
        "-std=c++17",
        "-O1",
        "-w",
        "-fpermissive",
        f"-I{INCLUDE}",
        f"-I{Path(__file__).with_name('host')}",
        *include_flags(),
    ]
    made = subprocess.run(
        [GXX, *flags, "-o", str(program), str(Path(__file__).with_name("finish.cpp"))],
        capture_output=True,
        text=True,
        env={**os.environ, "LC_ALL": "C"},
    )
    assert made.returncode == 0, made.stderr[:2000]
    done = subprocess.run([program], capture_output=True, text=True)
    assert (done.stdout, done.returncode) == ("0 failures\n", 0)
