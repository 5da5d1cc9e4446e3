"""place.hpp on the host: the largest key is that of the extreme value, and of equal values of the first."""

from __future__ import annotations

import ctypes
import math

import pytest

from tests.cxx.gxx import MARKS, build

PROGRAM = """
#include "evt/place.hpp"
template <bool Least, class T>
int find(T const* x, int n) {
  int64_t best = evt::MaxKey::identity<int64_t>();
  for (int i = 0; i < n; ++i) best = evt::MaxKey::apply(best, evt::key_of<Least>(x[i], i));
  return evt::place_of(best);
}
extern "C" int largest(float const* x, int n) { return find<false>(x, n); }
extern "C" int least(float const* x, int n) { return find<true>(x, n); }
extern "C" int largest_integer(int const* x, int n) { return find<false>(x, n); }
extern "C" int least_integer(int const* x, int n) { return find<true>(x, n); }
"""

pytestmark = MARKS


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    source = tmp_path_factory.mktemp("place") / "place.cpp"
    source.write_text(PROGRAM, encoding="utf-8")
    return ctypes.CDLL(str(build(source, source.with_suffix(".so"))))


inf, nan = math.inf, math.nan


@pytest.mark.parametrize(
    ("values", "largest", "least"),
    [
        ([1.0, 3.0, 2.0], 1, 0),
        ([1.0, 3.0, 3.0, 1.0], 1, 0),
        ([-1.0, -3.0, -2.0, -3.0], 0, 1),
        ([0.0, -0.0, 0.0], 0, 0),
        ([-0.0, 0.0], 0, 0),
        ([-1e-40, 1e-40, 0.0], 1, 0),
        ([-inf, 3e38, inf, inf], 2, 0),
        ([inf, nan, -inf, nan], 1, 1),
        ([2.0, inf, -nan], 2, 2),
        ([-inf, -inf], 0, 0),
    ],
)
def test_floats(library: ctypes.CDLL, values: list[float], largest: int, least: int) -> None:
    given = (ctypes.c_float * len(values))(*values)
    assert library.largest(given, len(values)) == largest
    assert library.least(given, len(values)) == least


@pytest.mark.parametrize(
    ("values", "largest", "least"),
    [([5, -7, 5, -7], 0, 1), ([-(2**31), 2**31 - 1, 0], 1, 0), ([-(2**31)] * 2, 0, 0), ([2**31 - 1] * 2, 0, 0)],
)
def test_integers(library: ctypes.CDLL, values: list[int], largest: int, least: int) -> None:
    given = (ctypes.c_int * len(values))(*values)
    assert library.largest_integer(given, len(values)) == largest
    assert library.least_integer(given, len(values)) == least


def test_the_place_of_no_value(library: ctypes.CDLL) -> None:
    assert library.largest((ctypes.c_float * 1)(), 0) == 0
