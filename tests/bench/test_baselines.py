"""The benchmark's baselines compute the formula, as a user of PyTorch writes it."""

from __future__ import annotations

import math

import pytest
import torch

from evt.bench import Case
from evt.bench.case import draw
from evt.bench.run import measure
from evt.diagnostics import Source
from evt.eager import straight_line
from evt.eager.idiom import UnwrittenError
from evt.eager.straight import is_elementwise
from evt.errors import ArgumentError
from evt.functions import TABLE
from evt.program import Program
from tests.support.benchmarks import CONVOLUTIONS, CPU, FORMULAS, check, clock, make, make_convolution

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
    "matrices apart from acc": (
        "f32",
        "in v: f32[m]\nout D, E: f32[m, n], F: i32[m, n], G: f32[n, m]\nD = acc\nE = bias * 2\nF = 3\nG = v",
    ),
    "vectors apart from acc": (
        "f32",
        "in v: f32[m], s: f32[l, n]\nout D, E: f16[m], F, G: i32, H[l, n], I: bool\n"
        "D = acc\nE = v * 2\nF = s + 1\nG = 3.7\nH = bias\nI = v[m] < 2",
    ),
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
#: Their formulas; those after the first group need more than images and vectors.
ON_IMAGES = {
    "residual": "D = relu(alpha*acc + bias) + residual",
    "vectors": "in s: f32[m], t: f32[m?]\nD = s * acc + t * bias",
    "outputs": "out D, Z, E[m, n], F[m, n]\nZ = acc + bias\nD = gelu(Z)\nE = 0.5\nF = bias * 2",
    "numbers": "D = clamp(acc, -1, abs(C)) + pow(2, C)",
}
ON_MATRICES = {
    "sums": "out D, s: f32[m], t: f32[n], u: f32\nD = acc + C\ns = sum[n](D)\nt = sum[m](C)\nu = max[m, n](abs(D))",
    "vectors": "in s: f32[m]\nout D, E, F, G\nD = acc\nE = 0.5\nF = bias * 2\nG = s + 1",
    "transposed": "in T: f32[n, m]\nout D: f32[n, m]\nD = acc + T",
    "pairs": "D = silu(even(acc + bias)) * odd(acc + C)",
    "blocks": "out D, s: f32[m, n/16]\ns = max[n%16](abs(acc))\nD = acc / s",
    "bits": "in keep: b1[m, n]\nout D, mask: b1[m, n]\nD = where(keep, acc, C)\nmask = acc > 0",
    "coordinates": "D = where(iota(n) <= iota(m), acc, bias)",
}
RANDOM = "D = dropout(acc, 0.1, seed, offset)"


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
    with pytest.raises(UnwrittenError, match="PyTorch's random numbers differ"):
        straight_line(make(RANDOM).dag, {"seed": 1, "offset": 2})
    measured = measure(make(RANDOM), ("eager", "mm"), clock, CPU, rounds=2)
    row = measured.row("eager")
    assert row is not None
    assert row.failure == "PyTorch's random numbers differ from the program's"
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
