"""The C++ functions as device code: nvcc takes them without a warning, in every type, in each target's PTX."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from evt.compilation import find_toolchain
from evt.functions import TABLE, Fact, function
from evt.functions.testing import temporarily
from tests.support.depth import in_depth

pytestmark = pytest.mark.nvcc

INCLUDE = Path(__file__).parents[2] / "codegen/include"


def kernel(name: str, expression: str, operands: int, element: str, result: str, conditions: frozenset[int]) -> str:
    loads = [f"x[{slot} * n + i]" for slot in range(operands)]
    loads = [f"({load} != 0)" if slot in conditions else load for slot, load in enumerate(loads)]
    body = f"int i = threadIdx.x; y[i] = {expression.format(*loads)};"
    return f'extern "C" __global__ void {name}({element} const* x, {result}* y, int n) {{ {body} }}\n'


def kernels() -> str:
    code = ""
    for row in TABLE.values():
        count = len(row.parameters)
        named = f"evt::fn::{row.name}({', '.join(f'{{{slot}}}' for slot in range(count))})"
        forms = [("cxx", row.cxx, "float"), ("f32", named, "float"), ("f64", named, "double")]
        forms += [("i32", named, "int32_t")] if Fact.INTEGER in row.facts else []
        forms += [("fast", row.fast, "float")] if row.fast else []
        forms += [("eager", row.cxx_eager, "float")] if row.eager else []
        for kind, expression, element in forms:
            if kind == "cxx" or not row.source:
                result = "bool" if row.result == "predicate" else element
                code += kernel(f"{row.name}_{kind}", expression, count, element, result, row.conditions)
    return code


@pytest.mark.parametrize("arch", in_depth(["sm_80", "sm_90"], quick=["sm_90"]))
def test_device_code(tmp_path: Path, arch: str) -> None:
    with temporarily():
        row = function("snake(x, a=1, unused=0)", cxx="x + sinf(a * x)", torch=lambda t, x, a, unused: x + t.sin(a * x))
        source = tmp_path / "functions.cu"
        headers = '#include "evt/functions.hpp"\n#include "evt/functions_fast.hpp"\n'
        headers += '#include "evt/functions_eager.hpp"\n'
        source.write_text(f"{headers}{row.source}\n{kernels()}", encoding="utf-8")
    flags = ["-std=c++17", f"-arch={arch}", "-cubin", "-Werror", "all-warnings", f"-I{INCLUDE}"]
    command = [str(find_toolchain().nvcc), *flags, str(source), "-o", str(tmp_path / "functions.cubin")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""


@pytest.mark.parametrize("name", ["sqrt", "rsqrt", "exp", "tanh"])
def test_equal_values_of_a_column_are_computed_once(tmp_path: Path, name: str) -> None:
    """A batch norm's factors: the compiler merges the divisions of a column if it sees that they are equal."""
    body = f"""float value = x[threadIdx.x];
        #pragma unroll
        for (int row = 0; row < 16; ++row) y[row * n] = y[row * n] * evt::fn::rcp(evt::fn::{name}(value));"""
    source = tmp_path / "column.cu"
    code = f'extern "C" __global__ void column(float const* x, float* y, int n) {{ {body} }}'
    source.write_text(f'#include "evt/functions.hpp"\n{code}\n', encoding="utf-8")
    command = [str(find_toolchain().nvcc), "-std=c++17", "-arch=sm_90", "-ptx", f"-I{INCLUDE}", str(source)]
    done = subprocess.run([*command, "-o", str(tmp_path / "column.ptx")], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "column.ptx").read_text(encoding="utf-8").count("rcp.rn.f32") == 1
