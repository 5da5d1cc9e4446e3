"""Mistakes of first-time users, and the messages: the cause, its place, and a help that works when typed."""

from __future__ import annotations

import logging
import re
from typing import Any

import pytest
import torch

import evt
from evt.diagnostics import Diagnostic
from evt.errors import EvtError
from tests.programs import typed


def mistakes(text: str) -> list[Diagnostic]:
    with pytest.raises(EvtError) as caught:
        typed(text)
    return list(caught.value.diagnostics)


def place(each: Diagnostic) -> str:
    assert each.source is not None
    assert each.span is not None
    return each.source.text[each.span.start : each.span.end]


#: Programs with one mistake that has consequences: the code and the place of the one that is reported.
CAUSES = {
    "in bias: f32[n]; D = relu(acc + bais)": ("E0202", "bais"),
    "in residual: f16[m, n]; D = acc + resdual": ("E0202", "resdual"),
    "out D, r[x]; D = acc; r = sum[n](acc)": ("E0301", "x"),
    "out D: f16[p, n]; D = acc": ("E0301", "p"),
    "in s[x]: f32; A = s*A; D = acc": ("E0301", "x"),
    "in scale: f32[m]; D = acc + iota(scale)": ("E0203", "iota(scale)"),
    "in scale: f32[m]; def f(x) = x*scale; D = f(acc)": ("E0202", "scale"),
    "def f(x) = g(x); D = f(acc) + f(2*acc)": ("E0201", "g"),
    "in relu: f32[]; D = acc*relu": ("E0108", "relu"),
    "relu = acc; D = relu*2": ("E0108", "relu"),
    "out D, relu; relu = acc; D = acc": ("E0108", "relu"),
    "out D, r; D = acc; R = sum[n](D)": ("E0408", "r"),
    "in C; out D, C; C = acc; D = C": ("E0407", "C"),
    "D = even(acc, foo(1))": ("E0201", "foo"),
    "D = acc ** foo(2)": ("E0201", "foo"),
    "D = mm(A, B)": ("E0201", "mm"),
    "r = sum[n](acc); D = acc*r + r": ("E0410", "acc*r"),
    "r = sum[n](acc); D = acc*r; E = acc - r": ("E0410", "acc*r"),
    "top = max[n](acc); e = exp(acc - top); s = sum[n](e); D = e / s": ("E0410", "acc - top"),
    "out D, s: f32[m]; D = acc; r = sum[n](acc); s = acc*r": ("E0410", "acc*r"),
    "def f(x) = x + even(x); D = f(acc) + f(2*acc)": ("E0307", "x + even(x)"),
    "out D: b1[m]; D = acc > 0": ("E0308", "D"),
}


@pytest.mark.parametrize("text", CAUSES)
def test_a_cause_is_reported_and_its_consequences_are_not(text: str) -> None:
    assert [(each.code, place(each)) for each in mistakes(text)] == [CAUSES[text]]


def test_what_nothing_reads_is_reported_where_nothing_else_is_wrong() -> None:
    assert [each.code for each in mistakes("in bias: f32[n]; x = acc; out D; D = acc")] == ["E0404", "E0409"]


#: Programs with a mistake; words of the message or label, and of the help.
SAID = {
    # names near `acc`, and second products
    "D = acc + ac": ("there is no `ac`", "did you mean `acc`?"),
    "D = acc + Acc": ("there is no `Acc`", "did you mean `acc`?"),
    "D = acc*acc1": ("`acc` is the product of A and B", "in acc1[m, n]"),
    "D = acc + acc2": ("`acc` is the product of A and B", "in acc2[m, n]"),
    "D = acc + (A@B)": ("is not written with `@`", "read the result of another program"),
    "D = A @ B": ("is not written with `@`", "write `acc`"),
    "D = acc + matmul(x, y)": ("`matmul` multiplies A with an input", "write `matmul(A, up)`"),
    # names that stay out
    "D = softmax(acc)": ("a full-row reduction", "`D = exp(acc); total = sum[n](D)`"),
    "D = softmax[n](acc)": ("a full-row reduction", "`D = exp(acc); total = sum[n](D)`"),
    "D = layer_norm(acc)": ("a full-row reduction", "normalise where D is read"),
    "D = topk(acc, 2)": ("orders the values of a row", "`max[n](x)` is the largest"),
    "D = cumsum(acc)": ("does not depend on earlier values", "store `D = acc`"),
    "gemm(A: nvfp4[m, k], B: e4m3[n, k]); D = acc": ("a scale for each block of k", "write `e4m3`"),
    "gemm(A: mxfp8[m, k], B: e4m3[n, k]); D = acc": ("a scale for each block of k", "write `e4m3`"),
    "D = nvfp4(acc)": ("a scale for each block of k", "write `e4m3`"),
    # words of other languages
    "D = acc % 2": ("`%`", "`remainder(acc, 2)`"),
    "D = relu(acc) % -x": ("`%`", "`remainder(relu(acc), -x)`"),
    "D = acc if acc > 0 else 0": ("`if`", "`where(acc > 0, acc, 0)`"),
    "D = 2*(acc > 0 ? acc : 0)": ("`?`", "`where(acc > 0, acc, 0)`"),
    "D = not acc": ("`not`", "`!acc`"),
    "D = acc.clamp(0, 1)": ("`.`", "`clamp(acc, 0, 1)`"),
    "D = torch.nn.functional.gelu(acc)": ("`.`", "`gelu(acc)`"),
    "D = acc + x.T": ("`.`", "`x[n, m]`"),
    "D == acc": ("assigns nothing", "`D = acc`"),
    "D = acc; return D": ("assigns nothing", "remove it"),
    "D = max(acc)": ("needs the modes", "`max[n]`"),
    "D = sum(acc)": ("needs the modes", "`sum[n]`"),
    "D = acc + NaN": ("not a constant", "`isnan(x)`"),
    "D = acc + Infinity": ("not a constant", "`inf`"),
    "D = acc + 1e999": ("cannot be represented in f32", "`inf`"),
    # places and culprits
    "out D, s: f32[m]; D = acc; s = scale*2": ("varies over [m, n]", "`scale[m]`"),
    "D = even(acc)*scale": ("different widths", "`scale[m, n/2]`"),
    "D = acc*w[k, n]": ("sums over k", "the modes m, n and l"),
}


