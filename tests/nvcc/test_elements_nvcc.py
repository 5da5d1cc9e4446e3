"""Conversions of own kernels as device code: nvcc compiles a store of each type of values to each type of elements."""

from __future__ import annotations

import subprocess
from itertools import product
from pathlib import Path

import pytest

from evt.compilation import find_toolchain
from evt.emission.expressions import REGISTER, fragment_element
from evt.ir.dtype import BF16, BY_NAME, F16, F64, PACKED_OPERANDS, TF32

pytestmark = pytest.mark.nvcc

INCLUDE = Path(__file__).parents[2] / "codegen/include"
PROGRAM = """
#include "evt/element.hpp"
namespace element = evt::element;
template <class T, class Value>
__global__ void one(T* to, element::Register<T>* rounded, Value const* x) {
  element::store(*to, *x);
  *rounded = element::round_to<T>(*x);
}
template <class T, class Value>
__global__ void two(uint32_t* to, Value const* x) { element::store_two(T{}, *to, x[0], x[1]); }
template <class T, class Value>
__global__ void words(uint32_t* to, Value const* x, element::Register<T>* loaded, T) {
  if constexpr (sizeof(T) == 4) {
    to[0] = element::to_word<T>(x[0]);
  } else {
    element::store_held<T>(to[0], element::held<T>(x[0]), x[1]);
  }
  if constexpr (sizeof(T) != 2) loaded[0] = element::of_word<T>(to[1]);
}
"""


def test_every_value_is_stored_as_every_element(tmp_path: Path) -> None:
    elements = sorted({fragment_element(dtype) for dtype in BY_NAME.values() if dtype not in (F64, *PACKED_OPERANDS)})
    values = sorted(REGISTER.values())
    code = [
        f"template __global__ void one({to}*, element::Register<{to}>*, {value} const*);\n"
        for to, value in product(elements, values)
    ]
    code += [
        f"template __global__ void two<{fragment_element(to)}>(uint32_t*, {value} const*);\n"
        for to, value in product((F16, BF16), values)
    ]
    staged = {fragment_element(to) for to in BY_NAME.values() if to.bits in (8, 16, 32) and to != TF32}
    code += [
        f"template __global__ void words(uint32_t*, {value} const*, element::Register<{to}>*, {to});\n"
        for to, value in product(sorted(staged), values)
    ]
    source = tmp_path / "elements.cu"
    source.write_text(PROGRAM + "".join(code), encoding="utf-8")
    toolchain = find_toolchain()
    includes = [f"-I{INCLUDE}", "-isystem", str(toolchain.cutlass_include)]
    flags = ["-std=c++17", "-arch=sm_90", "-cubin", "-Werror", "all-warnings", *includes]
    command = [str(toolchain.nvcc), *flags, str(source), "-o", str(tmp_path / "elements.cubin")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
