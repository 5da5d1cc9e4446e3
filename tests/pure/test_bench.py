"""The benchmark without a GPU: its baselines compute the formula, its arithmetic is right."""

from __future__ import annotations

import json
import math
import os
import re
import stat
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from click.testing import CliRunner

import evt.bench.case
import evt.bench.epilogue
import evt.bench.host
import evt.bench.kernel
import evt.bench.run
import evt.bench.suites
import evt.tuning.clock
from evt.bench import (
    BASELINES,
    SUITES,
    Case,
    CaseResult,
    EpilogueResult,
    HostResult,
    Row,
    bench,
    bench_host,
    convolution_case,
    describe_machine,
    straight_line,
    suite,
    summarise,
    to_json,
    write_json,
)
from evt.bench.answer import oracle
from evt.bench.case import draw
from evt.bench.epilogue import measure_epilogues
from evt.bench.host import host_samples
from evt.bench.idiom import UnwrittenError
from evt.bench.kernel import kernel_taken, plans_of
from evt.bench.report import Report, notes
from evt.bench.run import build_all, measure
from evt.bench.straight import is_elementwise
from evt.bench.tensors import poison, random_tensor
from evt.bench.versions import baseline, check_baselines, fastest_convolutions
from evt.cli import main
from evt.cli.bench import _BASELINES
from evt.diagnostics import Diagnostic, Source
from evt.errors import ArgumentError, LaunchError, TargetError
from evt.functions import TABLE
from evt.ir.dtype import B1, BY_NAME, STORAGE, U8, DType
from evt.plan import find_target
from evt.program import Program, program_of
from evt.reference.compare import as_numbers, as_steps, relative_error
from evt.spec import Shapes
from evt.tuning.clock import GpuClock, interleave

CPU = torch.device("cpu")
no_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")

FORMULAS = {
    "residual": "D = relu(alpha*acc + beta*C) + residual",
    "bias gelu": "D = gelu(acc + bias)",
    "gelu_tanh": "D = gelu_tanh(acc + bias)",
    "row and column scale": "in scale_a: f32[m], scale_b: f32[n]\nD = scale_a * (scale_b * acc)",
    "transposed output": "out D: f32[n, m]\nD = silu(acc) + C",
    "transposed input": "in T: f32[n, m]\nD = acc * T - 1",
    "casts": "z = bf16(acc + bias)\nD = z + C",
    "outputs": "out D, Z, E: f16[m, n]\nZ = acc + bias\nD = mish(Z)\nE = Z * 0.5",
    "output apart from acc": "out D, E, F: f32[n, m]\nD = acc\nE = bias * 2\nF = C",
    "constant output": "out D, E\nD = acc\nE = 0.5 + 0.25",
    "numbers in every place": "D = min(max(acc, -0.5), 0.5) + 1 / (2 + abs(C)) + pow(2, C) + max(0.1, acc)",
    "mixed limits": "D = clamp(acc, -1, abs(C))",
    "scalars alone": "D = acc * sqrt(alpha * 2) + relu(beta)",
    "parameters": "D = leaky_relu(acc, 0.2) + softplus(acc, beta=2) + hardtanh(C, -2, 2) + elu(acc)",
    "default": "in gain: f32 = 1.5\nD = fma(gain, acc, C) ** 2",
    "keywords of Python": "D = acc + lambda * class + torch",
    "header": "gemm(A: f32[k, m], B: f32[n, k])\nD = acc + bias",
}
BATCHED = {
    "residual": "D = relu(alpha*acc + beta*C) + residual",
    "bias": "D = acc + bias",
    "own batches": (
        "in t: f32[l, m, n], r: f32[l, n], c: f32[l, m], s: f32[l], v: f32[m]\nD = acc * s + t * r - c * v"
    ),
    "permuted": "in t: f32[n, l, m]\nout D: f32[n, m], E: f32[m, l, n]\nD = acc + t\nE = acc * 2",
    "transposed": "in t: f32[n, m]\nout D: f32[n, m]\nD = acc - t",
}


