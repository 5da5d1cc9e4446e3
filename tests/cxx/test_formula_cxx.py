"""formula.hpp rounds to FP8 without FP8 instructions as the reference does, compiled for the host."""

from __future__ import annotations

import ctypes

import pytest
import torch

from evt.ir.dtype import BY_NAME
from evt.reference.rounding import round_to
from tests.cxx.gxx import MARKS, build
from tests.support.patterns import patterns, same_bits

PROGRAM = """
#include <cstdint>
#include <cstring>
#include "cutlass/numeric_types.h"
namespace evt::rounding {
inline uint32_t bits(float x) { uint32_t y; std::memcpy(&y, &x, 4); return y; }
inline float of_bits(uint32_t x) { float y; std::memcpy(&y, &x, 4); return y; }
}
#include "evt/formula.hpp"
#define ROUND(NAME) extern "C" void NAME(float const* x, float* y, int n) { \\
  for (int i = 0; i < n; ++i) y[i] = evt::round_to<cutlass::float_##NAME##_t>(x[i]); }
ROUND(e4m3)
ROUND(e5m2)
"""

pytestmark = MARKS


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    source = tmp_path_factory.mktemp("formula") / "formula.cpp"
    source.write_text(PROGRAM)
    return ctypes.CDLL(str(build(source, source.with_suffix(".so"))))


@pytest.mark.parametrize("name", ["e4m3", "e5m2"])
def test_rounding_to_fp8(library: ctypes.CDLL, name: str) -> None:
    upper = torch.arange(1 << 16, dtype=torch.int64) << 16  # each sign, exponent and first bits, with some others
    words = torch.cat([upper + low for low in (0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF)])
    values = torch.cat([patterns(BY_NAME["f32"]), words.to(torch.int32).view(torch.float32)]).contiguous()
    found = torch.empty_like(values)
    library[name](*(ctypes.c_void_p(each.data_ptr()) for each in (values, found)), ctypes.c_int(values.numel()))
    expected = round_to(BY_NAME[name], values).to(torch.float32)
    wrong = (~same_bits(found, expected)).nonzero().flatten()[:5]
    assert not wrong.numel(), [str(each[wrong]) for each in (values, found, expected)]
