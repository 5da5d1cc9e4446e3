"""A graph written as a program's text, which means the same when it is read."""

from __future__ import annotations

from pathlib import Path

import pytest

import evt
from evt.ir.dag import Dag
from evt.ir.formula import formula
from evt.ir.text import format_dag

SAMPLES = sorted((Path(__file__).parents[2] / "samples").glob("*.evt"))
TEXTS = (
    "D = acc - (C - residual)",
    "D = acc - C - residual",
    "D = acc / (C * 2) * -residual",
    "D = (-acc)**2 - -(acc**2)",
    "D = where(!(acc > 0 && C > 0) || residual == 0, -inf, acc)",
    "D = (acc > 0) * (C < 1)",
    "in s: f32[m?], t: f16[n] = 0.5, p: f32 = -1\nout D: bf16[n, m], E: f32[l, m, n]\nD = s*acc + t*p; E = bf16(acc)",
    "out r: f32[m], D\nr = rsqrt(sum[n](acc*acc)/size(n) + 0.001); D = acc",
    "D = max[n%32](acc)",
    "D = silu(even(acc, 32)) * odd(acc, 32)",
    "D = where(iota(n) <= iota(m), acc, 1e-07)",
    "in seed: i64, offset: i64\nD = where(rand(seed, offset) >= 0.5, acc, 0)",
    "in index: i32[m]\nD[index[m], n] = acc",
    "A = relu(A*s[k] + t[k])\nD = acc + bias",
    "gemm(A: e4m3[m, k], B: e4m3[n, k])\nD = acc * alpha",
)


def meaning(dag: Dag) -> list[str]:
    """Return the lines of a graph; the order in which inputs are declared and values numbered may differ."""
    written = format_dag(dag).splitlines()
    return sorted(line for line in written if not line.startswith("%"))


@pytest.mark.parametrize("text", [*TEXTS, *(pytest.param(path.read_text("utf-8"), id=path.stem) for path in SAMPLES)])
def test_it_reads_back(text: str) -> None:
    """Written again it is the same text, with the same interface and number of nodes."""
    dag = evt.gemm(text).request.dag
    again = evt.gemm(formula(dag)).request.dag
    assert formula(again) == formula(dag)
    assert len(again) == len(dag)
    assert meaning(again) == meaning(dag)


def test_a_program_prints_as_its_text() -> None:
    text = "D = relu(acc + bias)  # as given"
    assert str(evt.gemm(text)) == text
    dag = evt.gemm(text).request.dag
    assert str(evt.Program.from_dag(Dag(dag.operation, (), dag.inputs, dag.outputs, dag.table))) == formula(dag)