#: Integers, bits, 8-bit floats, reductions, coordinates and pairs: (operands, formula).
LANGUAGE = {
    "where": ("f32", "D = where(acc > 0 && !(C >= 1) || acc == C, acc * 2, where(C < 0, -0.5, bias))"),
    "where of numbers": ("f32", "D = acc * where(acc != 0, 1, 0) + where(1 < 2, C, acc)"),
    "isnan": ("f32", "D = where(isnan(acc), 0, acc)"),
    "def": ("f32", "def hard(x, y) = x / 2 * min(2, max(0, x + y))\nD = hard(acc, 2)"),
    "derivative": ("f32", "D = acc * gelu'(C)"),
    "sums": ("f32", "out D, s: f32[m], t: f32[n], u: f32\nD = acc\ns = sum[n](D)\nt = sum[m](C)\nu = sum[m, n](D)"),
    "extremes": (
        "f32",
        "out D, s: f32[m], t: f32[n], u: f32\nD=acc\ns=max[n](acc)\nt=min[m](C)\nu=max[m, n](abs(acc))",
    ),
    "sums of what does not vary": (
        "f32",
        "out D, s: f32, t: f32, u: f32[n]\nD = acc\ns = sum[n](2)\nt = sum[m, n](bias)\nu = sum[m](bias)",
    ),
    "sum of truth values": ("f32", "out D, s: i32[m]\nD = acc\ns = sum[n](acc > 0)"),
    "blocks": ("f32", "out D, s: f32[m, n/16]\ns = max[n%16](abs(acc))\nD = acc / s"),
    "sums of blocks": ("f32", "out D, s: f32[m, n/16]\ns = sum[n%16](C)\nD = acc"),
    "coordinates": ("f32", "D = where(iota(n) <= iota(m), acc, 0) + iota(l)"),
    "pairs": ("f32", "D = silu(even(acc + bias)) * odd(acc + bias) + even(s[m])"),
    "pairs far apart": ("f32", "D = even(acc, 8) * odd(acc, 8)"),
    "output of pairs apart from acc": ("f32", "out D, E: f32[m, n/2]\nD = acc\nE = even(bias) + odd(bias)"),
    "bits": ("f32", "out D, mask: b1[m, n]\nD = relu(acc)\nmask = acc > 0"),
    "bits apart from acc": ("f32", "out D, mask: b1[m, n]\nD = acc\nmask = bias > 0"),
    "bits of a constant": ("f32", "out D, mask: b1[m, n]\nD = acc\nmask = 1 > 0"),
    "bits of numbers": ("f32", "out D, mask: b1[m, n]\nD = acc\nmask = round(acc)"),
    "masks": ("f32", "in mask: b1[m, n]\nD = where(mask, acc, 0) + mask"),
    "flexible": ("f32", "in s: f32[m?]\nD = s * acc"),
    "defaults": ("f32", "in bias: f32[n] = 0\nD = acc + bias"),
    "doubles": ("f64", "D = gelu(alpha * acc + bias) + 0.1 * where(acc > 0, 0.1, 0.2)"),
    "integers": ("i8", "in azp: i32[m], adj: i32[n]\nout D: i32[m, n]\nD = acc - azp * adj + abs(acc) + (acc > 0) - 3"),
    "integers in 8 bits": ("i8", "in c: i8[m, n], d: u8[m, n]\nout D: i32[m, n]\nD = acc + c * c * d * d"),
    "quantised product": (
        "i8",
        "in s: f32[m], azp: i32[m], adj: i32[n], bias: bf16[n]\nout D: f32[m, n]\nD = s * (acc - azp * adj) + bias",
    ),
    "bf16 of integers": ("i8", "in s: f32[n]\nD = gelu(acc * s * 0.01)"),
    "sums of integers": (
        "i8",
        "out D: i32[m, n], s: i32[m], t: i32\nD = acc\ns = sum[n](acc)\nt = max[m, n](abs(acc))",
    ),
    "to integers": ("f32", "out D: i8[m, n], E: u8[m, n], F: i32[m, n]\nD = 100 * acc\nE = 100 * acc\nF = 1e10 * acc"),
    "casts to integers": ("f32", "out D: f32[m, n]\nD = i8(100 * acc) + u8(3 * C) / 2 + i32(acc * 10)"),
    "casts of integers": ("i8", "out D: f32[m, n]\nD = i8(acc) + e4m3(acc) + f32(u8(acc))"),
    "8-bit floats": ("f32", "out D: e4m3[m, n], E: e5m2[m, n]\nD = 1000 * acc\nE = 1e5 * acc"),
    "casts to 8-bit floats": ("f32", "in c: e4m3[m, n]\nout D: f32[m, n]\nD = e4m3(acc) * 2 + c * e5m2(acc)"),
    "product of 8-bit floats": ("e4m3", "in s: f32[m]\nout D: f32[m, n]\nD = s * acc"),
    "u8": ("u8", "out D: i32[m, n]\nD = acc"),
}
#: Convolutions: (operation, shapes of A and B, geometry).
CONVOLUTIONS: dict[str, tuple[str, Shapes, dict[str, Any]]] = {
    "1x1": ("conv2d", ((2, 8, 5, 6), (16, 8, 1, 1)), {}),
    "3x3": ("conv2d", ((2, 8, 5, 6), (16, 8, 3, 3)), {"padding": 1}),
    "strided": ("conv2d", ((2, 8, 9, 7), (16, 8, 3, 2)), {"stride": (2, 1), "padding": (1, 0), "dilation": (1, 2)}),
    "uneven": ("conv2d", ((2, 8, 5, 6), (16, 8, 3, 3)), {"padding": ((0, 1), (2, 1))}),
    "same": ("conv2d", ((2, 8, 5, 6), (16, 8, 2, 4)), {"padding": "same"}),
    "groups": ("conv2d", ((2, 8, 5, 6), (16, 4, 3, 3)), {"groups": 2}),
    "rows": ("conv1d", ((3, 8, 11), (16, 8, 3)), {"padding": 1}),
    "volumes": ("conv3d", ((2, 8, 3, 4, 5), (16, 8, 1, 3, 3)), {"padding": (0, 1, 1)}),
    "dgrad": ("conv2d_dgrad", ((2, 8, 3, 4), (8, 16, 3, 3)), {"stride": 2, "padding": 1, "output_padding": (1, 0)}),
    "uneven dgrad": ("conv2d_dgrad", ((2, 8, 5, 6), (8, 16, 3, 3)), {"padding": ((0, 1), (2, 1))}),
    "same dgrad": ("conv1d_dgrad", ((2, 8, 5), (8, 16, 4)), {"padding": "same"}),
    "wgrad": ("conv2d_wgrad", ((2, 8, 5, 6), (2, 16, 5, 6)), {"padding": 1, "kernel_size": 3}),
    "uneven wgrad": ("conv2d_wgrad", ((2, 8, 6, 6), (2, 16, 7, 7)), {"padding": ((1, 0), (0, 1)), "kernel_size": 3}),
}
#: Their formulas; those after the first group need more than images and vectors.
ON_IMAGES = {
    "residual": "D = relu(alpha*acc + bias) + residual",
    "vectors": "in s: f32[m], t: f32[m?]\nD = s * acc + t * bias",
    "outputs": "out D, Z, E, F\nZ = acc + bias\nD = gelu(Z)\nE = 0.5\nF = bias * 2",
    "numbers": "D = clamp(acc, -1, abs(C)) + pow(2, C)",
}
ON_MATRICES = {
    "sums": "out D, s: f32[m], t: f32[n], u: f32\nD = acc + C\ns = sum[n](D)\nt = sum[m](C)\nu = max[m, n](abs(D))",
    "transposed": "in T: f32[n, m]\nout D: f32[n, m]\nD = acc + T",
    "pairs": "D = silu(even(acc + bias)) * odd(acc + C)",
    "blocks": "out D, s: f32[m, n/16]\ns = max[n%16](abs(acc))\nD = acc / s",
    "bits": "in keep: b1[m, n]\nout D, mask: b1[m, n]\nD = where(keep, acc, C)\nmask = acc > 0",
    "coordinates": "D = where(iota(n) <= iota(m), acc, bias)",
}
RANDOM = "D = dropout(acc, 0.1, seed, offset)"


def make(text: str, *, dtype: str | None = "f32", l: int = 1, op: str = "gemm") -> Case:  # noqa: E741
    program = Program(Source(text), op)
    n = 32 if re.search(r"%16|, 8\)", text) else 20
    return Case("case", program, 12, n, 28, l, None if program.spec.dag.operands else dtype)


def both(case: Case) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """What the straight-line function and the reference give, output by output."""
    data = draw(case, CPU, seed=3)
    function = straight_line(case.dag, case.scalars, batched=case.batched, problem=case.problem)
    results = function(data.A, data.B, *data.tensors.values())
    right = case.program.reference(data.A, data.B, **data.inputs)
    one = isinstance(right, torch.Tensor)
    return list(zip((results,) if one else results, (right,) if one else right, strict=True))


def check(case: Case, limit: float) -> None:
    for output, right in both(case):
        assert output.shape == right.shape
        assert output.dtype == right.dtype
        assert case.shapes is not None or output.is_contiguous()
        assert relative_error(output, right.double()) <= limit


@pytest.mark.parametrize("text", FORMULAS.values(), ids=FORMULAS)
def test_straight_line_is_the_formula(text: str) -> None:
    check(make(text), 5e-3 if "bf16(" in text else 2e-6 if "f16" not in text else 1e-3)


@pytest.mark.parametrize("text", BATCHED.values(), ids=BATCHED)
def test_straight_line_batched(text: str) -> None:
    check(make(text, l=3), 2e-6)


@pytest.mark.parametrize("dtype", ["bf16", "f16"])
@pytest.mark.parametrize("text", ["D = gelu(acc + bias) * 2", FORMULAS["row and column scale"]])
def test_straight_line_in_the_tensors_own_types(text: str, dtype: str) -> None:
    check(make(text, dtype=dtype), 2e-2)


@pytest.mark.parametrize("batches", [1, 3])
@pytest.mark.parametrize(("dtype", "text"), LANGUAGE.values(), ids=LANGUAGE)
def test_straight_line_of_the_language(dtype: str, text: str, batches: int) -> None:
    check(make(text, dtype=dtype, l=batches), 5e-3 if "bf16 of" in text or dtype == "i8" else 2e-6)


