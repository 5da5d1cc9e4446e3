"""First drafts of users: `evt check` accepts them with the intended meaning, or suggests a correction."""

from __future__ import annotations

import pytest

from tests.support.command_line import run

OPERANDS = "gemm(A: f16*[m, k]*, B: f16*[k, n]*)"
ACCEPTED = {
    "a scale and its maximum": (
        "in scale: f32\nout D: bf16[m, n], amax: f32\nz = scale*acc + bias\nD = z\namax = max[m, n](abs(z))",
        ["in  scale: f32", "in  bias: bf16*[n]*", "out D: bf16[m, n]", "out amax: f32"],
    ),
    "a zero point": (
        "in scale: f32, zp: i32\nout D: i8\nD = scale*acc + zp",
        ["in  scale: f32", "in  zp: i32", "out D: i8[m, n]*"],
    ),
    "a scaled gate of half the width": (
        "in scale: f32\nout D: bf16[m, n/2]\nD = scale*silu(even(acc))*odd(acc)",
        ["in  scale: f32", "out D: bf16[m, n/2]"],
    ),
    "an epsilon": (
        "in eps: f32, w: f16[n]\nout D: f16\nD = (acc + eps)*w",
        ["in  eps: f32", "in  w: f16[n]", "out D: f16[m, n]*"],
    ),
    "two scales": (
        "in scale_a: f32, scale_b: f32, bias: bf16[n]\nout D: bf16\nD = scale_a*scale_b*acc + bias",
        ["in  scale_a: f32", "in  scale_b: f32", "in  bias: bf16[n]", "out D: bf16[m, n]*"],
    ),
    "statistics": (
        "in norm_const: f32\nout amax: f32\namax = max[m, n](abs(acc*norm_const))",
        ["in  norm_const: f32", "out amax: f32"],
    ),
    "a default": ("in scale: f32 = 1\nD = scale*acc", ["in  scale: f32 = 1", "out D: f16*[m, n]*"]),
    "numbered factors": (
        "D = alpha1*acc + alpha2*C",
        ["in  alpha1: f32*", "in  alpha2: f32*", "in  C: f16*[m, n]*", "out D: f16*[m, n]*"],
    ),
}


@pytest.mark.parametrize("draft", ACCEPTED)
def test_what_is_meant(draft: str) -> None:
    text, lines = ACCEPTED[draft]
    printed = run("check", text).stdout.splitlines()
    assert printed[0] == "<formula>: ok"
    assert printed[1:-1] == [f"    {line}" for line in (OPERANDS, *lines)]


CORRECTED = {
    "a matrix by its subscript at a use": (
        "in C: f16\nD = alpha*acc + beta*C[m, n]",
        "error[E0302]: `C` is a scalar, because its declaration has no subscript\n"
        " --> <formula>:2:23\n"
        "  |\n"
        "1 | in C: f16\n"
        "  |    - declared here\n"
        "2 | D = alpha*acc + beta*C[m, n]\n"
        "  |                       ^^^^^^ a scalar has no modes\n"
        "  = help: declare its modes: `in C: f16[m, n]`\n",
        "in C: f16[m, n]\nD = alpha*acc + beta*C[m, n]",
    ),
    "a matrix of a type that no scalar has": (
        "in residual: i8\nD = acc + residual",
        "error[E0308]: scalar `residual` is i8, which is not a type of scalars\n"
        " --> <formula>:1:4\n"
        "  |\n"
        "1 | in residual: i8\n"
        "  |    ^^^^^^^^\n"
        "  = help: a scalar is one of f64, f32, f16, bf16, i64, i32, bool; "
        "a matrix is declared `in residual: i8[m, n]`\n",
        "in residual: i8[m, n]\nD = acc + residual",
    ),
    "a vector that varies too much": (
        "in x: f32[m]\nout D, s: f32[m]\nD = acc\ns = sqrt(x) + bias",
        "error[E0304]: `s` is [m] but its value varies over [m, n]\n"
        " --> <formula>:4:5\n"
        "  |\n"
        "2 | out D, s: f32[m]\n"
        "  |        - has no mode `n`\n"
        "...\n"
        "4 | s = sqrt(x) + bias\n"
        "  |     ^^^^^^^^^^^^^^ varies over [m, n]\n"
        "  |               ---- `bias` is [n]\n"
        "  = help: write `s[m, n]`, or reduce it: `sum[n](x)`\n",
        "in x: f32[m]\nout D, s: f32[m, n]\nD = acc\ns = sqrt(x) + bias",
    ),
}


@pytest.mark.parametrize("draft", CORRECTED)
def test_what_to_write(draft: str) -> None:
    text, printed, corrected = CORRECTED[draft]
    found = run("check", text)
    assert (found.exit_code, found.stderr) == (1, printed)
    assert run("check", corrected).exit_code == 0
