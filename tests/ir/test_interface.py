"""The inputs and outputs of a program, as `check`, `repr`, `explain` and emitted files print it."""

from __future__ import annotations

import json
import pickle

import pytest

import evt
from evt.ir.interface import NOTE, format_interface
from evt.request import typed_graph
from tests.support.command_line import run

TEXT = "in s: f32 = 2, r[m?]; out D, amax: f32; D = relu(s*acc + bias) + C*alpha*v[m]*r; amax = max[m, n](abs(D))"
LINES = (
    "gemm(A: f16*[m, k]*, B: f16*[k, n]*)",
    "in  s: f32 = 2",
    "in  bias: f16*[n]*",
    "in  C: f16*[m, n]*",
    "in  alpha: f32*",
    "in  v: f16*[m]",
    "in  r: f16*[m?]",
    "out D: f16*[m, n]*",
    "out amax: f32",
    NOTE,
)


def test_every_door_prints_the_same() -> None:
    op = evt.gemm(TEXT)
    assert format_interface(typed_graph(op.request)) == LINES
    assert run("check", TEXT).stdout == "".join(f"{line}\n" for line in ("<formula>: ok", *(f"    {x}" for x in LINES)))
    assert op.explain("sm90").details().startswith("\n".join((*LINES, "target sm90\n")))
    for arch in ("sm80", "sm90", "sm100"):
        heading = op.emit(arch).partition("\n\n")[0].splitlines()
        at = heading.index(f"// {LINES[0]}")
        assert heading[at : at + len(LINES)] == [f"// {line}" for line in LINES]
    assert json.loads(run("check", TEXT, "--json").stdout)["programs"][0]["interface"] == list(LINES)


@pytest.mark.parametrize(
    ("op", "shown"),
    [
        (
            evt.gemm(TEXT),
            "<evt.Program gemm(A[m, k]*, B[k, n]*): s: f32 = 2, bias[n]*, C[m, n]*, alpha*, v[m], r[m?] "
            "-> D[m, n]*, amax: f32; * inferred>",
        ),
        (
            evt.gemm("gemm(A: e4m3[m, k], B: e4m3[n, k]); in s: f32 = -0.5; out D: bf16[m, n]; D = s*acc"),
            "<evt.Program gemm(A: e4m3[m, k], B: e4m3[n, k]): s: f32 = -0.5 -> D: bf16[m, n]>",
        ),
        (evt.conv2d("D = acc"), "<evt.Program conv2d(A*, B*): -> D[m, n]*; * inferred>"),
        (
            evt.grouped_gemm("D[n, m] = acc"),
            "<evt.GroupedProgram grouped_gemm(A[m, k]*, B[k, n]*): -> D[n, m]; * inferred>",
        ),
    ],
)
def test_repr(op: object, shown: str) -> None:
    assert repr(op) == shown


def test_types_of_operands_decide_what_is_inferred() -> None:
    op = evt.gemm("D = acc*alpha + C")
    assert format_interface(typed_graph(op.request, "f64", "f64"))[1:3] == ("in  alpha: f64*", "in  C: f64*[m, n]*")
    assert format_interface(typed_graph(op.request, "e4m3", "e5m2"))[0] == "gemm(A: e4m3*[m, k]*, B: e5m2*[k, n]*)"


def test_what_is_all_written_has_no_mark() -> None:
    assert run("check", "samples/amax.evt").stdout.splitlines()[-1] == "    out amax: f32"


def test_a_pickle_keeps_the_marks() -> None:
    op = evt.gemm(TEXT)
    assert repr(pickle.loads(pickle.dumps(op))) == repr(op)
