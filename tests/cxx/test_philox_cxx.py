"""philox_wide.hpp draws the reference's numbers, compiled for the host."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
import torch

from evt.reference.philox import uniform_wide
from evt.runtime.tensor_checks import signed

INCLUDE = Path(__file__).parents[2] / "codegen/include"
_NUMBERS = """
#include <cstdio>
#include "evt/philox_wide.hpp"
int main() {
  float x[4];
  for (unsigned long long element = 0; element < 24; element += 4) {
    evt::random_run<4>(x, 0, element, 0x8000000000003039ull, 0x10000000003ull);
    for (int j = 0; j < 4; ++j) {
      float y[2];
      evt::random_run<2>(y, 0, element + (j & 2), 0x8000000000003039ull, 0x10000000003ull);
      evt::random_run<1>(y, j & 1, element + j, 0x8000000000003039ull, 0x10000000003ull);
      if (y[j & 1] != x[j]) return 1;
      std::printf("%a\\n", x[j]);
    }
  }
}
"""


@pytest.mark.cxx
def test_kernels_and_the_reference_draw_the_same(tmp_path: Path) -> None:
    source, program = tmp_path / "philox.cpp", tmp_path / "philox"
    source.write_text(_NUMBERS)
    subprocess.run(["g++", "-std=c++17", f"-I{INCLUDE}", source, "-o", program], check=True)
    printed = subprocess.run([program], check=True, capture_output=True, text=True).stdout.split()
    seed, offset = torch.tensor(signed(0x8000000000003039)), torch.tensor(0x10000000003)
    expected = uniform_wide(seed, offset, (2, 2, 6), seed.device).flatten()
    assert [float.fromhex(each) for each in printed] == expected.tolist()
