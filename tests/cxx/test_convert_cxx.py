"""convert.hpp gives the reference's bits: every type to every type, compiled for the host."""

from __future__ import annotations

import ctypes

import pytest
import torch

from evt.ir.dtype import B1, TF32, DType
from evt.reference.rounding import round_to
from tests.cxx.gxx import MARKS, build
from tests.support.patterns import SOURCES, TARGETS, patterns, same_bits

#: One value at a time, and arrays of four, as visitors convert fragments; and back to the type of its arithmetic.
PROGRAM = """
#include <cstdint>
#include "evt/convert.hpp"
#define CONVERT(NAME, FROM, TO)                                                                        \\
  extern "C" void NAME(FROM const* x, TO* y, TO* z, int n) {                                           \\
    for (int i = 0; i < n; ++i) y[i] = evt::convert<TO>(x[i]);                                         \\
    for (int i = 0; i + 4 <= n; i += 4) {                                                              \\
      cutlass::Array<FROM, 4> four;                                                                    \\
      for (int j = 0; j < 4; ++j) four[j] = x[i + j];                                                  \\
      auto result = evt::convert_array<TO>(four);                                                      \\
      for (int j = 0; j < 4; ++j) z[i + j] = result[j];                                                \\
    }                                                                                                  \\
  }                                                                                                    \\
  extern "C" void back_##NAME(FROM const* x, evt::detail::Compute<TO>* y, int n) {                     \\
    for (int i = 0; i < n; ++i) y[i] = evt::round_to<TO>(x[i]);                                        \\
  }
"""

pytestmark = MARKS


def cxx(dtype: DType) -> str:
    return "bool" if dtype == B1 else dtype.cutlass


def memory(dtype: DType) -> torch.dtype:
    found: torch.dtype = torch.bool if dtype == B1 else getattr(torch, dtype.torch)
    return found


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    folder = tmp_path_factory.mktemp("convert")
    source, binary = folder / "convert.cpp", folder / "convert.so"
    sources = (*SOURCES, TF32, B1)
    pairs = "".join(f"CONVERT({a}_to_{b}, {cxx(a)}, {cxx(b)})\n" for a in sources for b in TARGETS)
    source.write_text(PROGRAM + pairs, encoding="utf-8")
    build(source, binary, flags=("-ffp-contract=off",))
    return ctypes.CDLL(str(binary))


def given(source: DType) -> torch.Tensor:
    if source == B1:
        return torch.tensor([True, False] * 4)
    return round_to(TF32, patterns(SOURCES[1])) if source == TF32 else patterns(source)


def address(tensor: torch.Tensor) -> ctypes.c_void_p:
    return ctypes.c_void_p(tensor.data_ptr())


@pytest.mark.parametrize("target", TARGETS, ids=str)
@pytest.mark.parametrize("source", [*SOURCES, TF32, B1], ids=str)
def test_conversions(library: ctypes.CDLL, source: DType, target: DType) -> None:
    values = given(source).contiguous()
    values = values[: values.numel() // 4 * 4]
    count = ctypes.c_int(values.numel())
    single, array = (torch.empty(values.numel(), dtype=memory(target)) for _ in range(2))
    library[f"{source}_to_{target}"](address(values), address(single), address(array), count)
    expected = values if source == target else round_to(target, values)  # an infinite e5m2 is left alone
    for found in (single, array):
        wrong = (~same_bits(found, expected)).nonzero().flatten()[:5]
        assert not wrong.numel(), [(str(each[wrong])) for each in (values, found, expected)]
    computed = {"f64": torch.float64, "f32": torch.float32, "i32": torch.int32, "b1": torch.bool}[target.compute.name]
    back = torch.empty(values.numel(), dtype=computed)
    library[f"back_{source}_to_{target}"](address(values), address(back), count)
    assert bool(same_bits(back, expected.to(computed)).all())
