"""The kernels of filter gradients of evt on the host: taps and strides, tiles of one tap, and the sums of all CTAs."""

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
def test_results_of_filter_gradients(tmp_path: Path) -> None:
    done = subprocess.run([compiled("wgrad", tmp_path, HOST)], capture_output=True, text=True)
    assert (done.stdout, done.stderr, done.returncode) == ("0 failures\n", "", 0)
