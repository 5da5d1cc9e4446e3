"""Convolutions: their geometry, their shapes, and their programs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import evt
from evt.ir.convolution import Convolution
from evt.request import problem_sizes
from tests.support.convolutions import WEIGHT, X, convolution


def geometry(operation: str = "conv2d", **keywords: Any) -> Convolution:
    found = convolution("D = acc", operation, **keywords).request.convolution
    assert found is not None
    return found


# Geometry


@pytest.mark.parametrize(
    ("operation", "keywords", "expected"),
    [
        ("conv2d", {}, {"stride": (1, 1), "padding": ((0, 0), (0, 0)), "dilation": (1, 1), "groups": 1}),
        ("conv2d", {"stride": 2, "dilation": 3}, {"stride": (2, 2), "dilation": (3, 3)}),
        ("conv2d", {"stride": (2, 3), "dilation": [1, 2]}, {"stride": (2, 3), "dilation": (1, 2)}),
        ("conv2d", {"stride": torch.Size([2, 3])}, {"stride": (2, 3)}),
        ("conv2d", {"padding": 2}, {"padding": ((2, 2), (2, 2))}),
        ("conv2d", {"padding": (1, 2)}, {"padding": ((1, 1), (2, 2))}),
        ("conv2d", {"padding": [[1, 2], (3, 0)]}, {"padding": ((1, 2), (3, 0))}),
        ("conv2d", {"padding": "valid", "stride": 2}, {"padding": ((0, 0), (0, 0))}),
        ("conv2d", {"padding": "same"}, {"padding": None}),
        ("conv2d", {"groups": 4}, {"groups": 4}),
        ("conv1d", {"padding": (3,), "stride": 2}, {"padding": ((3, 3),), "stride": (2,)}),
        ("conv1d", {"padding": ((1, 2),)}, {"padding": ((1, 2),)}),
        ("conv3d", {"padding": ((0, 1), (2, 3), (4, 5))}, {"padding": ((0, 1), (2, 3), (4, 5))}),
        ("conv3d", {"padding": ((2, 0), 1, 3)}, {"padding": ((2, 0), (1, 1), (3, 3))}),
        ("conv2d_dgrad", {"output_padding": (1, 0), "stride": 2}, {"output_padding": (1, 0), "kernel_size": ()}),
        ("conv3d_wgrad", {"kernel_size": 3}, {"kernel_size": (3, 3, 3), "output_padding": ()}),
        ("conv1d_wgrad", {"kernel_size": (5,)}, {"kernel_size": (5,)}),
    ],
)
def test_geometry(operation: str, keywords: dict[str, Any], expected: dict[str, Any]) -> None:
    found = geometry(operation, **keywords)
    assert {name: getattr(found, name) for name in expected} == expected


@pytest.mark.parametrize(
    ("operation", "keywords", "code", "said"),
    [
        ("conv2d", {"stride": 0}, "E0607", "`stride` is 0; expected a whole number of at least 1, or 2 of them"),
        ("conv2d", {"stride": (1, 2, 3)}, "E0607", "`stride` is (1, 2, 3); expected a whole number"),
        ("conv2d", {"stride": ()}, "E0607", "`stride` is ()"),
        ("conv2d", {"stride": True}, "E0607", "`stride` is True"),
        ("conv2d", {"stride": 1.0}, "E0607", "`stride` is 1.0"),
        ("conv2d", {"stride": "2"}, "E0607", "`stride` is '2'"),
        ("conv1d", {"stride": (1, 2)}, "E0607", "`stride` is (1, 2); expected a whole number of at least 1\n"),
        ("conv2d", {"dilation": (1, 0)}, "E0607", "`dilation` is (1, 0)"),
        ("conv2d", {"groups": 0}, "E0607", "`groups` is 0; expected a whole number of at least 1\n"),
        ("conv2d", {"groups": (1, 2)}, "E0607", "`groups` is (1, 2)"),
        ("conv2d", {"padding": -1}, "E0607", "`padding` is -1; expected a whole number of at least 0, or 2 of them"),
        ("conv2d", {"padding": 2**31}, "E0607", "`padding` is 2147483648"),
        ("conv2d", {"padding": None}, "E0607", "`padding` is None"),
        ("conv2d", {"padding": "full"}, "E0607", '`padding` is \'full\'; expected numbers, "same" or "valid"'),
        ("conv2d", {"padding": b"same"}, "E0607", "`padding` is b'same'"),
        ("conv2d", {"padding": torch.tensor([1, 2])}, "E0607", "`padding` is tensor([1, 2])"),
        ("conv2d", {"padding": ((1, 2), "3")}, "E0607", "`padding` is '3'"),
        ("conv2d", {"padding": ((1, 2), 3, 4)}, "E0607", "or 2 of them; each may be a pair (before, after)\n"),
        ("conv1d", {"padding": (1, 2)}, "E0607", "at least 0, or a sequence of a pair (before, after)\n"),
        ("conv2d", {"padding": ((1, 2), (3, -4))}, "E0607", "`padding` is (3, -4)"),
        ("conv2d", {"padding": ((1, 2, 3), (4, 5))}, "E0607", "`padding` is (1, 2, 3)"),
        ("conv3d", {"padding": ((1, 2), (3, 4))}, "E0607", "or 3 of them"),
        ("conv2d", {"padding": "same", "stride": (1, 2)}, "E0607", "is 'same', and the stride (1, 2) is not 1"),
        ("conv2d_dgrad", {"output_padding": -1}, "E0607", "`output_padding` is -1"),
        ("conv2d_wgrad", {"kernel_size": (3, 0)}, "E0607", "`kernel_size` is (3, 0)"),
        ("conv2d_wgrad", {}, "E0601", "conv2d_wgrad needs `kernel_size`"),
        ("conv2d", {"kernel_size": 3}, "E0602", "conv2d has no keyword `kernel_size`"),
        ("conv2d", {"output_padding": 1}, "E0602", "keywords: stride, padding, dilation, groups\n"),
        ("conv2d_dgrad", {"kernel_size": 3}, "E0602", "conv2d_dgrad has no keyword `kernel_size`"),
        ("conv2d_wgrad", {"kernel_size": 3, "output_padding": 1}, "E0602", "no keyword `output_padding`"),
        ("conv2d", {"strides": 2}, "E0602", "`strides`"),
        ("gemm", {"padding": 1}, "E0602", "`padding` is for convolutions, and the operation is gemm"),
        ("linear", {"groups": 2}, "E0602", "`groups` is for convolutions, and the operation is linear"),
    ],
)
def test_mistakes_of_geometry(operation: str, keywords: dict[str, Any], code: str, said: str) -> None:
    with pytest.raises(evt.ArgumentError) as caught:
        convolution("D = acc", operation, **keywords)
    assert [each.code for each in caught.value.diagnostics] == [code]
    assert said in f"{caught.value}\n"


@pytest.mark.parametrize(
    ("operation", "a", "b", "keywords", "said"),
    [
        ("conv2d", (1, 8, 5), (8, 8, 3, 3), {}, "A (x) has 3 dimensions; expected [N, C, H, W]"),
        ("conv2d", (1, 8, 5, 5), (8, 8, 3), {}, "B (weight) has 3 dimensions; expected [K, C, R, S]"),
        ("conv1d", (8, 5), (8, 8, 3), {}, "A (x) has 2 dimensions; expected [N, C, L]"),
        ("conv1d", (1, 8, 5), (8, 8), {}, "B (weight) has 2 dimensions; expected [K, C, S]"),
        ("conv3d", (1, 8, 5, 5), (8, 8, 3, 3, 3), {}, "A (x) has 4 dimensions; expected [N, C, D, H, W]"),
        ("conv3d", (1, 8, 5, 5, 5), (8, 8, 3, 3), {}, "expected [K, C, T, R, S]"),
        ("conv2d_dgrad", (1, 8, 5), (8, 8, 3, 3), {}, "A (the gradient) has 3 dimensions"),
        ("conv2d_wgrad", (1, 8, 5, 5), (8, 3, 3), {"kernel_size": 3}, "B (x) has 3 dimensions"),
        ("conv2d", (1, 8, 5, 5), (8, 7, 3, 3), {}, "A has 8 channels and B has 7\n"),
        ("conv2d", (1, 9, 5, 5), (8, 4, 3, 3), {"groups": 2}, "A has 9 channels and B has 4 in each of 2 groups"),
        ("conv2d", (1, 8, 5, 5), (9, 4, 3, 3), {"groups": 2}, "9 output channels do not divide into 2 groups"),
        ("conv2d_dgrad", (1, 7, 5, 5), (8, 8, 3, 3), {}, "A has 7 channels and B has 8 output channels"),
        ("conv2d_wgrad", (1, 8, 3, 3), (1, 9, 5, 5), {"kernel_size": 3, "groups": 2}, "9 input channels do not divide"),
        ("conv2d_wgrad", (2, 8, 3, 3), (1, 8, 5, 5), {"kernel_size": 3}, "A has 2 images and B has 1"),
        (*("conv2d_wgrad", (1, 8, 3, 3), (1, 8, 7, 6), {"kernel_size": 3}), "A has 3 x 3 pixels; the output of this"),
        ("conv2d", (1, 8, 5, 5), (8, 8, 7, 7), {}, "the dilated filters span 7 pixels, and the padded input has 5"),
        ("conv2d", (0, 8, 5, 5), (8, 8, 7, 7), {}, "the dilated filters span 7 pixels"),
        ("conv2d", (1, 8, 5, 5), (8, 8, 3, 3), {"dilation": 3}, "the dilated filters span 7 pixels"),
        ("conv2d", (1, 8, 5, 5), (8, 8, 0, 3), {}, "the filters have 0 x 3 taps"),
        ("conv2d_dgrad", (1, 8, 1, 1), (8, 8, 1, 1), {"padding": 1}, "the result would have -1 pixels"),
        (
            *("conv2d_dgrad", (1, 8, 5, 5), (8, 8, 3, 3), {"output_padding": 1}),
            "output_padding (1, 1) is not smaller than the stride (1, 1)",
        ),
    ],
)
def test_shapes_that_are_none(
    operation: str, a: tuple[int, ...], b: tuple[int, ...], keywords: dict[str, Any], said: str
) -> None:
    op = convolution("D = acc", operation, **keywords)
    calls: tuple[Callable[[], object], ...] = (
        lambda: op(torch.zeros(a), torch.zeros(b)),
        lambda: op.plan("sm80", shapes=(a, b)),
        lambda: problem_sizes(op.request, (a, b)),
    )
    for call in calls:
        with pytest.raises(evt.ArgumentError) as caught:
            call()
        assert [each.code for each in caught.value.diagnostics] == ["E0604"]
        assert said in f"{caught.value}\n"
        assert all(each.help for each in caught.value.diagnostics)


# The language


def test_there_are_no_batches() -> None:
    for text in ("in b: f32[l, n]; D = acc + b", "D = acc + C[l, m, n]", "out D[l, m, n]; D = acc"):
        with pytest.raises(evt.ProgramError, match="E0301"):
            evt.conv2d(text)
    with pytest.raises(evt.ProgramError, match="images count among the rows: omit `l`"):
        evt.conv2d("D = acc + b[l]")


def test_a_header_says_that_it_is_a_convolution(tmp_path: Path) -> None:
    op = convolution("conv2d(A: bf16, B: bf16); D = relu(acc)", "gemm", padding=1)
    assert op.request.operation == "conv2d"
    assert op.request.convolution == geometry(padding=1)
    x, w = torch.ones(1, 8, 4, 4), torch.ones(8, 8, 3, 3)
    assert op(x.bfloat16(), w.bfloat16()).shape == (1, 8, 4, 4)
    with pytest.raises(evt.ArgumentError, match="E0603"):
        op(x.half(), w.half())
    path = tmp_path / "program.evt"
    path.write_text("conv1d_wgrad(A: f16, B: f16)\nD = acc\n")
    assert evt.load(path, kernel_size=3).request.convolution == geometry("conv1d_wgrad", kernel_size=3)
    with pytest.raises(evt.ArgumentError, match="E0601"):
        evt.load(path)
    with pytest.raises(evt.ArgumentError, match=r"E0602.*\n?.*padding"):
        evt.conv2d("gemm(A: f16, B: f16); D = acc", padding=1)


# Refusals


@pytest.mark.parametrize(
    "text",
    [
        "D = even(acc)*odd(acc)",
        "out D, mask: b1[m, n]; D = acc; mask = acc > 0",
        "in q: b1[m, n]; D = where(q, acc, 0)",
    ],
)
def test_the_columns_of_a_weights_gradient_are_taps_and_channels(text) -> None:
    with pytest.raises(evt.ProgramError, match="in the gradient of a weight are not supported yet"):
        evt.conv2d_wgrad(text, kernel_size=3)


@pytest.mark.parametrize(
    "shapes", [5, ((2, 8, 6, 5),), ("abcd", (4, 8, 3, 3)), ((-2, 8, 6, 5), (4, 8, 3, 3)), (None, None)]
)
def test_what_is_no_pair_of_shapes(shapes) -> None:
    with pytest.raises(evt.ArgumentError, match=r"E060[47]"):
        evt.conv2d("D = acc").emit("sm80", shapes=shapes)


@pytest.mark.parametrize("given", [None, 3, torch.zeros(3)])
def test_what_has_no_channels(given) -> None:
    with pytest.raises(evt.ArgumentError, match=r"E060[47]"):
        evt.channels_last(given)


def test_groups_of_convolutions_are_refused() -> None:
    with pytest.raises(evt.TargetError, match="groups consist of matrix products"):
        evt.grouped_gemm("conv2d(A: f16, B: f16); D = acc")


def test_what_reaches_beyond_integers_is_refused() -> None:
    with pytest.raises(evt.ArgumentError, match="E0604"):
        evt.conv2d("D = acc", dilation=2**30, padding=2**30)(X, WEIGHT)


@pytest.mark.parametrize("path", [None, 3, b"x.evt"])
def test_what_names_no_file(path) -> None:
    with pytest.raises(evt.ArgumentError, match="E0607"):
        evt.load(path)
