"""The C++ functions, compiled for a GPU with its approximate instructions, equal PyTorch's."""

from __future__ import annotations

import ctypes
import subprocess
from pathlib import Path

import pytest
import torch

from evt.compilation import find_toolchain
from tests.support.functions_compiled import (
    BOUNDS,
    INCLUDE,
    KINDS,
    Bound,
    Case,
    call,
    check,
    each_kind,
    samples,
    source,
)

pytestmark = pytest.mark.gpu

LOOP = """
#define LOOP(NAME, T, R, ...)                                                                \\
  __global__ void NAME##_kernel(T const* a, T const* b, T const* c, R* y, int n) {           \\
    int i = blockIdx.x * blockDim.x + threadIdx.x;                                           \\
    if (i < n) y[i] = __VA_ARGS__;                                                           \\
  }                                                                                          \\
  extern "C" int NAME(T const* a, T const* b, T const* c, R* y, int n) {                     \\
    NAME##_kernel<<<(n + 255) / 256, 256>>>(a, b, c, y, n);                                  \\
    return int(cudaDeviceSynchronize());                                                     \\
  }
"""

#: Kernels that count the results that differ from CUDA's correctly rounded functions in a bit.
ROUNDED = """
#include "evt/functions.hpp"
#include "evt/quotient.hpp"
__device__ unsigned long long wrong;
__device__ void check(float got, float want) {
  bool const are_nan = got != got && want != want;
  if (!are_nan && __float_as_uint(got) != __float_as_uint(want)) atomicAdd(&wrong, 1ull);
}
__device__ void check_quotient(unsigned x, unsigned y) {
  float const dividend = __uint_as_float(x), divisor = __uint_as_float(y);
  check(evt::quotient(dividend, divisor), __fdiv_rn(dividend, divisor));
}
__device__ unsigned long long mixed(unsigned long long z) {
  z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9ull;
  z = (z ^ z >> 27) * 0x94d049bb133111ebull;
  return z ^ z >> 31;
}
/// The roots of all numbers.
__global__ void roots() {
  for (unsigned long long i = blockIdx.x * blockDim.x + threadIdx.x; i < 1ull << 32; i += gridDim.x * blockDim.x) {
    float const x = __uint_as_float(unsigned(i));
    check(evt::fn::sqrt(x), __fsqrt_rn(x));
  }
}
/// Quotients of random bits, of denormal numbers, with denormal results, and near products of few bits.
__global__ void quotients(unsigned long long count) {
  for (unsigned long long i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x) {
    unsigned long long const bits = mixed(0x9e3779b97f4a7c15ull * (i + 1)), more = mixed(bits + 1);
    unsigned const x = unsigned(bits), y = unsigned(bits >> 32), exponent = 1 + more % 253, shift = more >> 10 & 31;
    int const below = max(0, int(exponent) - 125 - int(more >> 20 & 31));
    unsigned const divisor = (y >> shift << shift & 0x807fffffu) | exponent << 23;
    float const product = __uint_as_float(divisor) * __uint_as_float(0x1000000u - (unsigned(more >> 40) & 0xffffffu));
    check_quotient(x, y);
    check_quotient(x & 0x807fffffu, more & 1 ? y : y & 0x807fffffu);
    check_quotient((x & 0x807fffffu) | below << 23, divisor);
    check_quotient(__float_as_uint(product) + int(more >> 60) % 3 - 1, divisor);
  }
}
__device__ unsigned special(int i) {
  unsigned const exponents[] = {0, 1, 24, 126, 127, 128, 253, 254, 255};
  unsigned const mantissas[] = {0, 1, 2, 0x400000, 0x7ffffe, 0x7fffff};
  return exponents[i / 2 % 9] << 23 | mantissas[i / 18 % 6] | i % 2 << 31;
}
__global__ void specials() { check_quotient(special(blockIdx.x), special(threadIdx.x)); }
extern "C" unsigned long long count_wrong() {
  roots<<<1056, 256>>>();
  quotients<<<1056, 256>>>(1ull << 30);
  specials<<<108, 108>>>();
  unsigned long long found = ~0ull;
  cudaMemcpyFromSymbol(&found, wrong, sizeof(found));
  return found;
}
"""


def compiled(folder: Path, code: str) -> ctypes.CDLL:
    """Return a library of CUDA C++ for this machine's GPU."""
    text, binary = folder / "functions.cu", folder / "functions.so"
    text.write_text(code, encoding="utf-8")
    major, minor = torch.cuda.get_device_capability()
    flags = ["-O2", "-std=c++17", f"-arch=sm_{major}{minor}", "-Xcompiler", "-fPIC", "-shared", f"-I{INCLUDE}"]
    subprocess.run([find_toolchain().nvcc, *flags, str(text), "-o", str(binary)], check=True)
    return ctypes.CDLL(str(binary))


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    return compiled(tmp_path_factory.mktemp("functions"), source(LOOP))


def test_quotients_and_roots_are_correctly_rounded(tmp_path: Path) -> None:
    wrong = compiled(tmp_path, ROUNDED).count_wrong
    wrong.restype = ctypes.c_ulonglong
    assert wrong() == 0


#: Additions to the host's bounds for CUDA's functions and approximate reciprocals.
OF_DEVICE = {
    "tan": Bound(4),
    "atanh": Bound(3),
    "celu": Bound(3),
    "gelu": Bound(2, of_x=2),
    "sigmoid": Bound(5, least=2.0**-126),  # at most 4.4: an ulp of exp, the sum, and an ulp of the reciprocal
    "logsigmoid": Bound(3),
    "mish": Bound(5, least=2.0**-140),
    "softplus": Bound(3),
}


@each_kind("cxx", "f64")
def test_agrees_with_pytorch(library: ctypes.CDLL, case: Case, kind: str) -> None:
    inputs = [tensor.to(KINDS[kind]) for tensor in samples(case.function.required)]
    result = call(library, case, *(each.cuda() for each in inputs), kind=kind).cpu()
    check(case, kind, result, inputs, {**BOUNDS, **OF_DEVICE}.get(case.function.name, Bound()))
