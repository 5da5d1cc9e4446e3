"""The C++ functions, compiled for a GPU with its approximate instructions, equal PyTorch's."""

from __future__ import annotations

import ctypes
import subprocess

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


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    folder = tmp_path_factory.mktemp("functions")
    text, binary = folder / "functions.cu", folder / "functions.so"
    text.write_text(source(LOOP), encoding="utf-8")
    major, minor = torch.cuda.get_device_capability()
    flags = ["-O2", "-std=c++17", f"-arch=sm_{major}{minor}", "-Xcompiler", "-fPIC", "-shared", f"-I{INCLUDE}"]
    subprocess.run([find_toolchain().nvcc, *flags, str(text), "-o", str(binary)], check=True)
    return ctypes.CDLL(str(binary))


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