def test_straight_line_refuses_random_numbers() -> None:
    with pytest.raises(UnwrittenError, match="PyTorch draws other random numbers"):
        straight_line(make(RANDOM).dag, {"seed": 1, "offset": 2})
    measured = measure(make(RANDOM), ("eager", "mm"), clock, CPU, rounds=2)
    row = measured.row("eager")
    assert row is not None
    assert row.failure == "PyTorch draws other random numbers than the program"
    assert not measured.wrong
    assert measured.ms("evt") is not None


@pytest.mark.parametrize(
    ("a", "b", "batches", "said"),
    [
        ("i8", "i8", 1, "_int_mm"),
        ("e4m3", "e5m2", 1, "_scaled_mm"),
        ("i8", "i8", 2, "no batched product"),
        ("i8", "u8", 1, "no product of i8 and u8"),
        ("e5m2", "e5m2", 1, "no product of e5m2 and e5m2"),
    ],
)
def test_products_of_8_bits_on_cuda(a: str, b: str, batches: int, said: str) -> None:
    case = make(f"gemm(A: {a}[m, k], B: {b}[k, n])\nD = 0.5 * acc", l=batches)
    if said.startswith("_"):
        assert said in straight_line(case.dag, {}, device="cuda").code
        return
    with pytest.raises(UnwrittenError, match=said):
        straight_line(case.dag, {}, batched=case.batched, device="cuda")


def test_integers_are_written_as_a_user_does() -> None:
    code = straight_line(make("in s: f32[m]\nD = s * (acc - 3)", dtype="i8").dag, {}).code
    assert "- 3" in code
    assert ".to(torch.float32)" not in code.replace("_like", "")  # int32 times f32 is f32


def test_straight_line_of_linear() -> None:
    case = make("D = relu(acc + bias)", op="linear")
    assert "linear(a, b)" in straight_line(case.dag, {}).code
    check(case, 2e-6)


@pytest.mark.parametrize("name", TABLE)
def test_straight_line_of_every_function(name: str) -> None:
    arguments = ["abs(acc) + 1", "abs(C) + 2", "abs(R) + 4"][: TABLE[name].required]
    if name in ("logit", "asin", "acos", "atanh"):
        arguments = ["sigmoid(acc) * 0.9 + 0.05"]
    check(make(f"D = {name}({', '.join(arguments)})"), 1e-5)


def test_the_code_is_what_a_user_writes() -> None:
    case = make("D = leaky_relu(0.1 * bf16(acc) + 0.1 * bf16(C), 0.01)", dtype="bf16")
    code = straight_line(case.dag, {}).code
    assert "a @ b" in code
    assert ".to(" not in code  # they are bf16 already
    assert "0.1" in code
    assert "leaky_relu" in code
    assert "negative_slope = 0.01" in code


def make_convolution(
    text: str, op: str, shapes: Shapes, geometry: dict[str, Any] | None = None, dtype: str | None = "f32"
) -> Case:
    return convolution_case("case", Program(Source(text), op, **(geometry or {})), shapes, dtype=dtype)


#: The reference takes no bits, pairs or blocks of the columns of a wgrad, which stand for several dimensions.
NOT_OF_WGRADS = ("pairs", "blocks", "bits")


@pytest.mark.parametrize(
    ("name", "formula"),
    [
        (name, formula)
        for name in CONVOLUTIONS
        for formula in (*ON_IMAGES, *ON_MATRICES)
        if "wgrad" not in name or formula not in NOT_OF_WGRADS
    ],
)
def test_straight_line_of_convolutions(name: str, formula: str) -> None:
    check(make_convolution({**ON_IMAGES, **ON_MATRICES}[formula], *CONVOLUTIONS[name]), 5e-6)


def test_straight_line_of_a_convolution_is_what_a_user_writes() -> None:
    shapes, geometry = CONVOLUTIONS["3x3"][1:]
    case = make_convolution("D = relu(acc + bias) + residual", "conv2d", shapes, geometry)
    code = straight_line(case.dag, {}, problem=case.problem).code
    assert "conv2d(a, b, stride = (1, 1), padding = (1, 1)" in code
    assert "reshape(-1, 1, 1)" in code
    for word in ("permute", "movedim", "flatten", ".to("):
        assert word not in code
    for texts, wanted in ((ON_IMAGES, True), (ON_MATRICES, False)):
        for text in texts.values():
            case = make_convolution(text, "conv2d", shapes, geometry)
            assert case.problem is not None
            assert is_elementwise(case.dag, case.problem) is wanted


def test_straight_line_of_a_convolution_of_8_bits() -> None:
    shapes = (2, 16, 5, 6), (16, 16, 3, 3)
    for dtype, text in (("i8", "out D: i32[m, n]\nD = acc + 1"), ("e4m3", "out D: f32[m, n]\nD = acc * 2")):
        case = make_convolution(text, "conv2d", shapes, dtype=dtype)
        check(case, 2e-6)
        with pytest.raises(UnwrittenError, match="no convolution of 8-bit operands"):
            straight_line(case.dag, {}, device="cuda", problem=case.problem)


def test_a_convolution_has_the_sizes_of_its_implicit_gemm() -> None:
    op, shapes, geometry = CONVOLUTIONS["3x3"]
    case = make_convolution(
        "out D: f32[m, n], s: f32[m]\nD = acc + bias\ns = sum[n](acc)", op, shapes, geometry, "bf16"
    )
    assert case.sizes == {"m": 60, "n": 16, "k": 72, "l": 1}
    assert case.flops == 2 * 60 * 16 * 72
    data = draw(case, CPU)
    assert data.bytes == {
        "A": 2 * 8 * 5 * 6 * 2,
        "B": 16 * 8 * 9 * 2,
        "bias": 16 * 4,
        "D": 60 * 16 * 4,
        "s": 60 * 4,
    }
    assert data.A.shape == (2, 8, 5, 6)
    assert data.A.is_contiguous(memory_format=torch.channels_last)
    assert data.B.is_contiguous(memory_format=torch.channels_last)
    assert data.outputs["D"].is_contiguous(memory_format=torch.channels_last)
    with pytest.raises(ArgumentError, match="E0604"):
        make_convolution("D = acc", "conv2d", ((2, 8, 5, 6), (16, 7, 3, 3)))


def test_small_convolutions_keep_their_kernel() -> None:
    case = make_convolution("D = acc", "conv2d", ((258, 3, 9, 9), (64, 3, 3, 3)), {"padding": 1})
    assert case.small().shapes == ((18, 3, 9, 9), (64, 3, 3, 3))
    few = make_convolution("D = acc", *CONVOLUTIONS["wgrad"])
    assert few.small() == few
    many = make_convolution("D = acc", "conv1d_wgrad", ((64, 8, 9), (64, 16, 9)), {"padding": 1, "kernel_size": 3})
    assert many.small().shapes == ((16, 8, 9), (16, 16, 9))


def test_small_cases_keep_their_alignment() -> None:
    case = Case("case", Program(Source("D = acc")), 4097, 1003, 4096)
    small = case.small()
    for size, wanted in ((small.m, 4097), (small.n, 1003), (small.k, 4096)):
        assert 256 <= size < 384
        assert math.gcd(size, 128) == math.gcd(wanted, 128)


def test_a_linear_map_has_no_batch() -> None:
    with pytest.raises(ArgumentError, match="no batch"):
        make("D = acc", l=2, op="linear")