@pytest.mark.parametrize("text", SAID)
def test_what_is_said(text: str) -> None:
    (each,) = mistakes(text)
    message, help_text = SAID[text]
    assert message in each.message
    assert help_text in each.help


@pytest.mark.parametrize(
    ("text", "culprit"),
    [
        ("out D, s: f32[m]; D = acc; s = exp(scale)*2", ("scale", "`scale` is [m, n], because it has no subscript")),
        ("out D, s: f32[m]; D = acc; s = scale[n]*acc", ("acc", "`acc` is [m, n]")),
        ("D = even(acc)*scale", ("scale", "`scale` is [m, n], because it has no subscript")),
    ],
)
def test_the_culprit_is_shown(text: str, culprit: tuple[str, str]) -> None:
    (each,) = mistakes(text)
    assert culprit in [(text[label.span.start : label.span.end], label.text) for label in each.secondary]


#: Programs whose help has a replacement, with the replaced text if it is not at the shown place.
REPAIRED = {
    **{
        f"D = {text}": text
        for text in ("acc % 2", "acc if acc > 0 else 0", "not acc", "acc.clamp(0, 1)", "F.gelu(acc)")
    },
    "D = 1 + relu(acc) % (x + 1)": "relu(acc) % (x + 1)",
    "D = relu(acc > 0 ? acc : 0)": "acc > 0 ? acc : 0",
    "D = acc + x.T": "x.T",
    "D == acc": "D == acc",
    "return acc": "return acc",
    "D = A @ B": "A @ B",
    "D = mm(A, B)": "mm(A, B)",
    "D = acc[m]": "acc[m]",
    "D = acc * 2.0f": "2.0f",
    "D = (acc + x)[n]": "",
    "in w: f32[k]; D = acc*w": "acc*w",
    **dict.fromkeys(
        (
            *("D = acc + ac", "D = acc + acc2", "D = Acc", "D = acc + bais", "D = acc + Infinity", "D = reluu(acc)"),
            *(
                "D = max(acc)",
                "D = min(acc)",
                "D = maxx[n](acc)",
                "D = relu[n](acc)",
                "D = acc and acc",
                "D = nvfp4(acc)",
            ),
            *("in C: e2m1[m, n]; D = acc + C", "in C: fp4[m, n]; D = acc + C", "in C: i16[m, n]; D = acc + C"),
            *("in s: ue8m0[m]; D = acc*s", "in s: f61[m]; D = acc*s", "in x: i32[] = 1.5; D = acc*x", "D = acc × 2"),
            *("gem(A: f16[m, k], B: f16[k, n]); D = acc", "in s: bfloat[m]; D = acc*s", "D = acc – 1"),
            *("D = clamp(acc, mim=0, max=1)", "out D, r; D = acc; R = sum[n](D)"),
        ),
        "",
    ),
}


@pytest.mark.parametrize("text", REPAIRED)
def test_a_help_that_is_typed_works(text: str) -> None:
    """The text of a help in backquotes, typed at its place, leaves no mistake."""
    (each,) = mistakes(text)
    written = re.search(r"(?:did you mean|write) `([^`]+)`", each.help)
    if written is None:
        assert not re.search(r"write|did you mean", each.help)
        return
    assert each.span is not None
    start, end = each.span.start, each.span.end
    if old := REPAIRED[text]:
        start, end = text.index(old), text.index(old) + len(old)
    repaired = text[:start] + written[1] + text[end:]
    assert repaired != text
    try:
        typed(repaired)
    except EvtError as error:
        raise AssertionError(f"{repaired!r}: {error}") from None


