"""The GEMM kernel of evt on the host: clusters, both kinds of consumers, splits of k, promotion and groups of rows."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.cxx.cute import GXX, include_flags
from tests.cxx.halo_problems import compiled

HOST = Path(__file__).with_name("host")


@pytest.mark.cxx
@pytest.mark.skipif(not GXX, reason="g++ is not on PATH")
@pytest.mark.skipif(not include_flags(), reason="there are no CUTLASS or no CUDA headers")
@pytest.mark.parametrize("arguments", [(), pytest.param(("all",), marks=pytest.mark.slow)])
def test_results_of_products(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    """Check every other case, or all."""
    done = subprocess.run([compiled("gemm", tmp_path, HOST), *arguments], capture_output=True, text=True)
    assert (done.stdout, done.stderr, done.returncode) == ("0 failures\n", "", 0)