def test_bytes_and_operations() -> None:
    case = make("out D: f32[m, n]\nD = alpha * acc + bias + s[m]", dtype="bf16")
    sizes = draw(case, CPU).bytes
    assert sizes == {"A": 12 * 28 * 2, "B": 28 * 20 * 2, "bias": 40 * 2, "s": 24 * 2, "D": 12 * 20 * 4}
    assert case.flops == 2 * 12 * 20 * 28


def test_random_data_is_repeatable_and_random() -> None:
    case = make("D = acc + C")
    first, again, other = draw(case, CPU, 1), draw(case, CPU, 1), draw(case, CPU, 2)
    assert torch.equal(first.A, again.A)
    assert not torch.equal(first.A, other.A)
    first.poison()
    assert first.outputs["D"].isnan().all()


# The suite


def test_suite() -> None:
    assert SUITES == ("gemm", "epilogue", "resnet")
    cases = suite("gemm")
    issue = [(case.m, case.n, case.k, case.bar) for case in cases[:3]]
    assert issue == [(6304, 3072, 768, 0.70), (16384, 1024, 1024, 0.70), (4096, 14336, 4096, 1.0)]
    assert len({case.name for case in cases}) == 6
    assert all(str(case.dag.operands[0].dtype) == "bf16" for case in cases)
    with pytest.raises(KeyError):
        suite("nothing")


def test_suite_formulas_are_right() -> None:
    for case in {case.name: case for case in suite("gemm")}.values():
        small = Case(case.name, case.program, 24, 16, 32, dtype="f32")
        check(small, 2e-6)


def test_suite_of_epilogues() -> None:
    cases = suite("epilogue")
    by_size: dict[tuple[int, ...], list[Case]] = {}
    for case in cases:
        by_size.setdefault((case.m, case.n, case.k), []).append(case)
    assert list(by_size) == [(4096, 4096, 4096), (16384, 1024, 1024)]
    for group in by_size.values():
        assert group[0].program.spec.source.text == "D = acc"
        assert len({case.name for case in group}) == len(group) == 11
    assert all(str(case.dag.operands[0].dtype) == "bf16" for case in cases)
    for case in cases[:11]:
        if case.name != "dropout":
            check(Case(case.name, case.program, 24, 16, 32, dtype="f32"), 2e-6)


def test_suite_of_resnet() -> None:
    cases = suite("resnet")
    assert len({case.name for case in cases}) == len(cases) == 20
    assert {str(case.dag.operands[0].dtype) for case in cases} == {"f16"}
    by_taps = {taps: [case for case in cases if case.name.startswith(f"{taps}x{taps} ")] for taps in (1, 3)}
    assert [case.shapes for case in by_taps[3]] == [
        ((256, c, side, side), (c, c, 3, 3)) for c, side in ((64, 56), (128, 28), (256, 14), (512, 7))
    ]
    assert {case.bar for case in by_taps[3]} == {1.1}
    assert {case.bar for case in by_taps[1]} == {0.8}
    assert len({id(case.program) for case in cases}) == 3
    assert [case.m for case in by_taps[1][:2]] == [256 * 56 * 56] * 2
    assert all(case.problem is not None and case.problem.results == case.problem.pixels for case in cases)
    few = suite("resnet", "bf16", 2)
    assert all(case.shapes is not None and case.shapes[0][0] == 2 for case in few)
    assert str(few[0].dag.operands[0].dtype) == "bf16"
    for case in (few[3], few[10], few[18]):
        check(case, 2e-2)


# The arithmetic


def test_summary() -> None:
    summary = summarise([4.0, 1.0, 3.0, 2.0, 100.0])
    assert (summary.median, summary.low, summary.high, summary.samples) == (3.0, 2.0, 4.0, 5)
    assert summary.spread == pytest.approx(2 / 3)
    assert summarise([2.0]).spread == 0.0


def result(**times: float) -> CaseResult:
    case = Case("case", Program(Source("D = acc")), 1000, 1000, 1000, dtype="bf16", bar=0.7)
    rows = [Row(name.replace("_", " "), summarise([time])) for name, time in times.items()]
    rows.append(Row("max-autotune", failure="no triton"))
    return CaseResult(case, tuple(rows), {"A": 2_000_000, "B": 2_000_000, "D": 2_000_000})


def test_ratios() -> None:
    measured = result(evt=0.5, evt_again=0.51, compile=1.0, mm=0.4)
    assert measured.ratio("evt", "compile") == 0.5
    assert measured.ratio("evt", "mm") == pytest.approx(1.25)
    assert measured.ratio("max-autotune", "compile") is None
    assert measured.ratio("evt", "eager") is None
    assert measured.noise == pytest.approx(0.02)
    assert measured.within_bar is True
    assert measured.tflops == pytest.approx(4.0)  # 2e9 operations in 0.5 ms
    assert measured.gbytes_per_s == pytest.approx(12.0)  # 6 MB in 0.5 ms
    assert result(evt=0.8, compile=1.0).within_bar is False
    assert result(evt=0.8).within_bar is None
    assert result(compile=0.8).tflops is None


def test_notes_name_the_bytes_and_the_bar() -> None:
    text = "\n".join(notes(result(evt=0.8, evt_again=0.8, compile=1.0)))
    assert "A 2.0 MB + B 2.0 MB + D 2.0 MB = 6.0 MB" in text
    assert "0.800, missed" in text


def test_oracle_finds_data_with_an_answer() -> None:
    assert (oracle(make("D = log(C) + acc"), CPU).data.tensors["C"] > 0).all()
    assert (oracle(make("D = C + acc"), CPU).data.tensors["C"] < 0).any()
    with pytest.raises(ArgumentError, match="NaN"):
        oracle(make("D = acc * sqrt(-1 - C * C)"), CPU)


# Timing, with clocks of our own


def clock(calls: Sequence[Callable[[], object]]) -> list[float | None]:
    for call in calls:
        call()
    return [1.0 + position for position in range(len(calls))]


def test_rounds_run_every_version_in_shuffled_order() -> None:
    seen: list[str] = []
    calls = {name: (lambda name=name: seen.append(name)) for name in "abcd"}  # type: ignore[misc]
    samples, discarded = interleave(calls, 20, clock, seed=5)
    assert discarded == 0
    assert {name: len(times) for name, times in samples.items()} == dict.fromkeys("abcd", 20)
    rounds = [tuple(seen[start : start + 4]) for start in range(0, len(seen), 4)]
    assert all(sorted(each) == list("abcd") for each in rounds)
    assert len(set(rounds)) > 5
    once = list(seen)
    seen.clear()
    interleave(calls, 20, clock, seed=5)
    assert seen == once


def test_samples_that_do_not_count_are_taken_again() -> None:
    fails = iter([True, True] + [False] * 100)

    def flaky(calls: Sequence[Callable[[], object]]) -> list[float | None]:
        return [None if call() == "b" and next(fails) else 1.0 for call in calls]

    samples, discarded = interleave({"a": lambda: "a", "b": lambda: "b"}, 3, flaky)
    assert discarded == 2
    assert {name: len(times) for name, times in samples.items()} == {"a": 3, "b": 3}


def test_a_version_that_never_counts_does_not_hang() -> None:
    samples, discarded = interleave({"a": lambda: None}, 2, lambda calls: [None] * len(calls))
    assert samples == {"a": []}
    assert discarded > 0