def test_the_first_line_of_an_error_says_what_it_is(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(evt.ProgramError) as caught:
        evt.gemm("D = acc + ac")
    first = "error[E0202]: there is no `ac` in this program"
    assert str(caught.value).splitlines()[0] == first
    assert caught.exconly().splitlines()[0].endswith(f"ProgramError: {first}")  # pytest's summary
    logging.getLogger("test").warning("skipped: %s", caught.value)
    assert caplog.messages[0].splitlines()[0] == f"skipped: {first}"


@pytest.mark.parametrize("name", ["samples/attention_scores.evt", "a b/c.evt", " x.evt\n"])
def test_the_name_of_a_file_is_no_program(name: str) -> None:
    with pytest.raises(evt.ProgramError) as caught:
        evt.gemm(name)
    (each,) = caught.value.diagnostics
    assert each.message == "this is the name of a file, not a program"
    assert each.help == f'evt.load reads a file: `evt.load("{name.strip()}")`'


@pytest.mark.parametrize("name", ["split_k", "stream_k"])
def test_settings_that_stay_out(name: str) -> None:
    with pytest.raises(evt.ArgumentError, match="k is not split among kernels") as caught:
        evt.gemm("D = acc", **{name: 4})
    assert "make batches of the parts of k" in caught.value.diagnostics[0].help


@pytest.mark.parametrize("name", ["e2m1", "nvfp4", "mxfp8"])
def test_operands_that_stay_out(name: str) -> None:
    with pytest.raises(evt.TargetError, match=f"there is no type `{name}`: ") as caught:
        evt.gemm("D = acc").emit("sm100", a=name)
    assert "write `" in caught.value.diagnostics[0].help


HALF = torch.float16


def called(text: str, *shapes: tuple[int, ...], **inputs: Any) -> list[Diagnostic]:
    """Return the refusal of a call; A is [6, 8] and B is [8, 16] by default."""
    a, b = (torch.zeros(shape, dtype=HALF) for shape in shapes or ((6, 8), (8, 16)))
    with pytest.raises(evt.ArgumentError) as caught:
        evt.gemm(text)(a, b, **inputs)
    return list(caught.value.diagnostics)


#: Calls with one mistake: the program, the inputs, and words of the message and of the help.
CALLS = [
    ("in zp: i32[m, n]; D = acc + zp", {"zp": 3}, "`zp` is a number", "`in zp: i32`"),
    ("D = acc + C", {"C": 1.5}, "`C` is a number", "`in C: f32`"),
    ("in C: f32[] = 0; D = acc + C", {"C": (6, 16)}, "the program declares a scalar", "`in C: f16[m, n]`"),
    ("in C: f32[] = 0; D = acc + C", {"C": (16,)}, "the program declares a scalar", "`in C: f16[n]`"),
    (
        "in C: f32[] = 0; D = acc + C",
        {"C": (3, 4)},
        "the program declares a scalar",
        "declare what this is: `in C: f16[m, n]`",
    ),
    ("D = acc + alpha", {"alpha": (1, 1)}, "`alpha` is torch.float16", "`in alpha: f16`"),
    ("D = acc + C", {"C": (16, 6)}, "has shape [16, 6]; expected [6, 16]", "`C[n, m]`"),
    ("D = acc + C", {"C": (16,)}, "has shape [16]; expected [6, 16]", "`C[n]`"),
    ("D = acc + bias", {"bias": (6,)}, "has shape [6]; expected [16]", "`bias[m]`"),
    ("D = acc*s[m]", {"s": (2, 3)}, "has shape [2, 3]; expected [6]", "pass s.reshape(6)"),
]


@pytest.mark.parametrize(("text", "inputs", "message", "help_text"), CALLS)
def test_what_is_said_of_a_call(text: str, inputs: dict[str, Any], message: str, help_text: str) -> None:
    given = {name: torch.zeros(each, dtype=HALF) if isinstance(each, tuple) else each for name, each in inputs.items()}
    (each,) = called(text, **given)
    assert message in each.message
    assert help_text in each.help


def test_a_buffer_of_the_right_shape_is_not_refused_for_its_shape() -> None:
    """Any strides of a convolution's output are accepted: the result is copied if kernels cannot write to it."""
    op = evt.conv2d("D = acc", padding=1)
    x, weight = torch.ones(2, 16, 6, 7, dtype=HALF), torch.ones(12, 16, 3, 3, dtype=HALF)
    for out in (torch.empty(2, 12, 6, 7, dtype=HALF), torch.empty(2, 12, 6, 14, dtype=HALF)[..., ::2]):
        assert torch.equal(op(x, weight, out=out), op(x, weight))
