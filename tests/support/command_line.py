"""The command line as tests call it, in this process or in a new one, and programs for it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
from click.testing import CliRunner, Result

from evt.cli import main

FORMULA = "D = relu(alpha*acc + beta*C) + residual"
THREE_OUTPUTS = "out D, E: f32[m, n], F; z = alpha*acc + bias; E = tanh(z); F = z*E + C; D = F*residual + E*z"
WITH_HEADER = "linear(A: bf16[m, k], B: bf16[n, k]); D = acc"
REDUCED = "out D, s: f32[m], amax: f32; D = gelu(acc); s = sum[n](D); amax = max[m, n](abs(acc))"
WRONG = "D = foo(acc)"


def context() -> click.Context:
    """Return a context of `evt`, for commands that are called without it: they keep its help option from then on."""
    return click.Context(main, **main.context_settings)


def run(*arguments: str, stdin: str | bytes | None = None, **environment: str) -> Result:
    return CliRunner().invoke(main, arguments, input=stdin, env=environment, prog_name="evt")


def process(*arguments: str, stdin: bytes | None = None, **environment: str) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-m", "evt", *arguments]
    return subprocess.run(command, input=stdin, capture_output=True, env={**os.environ, **environment})


def ok(*arguments: str, stdin: str | bytes | None = None) -> str:
    result = run(*arguments, stdin=stdin)
    assert (result.exit_code, result.stderr) == (0, ""), result.output
    return result.stdout


def document(result: Result) -> Any:
    return json.loads(result.stdout)


def formula_file(folder: Path) -> Path:
    path = folder / "formula.evt"
    path.write_text(FORMULA + "\n")
    return path


EVERYTHING = """
in s: f32[m?], bias: f16[n] = 0, gate: b1[m, n]
out D: f16[m, n/2], full: f32[m, n], scale: f32[m, n/32], seen: b1[m, n], total: f32[m], amax: f32
out q: i8[m, n], h: e4m3[m, n], i: i32[m, n], u: u8[m, n], d: f64[m, n]
z = where(gate && iota(n) <= iota(m) + 30, s * acc + bias, -0.5)
D = silu(even(z)) * bf16(odd(z))
scale = max[n%32](abs(z))
full = dropout(z, 0.1, seed, offset) / scale
seen = z > 0
total = sum[n](z)
amax = max[m, n](abs(z))
q = 20 * z
u = 20 * z
h = z
i = iota(m) * 3 + iota(n)
d = z
"""