def test_host_loop_never_fills_the_queue() -> None:
    waiting = most = 0

    def call() -> None:
        nonlocal waiting, most
        waiting += 1
        most = max(most, waiting)

    def synchronise() -> None:
        nonlocal waiting
        waiting = 0

    samples = host_samples({"a": call, "b": call}, 3, synchronise)
    assert {name: len(times) for name, times in samples.items()} == {"a": 3, "b": 3}
    assert all(time > 0 for times in samples.values() for time in times)
    assert most <= 201


# Measuring a case: what a CUDA device does, the CPU does here, and the times are made up


def test_measure() -> None:
    case = make(FORMULAS["residual"])
    measured = measure(case, ("eager", "mm"), clock, CPU, rounds=5)
    assert [row.version for row in measured.rows] == ["evt", "evt again", "eager", "mm"]
    assert all(row.time is not None and row.time.samples == 5 and not row.failure for row in measured.rows)
    evt, eager = measured.row("evt"), measured.row("eager")
    assert evt is not None
    assert evt.error is not None
    assert evt.error < 1e-5
    assert eager is not None
    assert eager.error is not None
    assert eager.error < 1e-5
    assert not measured.wrong


def test_measure_several_outputs_and_batches() -> None:
    case = make("out D, Z\nZ = acc + bias\nD = gelu(Z)", dtype="bf16", l=2)
    measured = measure(case, ("eager", "mm"), clock, CPU, rounds=2)
    assert all(not row.failure for row in measured.rows)


def test_a_baseline_that_fails_is_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_triton(*args: object, **kwargs: object) -> object:
        raise RuntimeError("\n  Cannot find a working triton installation.\nMore ...")

    monkeypatch.setattr(torch, "compile", no_triton)
    measured = measure(make("D = acc"), ("compile", "max-autotune", "mm"), clock, CPU, rounds=2)
    for name in ("compile", "max-autotune"):
        row = measured.row(name)
        assert row is not None
        assert row.time is None
        assert row.failure == "RuntimeError: Cannot find a working triton installation."
    assert measured.ratio("evt", "compile") is None
    assert measured.ratio("evt", "mm") is not None


def test_a_wrong_answer_is_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel that leaves its last row unwritten."""

    def half(self: Program, a: torch.Tensor, b: torch.Tensor, *, out: torch.Tensor, **inputs: object) -> None:
        out[:-1] = (a @ b)[:-1]

    monkeypatch.setattr(Program, "__call__", half)
    measured = measure(make("D = acc"), ("mm",), clock, CPU, rounds=2)
    row = measured.row("evt")
    assert measured.wrong
    assert row is not None
    assert row.time is None
    assert row.failure.startswith("wrong: relative error inf")
    assert measured.row("evt again") is None
    assert measured.ms("mm") is not None


def test_a_program_that_no_kernel_takes_is_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object, **kwargs: object) -> object:
        raise TargetError(Diagnostic("E0503", "no route is left"))

    monkeypatch.setattr(Program, "__call__", refuse)
    measured = measure(make("D = acc"), ("mm",), clock, CPU, rounds=2)
    row = measured.row("evt")
    assert row is not None
    assert row.failure == "E0503: no route is left"
    assert not measured.wrong


def test_measure_a_convolution() -> None:
    case = make_convolution("out D, s: f32[n]\nD = relu(acc + bias)\ns = sum[m](acc)", *CONVOLUTIONS["3x3"])
    measured = measure(case, ("eager", "mm", "conv"), clock, CPU, rounds=3)
    assert [row.version for row in measured.rows] == ["evt", "evt again", "eager", "conv"]
    assert all(row.time is not None and not row.failure for row in measured.rows)
    assert measured.kernel is None  # the reference ran


def test_a_matrix_product_is_mm_by_either_name() -> None:
    measured = measure(make("D = acc"), ("conv",), clock, CPU, rounds=1)
    assert [row.version for row in measured.rows] == ["evt", "evt again", "mm"]


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_convolution_alone(name: str) -> None:
    case = make_convolution("D = acc", *CONVOLUTIONS[name])
    data = draw(case, CPU)
    assert relative_error(baseline("conv", case, data)(), case.program.reference(data.A, data.B).double()) < 2e-6


def test_convolutions_are_tried_by_cudnn() -> None:
    before = torch.backends.cudnn.benchmark
    with fastest_convolutions():
        assert torch.backends.cudnn.benchmark
    assert torch.backends.cudnn.benchmark == before


@pytest.fixture
def planned_for_sm90(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Plans for an H200 that is not there; how many kernels were asked to be built."""
    built: list[int] = []
    monkeypatch.setattr(evt.bench.kernel, "device_target", lambda index: find_target("sm90"))
    monkeypatch.setattr(evt.bench.kernel, "measured_best", lambda spec, bound, atomic: spec)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(multi_processor_count=132))
    monkeypatch.setattr(evt.bench.run, "build", lambda sources: built.append(len(sources)))
    monkeypatch.setattr(evt.bench.run, "draw", lambda case, device: draw(case, CPU))
    return built


def test_the_kernel_is_named(planned_for_sm90: list[int]) -> None:
    case = make_convolution("D = acc + C", "conv2d", ((2, 64, 8, 8), (64, 64, 1, 1)), dtype="f16")
    data = draw(case, CPU)
    route, config = kernel_taken(case, data)
    assert route.endswith("-3x")
    assert not route.startswith("conv")  # a product of matrices
    assert config in {plan.config.name for plan in plans_of(case, data)}
    forced = convolution_case(
        "case", program_of(case.program.spec.forced("conv-evt-2x", "auto")), case.shapes or ((), ()), dtype="f16"
    )
    with pytest.raises(TargetError):
        plans_of(forced, data)
    two = Program(Source("D = acc + C"), "conv2d", route="conv-evt-2x")
    assert kernel_taken(convolution_case("case", two, case.shapes or ((), ()), dtype="f16"), data)[0] == "conv-evt-2x"


def test_all_kernels_are_built_at_once(planned_for_sm90: list[int]) -> None:
    cases = suite("resnet", "f16", 16)
    said: list[str] = []
    build_all(cases, torch.device("cuda"), said.append)
    assert said == ["building the kernels of 3 programs"]
    (count,) = planned_for_sm90
    assert 3 <= count < len(cases)  # shapes are no part of a kernel
    refused = Case("case", Program(Source("D = acc"), route="nothing"), 8, 8, 8)
    build_all([refused], torch.device("cuda"), said.append)  # it is reported where it is measured
    assert planned_for_sm90 == [count, 0]


def test_max_autotune_asks_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []

    def compiled(function: Callable[..., object], **options: object) -> Callable[..., object]:
        asked.append(options["mode"])
        return function

    monkeypatch.setattr(torch, "compile", compiled)
    case = make("D = acc + bias")
    data = draw(case, CPU)
    for name in ("compile", "max-autotune"):
        assert torch.equal(baseline(name, case, data)(), data.A @ data.B + data.tensors["bias"])
    assert asked == [None, "max-autotune-no-cudagraphs"]


def test_baseline_names() -> None:
    assert check_baselines(("mm", "eager", "mm")) == ("mm", "eager")
    with pytest.raises(ArgumentError, match="did you mean `eager`"):
        check_baselines(("eagre",))
    assert _BASELINES == BASELINES


# Epilogues side by side


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evt.bench.epilogue, "_COPIED_BYTES", 1000)
    monkeypatch.setattr(evt.bench.suites, "_COST_SHAPES", ((24, 32, 40), (48, 16, 8)))


@pytest.mark.usefixtures("small")
def test_epilogues_are_measured_side_by_side() -> None:
    cases = suite("epilogue")[:11]
    measured = measure_epilogues(cases, clock, CPU, rounds=5)
    names = [row.version for row in measured.rows]
    assert names == ["bare store", "evt again", *(case.name for case in cases[1:])]
    assert all(row.time is not None and row.time.samples == 5 and not row.failure for row in measured.rows)
    assert measured.bare == "bare store"
    assert not measured.wrong
    tile, rows, columns = 24 * 32 * 2, 24 * 4, 32 * 4
    extra = {name: measured.extra_bytes(name) for name in names}
    assert extra == {
        "bare store": 0,
        "evt again": None,
        "bias": 32 * 2,
        "bias+gelu": 32 * 2,
        "two residuals": 2 * tile,
        "row+column scale": rows + columns,
        "aux store": tile,
        "amax": 4,
        "row sum": rows,
        "column sum": columns,
        "bit mask": 24 * 4,
        "dropout": 0,
    }


def epilogues() -> EpilogueResult:
    cases = suite("epilogue")[:3]
    rows = [
        Row(name, summarise([time]), 0.0) for name, time in (("bare store", 1.0), ("evt again", 1.01), ("bias", 1.2))
    ]
    sizes = {"bare store": {"A": 10, "D": 10_000_000}, "bias": {"A": 10, "D": 10_000_000, "bias": 100_000_000}}
    failed = Row("bias+gelu", failure="E0503: no route")
    return EpilogueResult(cases, (*rows, failed), sizes, summarise([0.5]), 500_000_000)


def test_the_bound_of_an_epilogue() -> None:
    found = epilogues()
    assert found.gbytes_per_s == pytest.approx(1000)  # 0.5 GB in 0.5 ms
    assert found.extra_bytes("bias") == 100_000_000
    assert found.bound("bias") == pytest.approx(1.1)  # 0.1 GB at 1000 GB/s are 0.1 ms
    assert found.over_bound("bias") == pytest.approx(1.2 / 1.1)
    assert found.over_bound("bare store") == pytest.approx(1.0)
    assert found.ratio("bias") == pytest.approx(1.2)
    assert found.noise == pytest.approx(0.01)
    for name in ("bias+gelu", "nothing"):
        assert found.ratio(name) is found.bound(name) is found.over_bound(name) is None


def test_epilogues_that_fail_are_rows(monkeypatch: pytest.MonkeyPatch, small: None) -> None:
    right = Program.__call__

    def call(self: Program, *operands: torch.Tensor, out: object, **inputs: object) -> None:
        if "gelu" in self.spec.source.text:
            raise TargetError(Diagnostic("E0503", "no route is left"))
        right(self, *operands, out=out, **inputs)
        if "bias" in self.spec.source.text:
            assert isinstance(out, torch.Tensor)
            out.zero_()

    monkeypatch.setattr(Program, "__call__", call)
    measured = measure_epilogues(suite("epilogue")[:4], clock, CPU, rounds=2)
    failures = {row.version: row.failure for row in measured.rows}
    assert failures["bias+gelu"] == "E0503: no route is left"
    assert failures["bias"].startswith("wrong: relative error 1.0e+00")
    assert failures["two residuals"] == failures["bare store"] == ""
    assert measured.wrong == ("bias",)


def test_epilogues_are_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "bench.json"
    report = Report(describe_machine(), {}, path)
    report.add_epilogues(epilogues())
    text = capsys.readouterr().out
    assert "epilogues of gemm bf16, m=4096, n=4096, k=4096" in text
    assert re.search(r"\nbias +1\.2000 +0\.0% +1\.200 +100\.0 MB +1\.1000 +1\.091 +0\.0e\+00", text)
    assert re.search(r"\nbare store again +1\.0100 ", text)
    assert "failed: E0503: no route" in text
    assert "at the 1000 GB/s of a copy" in text
    assert not report.complete
    assert report.wrong == []
    (only,) = json.loads(path.read_text())["epilogues"]
    assert (only["m"], only["dtype"], only["bare"]) == (4096, "bf16", "bare store")
    bias = only["epilogues"]["bias"]
    assert bias["program"] == "D = acc + bias"
    assert bias["ratio_to_bound"] == pytest.approx(1.2 / 1.1)
    assert only["epilogues"]["bias+gelu"]["time"] is None


@pytest.mark.usefixtures("fake_gpu", "small")
def test_command_measures_epilogues(tmp_path: Path) -> None:
    path = tmp_path / "bench.json"
    outcome = CliRunner().invoke(main, ["bench", "--suite", "epilogue", "--rounds", "2", "--json", str(path)])
    assert outcome.exit_code == 0, outcome.output
    assert "epilogues of gemm bf16, m=24, n=32, k=40" in outcome.stdout
    assert "epilogues of gemm bf16, m=48, n=16, k=8" in outcome.stdout
    document = json.loads(path.read_text())
    assert [len(each["epilogues"]) for each in document["epilogues"]] == [12, 12]
    assert document["settings"]["suite"] == "epilogue"
    assert document["cases"] == []


# Data of every type


@pytest.mark.parametrize("dtype", STORAGE, ids=str)
def test_random_tensors_and_poison(dtype: DType) -> None:
    generator = torch.Generator().manual_seed(0)
    drawn = random_tensor((6, 20), dtype, generator)
    assert drawn.dtype == getattr(torch, dtype.torch)
    assert tuple(drawn.shape) == ((6, 3) if dtype == B1 else (6, 20))
    numbers = as_numbers(drawn, dtype, 20)
    assert tuple(numbers.shape) == (6, 20)
    assert len(numbers.unique()) == 2 if dtype == B1 else len(numbers.unique()) > 5
    assert dtype in (B1, U8) or bool((numbers < 0).any())
    poison(drawn)
    if dtype.is_float:
        assert drawn.isnan().all()
    else:
        assert set(drawn.contiguous().view(torch.uint8).unique().tolist()) <= {0xA5, 0x7F}
    if dtype != B1:
        assert (random_tensor((6, 20), dtype, generator, positive=True).double() > 0).all()


def test_operands_of_8_bits_are_contiguous_along_k() -> None:
    data = draw(make("D = acc", dtype="i8"), CPU)
    assert data.A.stride() == (28, 1)
    assert data.B.stride() == (1, 28)
    assert draw(make("D = acc", dtype="bf16"), CPU).B.stride() == (20, 1)


def test_steps_are_neighbours() -> None:
    for name in ("e4m3", "e5m2"):
        dtype = BY_NAME[name]
        codes = torch.arange(256, dtype=torch.int32).to(torch.uint8).view(getattr(torch, dtype.torch))
        finite = codes[codes.float().isfinite()]
        order = finite.float().argsort()
        steps = as_steps(finite, dtype, 0)[order]
        assert ((steps[1:] - steps[:-1]) <= 1).all()
        assert (as_steps(codes, dtype, 0)[codes.float().isnan()] == 1000).all()


# The report


def test_json_is_whole(tmp_path: Path) -> None:
    case = make("D = acc + bias", dtype="bf16")
    measured = measure(case, ("eager", "mm"), clock, CPU, rounds=3)
    host = HostResult(case, {"evt": summarise([3.0]), "mm out=": summarise([2.0])})
    path = tmp_path / "bench.json"
    write_json(path, to_json([measured], describe_machine(), host=host, settings={"rounds": 3}))
    document = json.loads(path.read_text())
    (only,) = document["cases"]
    assert only["program"] == "D = acc + bias"
    assert (only["m"], only["n"], only["k"], only["l"], only["dtype"]) == (12, 20, 28, 1, "bf16")
    assert only["versions"]["mm"]["time"]["samples"] == 3
    assert only["versions"]["evt"]["ratio_to_mm"] > 0
    assert only["versions"]["evt"]["ratio_to_compile"] is None
    assert only["bytes"]["bias"] == 40
    assert document["host"]["ratios_to_mm_out"]["evt"] == 1.5
    assert document["machine"]["versions"]["torch"] == torch.__version__
    assert {"evt", "nvcc", "cutlass", "triton"} <= set(document["machine"]["versions"])
    assert os.listdir(tmp_path) == ["bench.json"]


def test_json_is_written_as_a_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "bench.json"
    write_json(path, {"a": math.nan, "b": [1.5, math.inf]})
    before = path.read_text()
    assert json.loads(before) == {"a": None, "b": [1.5, None]}
    mask = os.umask(0)
    os.umask(mask)
    assert stat.S_IMODE(path.stat().st_mode) == 0o666 & ~mask

    def broken(handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", broken)
    with pytest.raises(OSError, match="No space"):
        write_json(path, {"a": 1})
    assert path.read_text() == before
    assert os.listdir(tmp_path) == ["bench.json"]


def test_report_prints_and_saves_as_it_goes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "bench.json"
    report = Report(describe_machine(), {"rounds": 1}, path)
    report.add(result(evt=0.5, evt_again=0.5, compile=1.0))
    assert len(json.loads(path.read_text())["cases"]) == 1
    report.add(result(evt=0.5))
    report.add_host(
        HostResult(make("D = acc"), {"mm": summarise([2.0]), "mm out=": summarise([2.0]), "evt": summarise([3.0])})
    )
    document = json.loads(path.read_text())
    assert len(document["cases"]) == 2
    assert document["host"]["calls"]["evt"]["median_us"] == 3.0
    text = capsys.readouterr().out
    assert re.search(r"evt +0\.5000 +0\.0% +0\.500", text)
    assert "failed: no triton" in text
    assert re.search(r"evt +3\.00 +0\.0% +1\.50", text)


def test_convolutions_are_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cases = suite("resnet")
    path = tmp_path / "bench.json"
    report = Report(describe_machine(), {}, path)
    times = {"evt": 0.2, "evt again": 0.202, "eager": 0.5, "compile": 0.25, "conv": 0.16}
    rows = tuple(Row(name, summarise([time]), 1e-4) for name, time in times.items())
    report.add(CaseResult(cases[0], rows, {"A": 100, "D": 100}, kernel=("conv-evt-3x", "implicit_128x64x64")))
    report.add(CaseResult(cases[4], rows[:1], {}, kernel=("evt-3x", "pingpong")))
    report.add(CaseResult(cases[5], (Row("evt", failure="E0503: no route"),), {}))
    capsys.readouterr()
    report.add_summary()
    text = capsys.readouterr().out
    assert re.search(r"case +evt ms +compile ms +eager ms +conv ms +evt / compile +evt / eager +evt / conv +bar", text)
    found = r"3x3 64->64 @56 relu\+residual +0\.2000 +0\.2500 +0\.5000 +0\.1600 +0\.800 +0\.400 +1\.250 +1\.10 +"
    assert re.search(found + "conv-evt-3x implicit_128x64x64", text)
    assert re.search(r"1x1 64->256 @56 relu\+residual +0\.2000 +- +- +- +- +- +- +0\.80 +evt-3x pingpong", text)
    assert "failed: E0503: no route" in text
    assert "kernel: conv-evt-3x implicit_128x64x64" in notes(report.results[0])
    first, _, last = json.loads(path.read_text())["cases"]
    assert first["kernel"] == {"route": "conv-evt-3x", "config": "implicit_128x64x64"}
    assert (first["a_shape"], first["b_shape"]) == ([256, 64, 56, 56], [64, 64, 3, 3])
    assert (first["stride"], first["padding"], first["groups"]) == ([1, 1], [[1, 1], [1, 1]], 1)
    assert first["versions"]["evt"]["ratio_to_conv"] == 1.25
    assert last["kernel"] is None
    assert not report.complete


def test_a_failure_is_printed_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    case = Case("D = acc + b[n]", Program(Source("D = acc + b[n]")), 8, 8, 8)
    report = Report(describe_machine(), {})
    report.add(CaseResult(case, (Row("compile", failure="[red]is no colour[/red] here"),), {}))
    text = capsys.readouterr().out
    assert "D = acc + b[n]" in text
    assert "failed: [red]is no colour[/red] here" in text


# A GPU of our own: events that count, and a host that is too slow twice


class FakeEvent:
    now = 0.0
    behind = 0

    def __init__(self, enable_timing: bool) -> None:
        assert enable_timing
        self.at = 0.0

    def record(self) -> None:
        FakeEvent.now += 0.5
        self.at = FakeEvent.now

    def query(self) -> bool:
        FakeEvent.behind -= 1
        return FakeEvent.behind >= 0

    def elapsed_time(self, end: FakeEvent) -> float:
        return end.at - self.at


@pytest.fixture
def fake_gpu(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The spins of a GPU that is not there."""
    spins: list[int] = []
    monkeypatch.setattr(FakeEvent, "now", 0.0)
    monkeypatch.setattr(FakeEvent, "behind", 0)
    monkeypatch.setattr(torch.cuda, "Event", FakeEvent)
    monkeypatch.setattr(torch.cuda, "_sleep", spins.append)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device=None: None)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(L2_cache_size=1 << 10))
    monkeypatch.setattr(evt.tuning.clock, "_FLUSH_BYTES", 1 << 10)
    monkeypatch.setattr(evt.bench.host, "_GROUP", 2)
    monkeypatch.setattr(evt.bench.host, "_GROUPS", 1)
    for module in (evt.bench, evt.bench.run, evt.bench.host, evt.bench.epilogue):
        monkeypatch.setattr(module, "require_gpu", lambda: CPU)
    monkeypatch.setattr(evt.bench, "describe_machine", lambda device: describe_machine())
    return spins


def test_gpu_clock(fake_gpu: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    timer = GpuClock(CPU)
    fake_gpu.clear()
    called: list[str] = []
    assert timer([lambda: called.append("a"), lambda: called.append("b")]) == [0.5, 0.5]
    assert called == ["a", "b"]
    spin = fake_gpu[0]
    assert fake_gpu == [spin, spin]
    monkeypatch.setattr(FakeEvent, "behind", 1)
    assert timer([lambda: None, lambda: None]) == [None, 0.5]
    timer([lambda: None])
    assert fake_gpu[-1] == 2 * spin


@pytest.mark.usefixtures("fake_gpu")
def test_command_measures(tmp_path: Path) -> None:
    path = tmp_path / "bench.json"
    sizes = ["--m", "24", "--n", "16", "--k", "32", "--dtype", "f32"]
    options = ["--baselines", "eager,mm", "--rounds", "3", "--json", str(path)]
    outcome = CliRunner().invoke(main, ["bench", "D = gelu(acc + bias[n])", *sizes, *options])
    assert outcome.exit_code == 0, outcome.output
    assert "D = gelu(acc + bias[n]) (gemm f32, m=24, n=16, k=32)" in outcome.stdout
    document = json.loads(path.read_text())
    assert list(document["cases"][0]["versions"]) == ["evt", "evt again", "eager", "mm"]
    assert document["settings"]["baselines"] == ["eager", "mm"]


@pytest.mark.usefixtures("fake_gpu")
def test_command_measures_a_convolution(tmp_path: Path) -> None:
    path = tmp_path / "bench.json"
    shapes = ["--a-shape", "2,8,9,9", "--b-shape", "16,8,3,3", "--stride", "2", "--padding", "1", "--dtype", "f32"]
    options = ["--baselines", "eager,mm", "--rounds", "2", "--json", str(path)]
    outcome = CliRunner().invoke(main, ["bench", "D = relu(acc + bias)", "--op", "conv2d", *shapes, *options])
    assert outcome.exit_code == 0, outcome.output
    shown = " ".join(outcome.stdout.split())
    assert "(conv2d f32, A 2x8x9x9, B 16x8x3x3, stride 2, padding 1, m=50, n=16, k=72)" in shown
    assert "/ conv" in outcome.stdout
    (case,) = json.loads(path.read_text())["cases"]
    assert list(case["versions"]) == ["evt", "evt again", "eager", "conv"]
    outcome = CliRunner().invoke(main, ["bench", "--op", "conv1d", "--baselines", "conv", "--rounds", "1"])
    assert outcome.exit_code == 0, outcome.output
    shown = " ".join(outcome.stdout.split())
    assert "D = relu(acc + bias) + residual (conv1d bf16, A 2x64x784, B 64x64x3, m=1564" in shown


@pytest.mark.usefixtures("fake_gpu")
def test_command_measures_resnet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evt.bench.suites, "_SHAPES_3X3", ((16, 16, 4),))
    monkeypatch.setattr(evt.bench.suites, "_SHAPES_1X1", ((16, 32, 4),))
    monkeypatch.setattr(torch, "compile", lambda function, **options: function)
    path = tmp_path / "bench.json"
    options = ["--batch", "3", "--dtype", "bf16", "--rounds", "1", "--json", str(path)]
    outcome = CliRunner().invoke(main, ["bench", "--suite", "resnet", *options])
    assert outcome.exit_code == 0, outcome.output
    shown = " ".join(outcome.stdout.split())
    assert "(conv2d bf16, A 3x16x4x4, B 16x16x3x3, padding 1, m=48, n=16, k=144)" in shown
    assert outcome.stdout.count("1x1 16->32 @4 relu+residual") == 2  # in its table, and in the summary
    document = json.loads(path.read_text())
    assert document["settings"]["baselines"] == ["eager", "compile", "conv"]
    assert [list(case["versions"]) for case in document["cases"]] == [
        ["evt", "evt again", "eager", "compile", "conv"]
    ] * 3


@pytest.mark.usefixtures("fake_gpu")
def test_command_measures_the_host(tmp_path: Path) -> None:
    path = tmp_path / "bench.json"
    arguments = ["bench", "D = acc", "--host", "--m", "2", "--json", str(path)]
    outcome = CliRunner().invoke(main, arguments)
    assert outcome.exit_code == 0, outcome.output
    assert list(json.loads(path.read_text())["host"]["calls"]) == ["evt", "evt out=", "mm", "mm out="]


@pytest.mark.usefixtures("fake_gpu")
def test_command_says_what_went_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = ["bench", "D = acc", "--m", "8", "--baselines", "mm", "--rounds", "1"]
    monkeypatch.setattr(Program, "__call__", lambda self, a, b, *, out: out.zero_())
    outcome = CliRunner().invoke(main, arguments)
    assert outcome.exit_code == 3
    assert "failed: wrong: relative error" in outcome.stdout

    def refuse(*args: object, **kwargs: object) -> object:
        raise TargetError(Diagnostic("E0503", "no route is left"))

    monkeypatch.setattr(Program, "__call__", refuse)
    outcome = CliRunner().invoke(main, arguments)
    assert outcome.exit_code == 1
    assert "failed: E0503: no route is left" in outcome.stdout


# Without a GPU, and the command line


@no_gpu
def test_without_a_gpu_nothing_is_timed() -> None:
    with pytest.raises(LaunchError, match="E0801"):
        bench([make("D = acc")])
    with pytest.raises(LaunchError, match="E0801"):
        bench_host(make("D = acc"))


@no_gpu
@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["D = acc"],
        ["--suite", "gemm"],
        ["--suite", "epilogue"],
        ["--host"],
        ["--suite", "resnet"],
        ["--op", "conv2d"],
    ],
)
def test_command_without_a_gpu(arguments: list[str]) -> None:
    outcome = CliRunner().invoke(main, ["bench", *arguments])
    assert outcome.exit_code == 1
    assert "error[E0801]: no CUDA GPU to measure on" in outcome.stderr
    assert not outcome.stdout


def test_command_help_is_light() -> None:
    code = (
        "import sys; from evt.cli import main\n"
        "try: main(['bench', '--help'])\n"
        "except SystemExit: pass\n"
        "print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "--suite [gemm|epilogue|resnet]" in done.stdout
    assert "eager,compile,max-autotune,mm" in done.stdout
    assert done.stdout.endswith("False\n")


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--baselines", "jax"], 2, "there is no baseline `jax`"),
        (["--suite", "gemm", "--m", "8"], 2, "--suite brings its own"),
        (["--suite", "gemm", "--host"], 2, "--suite brings its own"),
        (["--suite", "epilogue", "--fast-math"], 2, "--suite brings its own"),
        (["D = acc", "--op", "linear", "--l", "2"], 2, "--l is for gemm"),
        (["--suite", "resnet", "--stride", "2"], 2, "--suite brings its own"),
        (["--suite", "resnet", "--a-shape", "2,8,5,5"], 2, "--suite brings its own"),
        (["--suite", "gemm", "--batch", "8"], 2, "--batch is for --suite resnet"),
        (["--op", "conv2d", "--host"], 2, "--host measures products of matrices"),
        (["--op", "conv2d", "--m", "8"], 2, "--m is for products of matrices"),
        (["--op", "conv2d", "--a-shape", "2,8,5,5"], 2, "together"),
        (["--a-shape", "2,8,5,5"], 2, "for convolutions"),
        (["--stride", "2"], 1, "E0602"),
        (["--op", "conv2d", "--stride", "0"], 1, "E0607"),
        (["--op", "conv2d_wgrad"], 1, "E0601"),
        (["--op", "conv4d"], 1, "E0501"),
        (["D = acc", "--json", "/nonexistent/bench.json"], 2, "not a writable directory"),
        (["D = acc", "--json", "/"], 2, "it is a directory"),
        (["D = relo(acc)"], 1, "E0201"),
        (["D = acc", "--dtype", "f17"], 1, "E0303"),
    ],
)
def test_command_refuses(arguments: list[str], code: int, message: str) -> None:
    outcome = CliRunner().invoke(main, ["bench", *arguments])
    assert outcome.exit_code == code
    assert message in outcome.stderr
