"""Convolutions: the strides of a call, tensors that are read in place, and copies."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import evt
from evt.plan import LayoutClass
from evt.plan.plan import Convolution2x
from evt.request import packed_problem
from evt.runtime.arguments import bind
from evt.runtime.bound import Bound
from tests.support.convolutions import WEIGHT, X, bound, convolution, half, last

IMAGE = (2, 24, 9, 7)
OP = evt.conv2d("D = relu(acc + bias) + residual", padding=1)


def strides(found: Bound, name: str) -> dict[str, int]:
    return dict(found.tensors[name].strides)


def test_strides_of_channels_last_tensors() -> None:
    found = bound(OP, X, WEIGHT, bias=half(24), residual=last(half(*IMAGE)))
    assert found.copied == ()
    activation = {"outer": 1008, "height": 112, "width": 16, "pixel": 16, "m": 16, "k": 1, "l": 0}
    assert strides(found, "A") == activation
    assert strides(found, "B") == {"outer": 144, "height": 48, "width": 16, "pixel": 1, "n": 144, "k": 1, "l": 0}
    assert strides(found, "residual") == strides(found, "D") == {"m": 24, "n": 1, "l": 0}
    assert {name: each.layout.alignment for name, each in found.tensors.items()} == dict.fromkeys(found.tensors, 8)
    assert found.signature.a == found.signature.b == LayoutClass("k", 8)
    assert found.signature["residual"] == LayoutClass("n", 8)
    assert found.signature.convolution is not None
    assert found.signature.convolution.packed


@pytest.mark.parametrize("text", ["D = relu(acc + bias) + C", "in bias: f16[n], C: f16[m, n]; D = bias*acc + C"])
@pytest.mark.parametrize("size", [1, 3])
def test_packed_tensors_are_planned_as_they_are_called(text: str, size: int) -> None:
    """An explanation with shapes agrees with a call with these shapes."""
    op = evt.conv2d(text, padding="same")
    for channels, filters in ((16, 24), (3, 24), (6, 9)):
        x, weight = last(half(2, channels, 9, 7)), last(half(filters, channels, size, size))
        called = bound(op, x, weight, bias=half(filters), C=last(half(2, filters, 9, 7)))
        asked = packed_problem(op.request, "sm90", None, None, (x.shape, weight.shape)).signature
        vector = ("bias", called.signature["bias"])  # which is aligned to 16 bytes where its extent is not known
        tensors = tuple(vector if name == "bias" else (name, layout) for name, layout in asked.tensors)
        assert replace(asked, tensors=tensors) == called.signature


def test_strides_of_rows_and_volumes() -> None:
    found = bound(evt.conv1d("D = acc"), last(half(2, 16, 9)), last(half(24, 16, 3)))
    assert strides(found, "A") == {"outer": 144, "height": 144, "width": 16, "pixel": 16, "m": 16, "k": 1, "l": 0}
    assert strides(found, "B") == {"outer": 48, "height": 48, "width": 16, "pixel": 1, "n": 48, "k": 1, "l": 0}
    found = bound(evt.conv3d("D = acc"), last(half(2, 16, 5, 9, 7)), last(half(24, 16, 3, 3, 3)))
    assert [strides(found, "A")[name] for name in ("outer", "depth", "height", "width")] == [5040, 1008, 112, 16]
    assert [strides(found, "B")[name] for name in ("outer", "depth", "height", "width")] == [432, 144, 48, 16]


def test_strides_of_gradients() -> None:
    gradient, weight = last(half(2, 24, 7, 5)), last(half(24, 16, 3, 3))
    found = bound(convolution("D = acc + C", "conv2d_dgrad"), gradient, weight, C=last(half(2, 16, 9, 7)))
    assert strides(found, "A") == {"outer": 840, "height": 120, "width": 24, "pixel": 24, "m": 24, "k": 1, "l": 0}
    assert strides(found, "B") == {"outer": 144, "height": 48, "width": 16, "pixel": 1, "k": 144, "n": 1, "l": 0}
    assert strides(found, "C") == {"m": 16, "n": 1, "l": 0}
    found = bound(convolution("D = acc + C", "conv2d_wgrad", kernel_size=3), gradient, X, C=weight)
    assert strides(found, "A") == {"outer": 840, "height": 120, "width": 24, "pixel": 24, "k": 24, "m": 1, "l": 0}
    assert strides(found, "B") == {"outer": 1008, "height": 112, "width": 16, "pixel": 16, "k": 16, "n": 1, "l": 0}
    assert strides(found, "C") == {"m": 144, "n": 1, "l": 0}
    assert (found.sizes["m"], found.sizes["n"], found.sizes["k"]) == (24, 144, 70)


def test_slices_are_read_in_place() -> None:
    wide = last(half(2, 40, 9, 7))
    for start, alignment in ((8, 8), (4, 4), (6, 2), (3, 1)):
        found = bound(OP, wide[:, start : start + 16], WEIGHT, bias=half(24), residual=last(half(*IMAGE)))
        assert found.copied == ()
        shown = {"outer": 2520, "height": 280, "width": 40, "pixel": 40, "m": 40, "k": 1, "l": 0}
        assert strides(found, "A") == shown
        assert found.signature.a == LayoutClass("k", alignment)
    cropped = last(half(2, 16, 11, 9))[:, :, 1:10, 1:8]
    found = bound(OP, cropped, WEIGHT, bias=half(24), residual=last(half(2, 40, 9, 7))[:, 8:32])
    assert found.copied == ()
    assert [strides(found, "A")[name] for name in ("outer", "height", "width", "pixel")] == [1584, 144, 16, 0]
    assert strides(found, "residual") == {"m": 40, "n": 1, "l": 0}
    assert found.signature.convolution is not None
    assert not found.signature.convolution.packed


@pytest.mark.parametrize("taps", [(1, 1), (3, 1), (1, 3), (3, 2)])
def test_taps_of_a_filter_have_one_stride(taps: tuple[int, int]) -> None:
    """CUTLASS walks the taps of a filter with the stride of the innermost."""
    wide = last(half(24, 40, *taps))
    found = bound(evt.conv2d("D = acc"), X, wide[:, :16])
    assert found.copied == ()
    width = 40 if taps != (1, 1) else 40 * taps[0] * taps[1]
    assert strides(found, "B")["width"] == width
    assert strides(found, "B")["height"] == (width * taps[1] if taps[0] > 1 or taps == (1, 3) else width)
    cropped = last(half(24, 16, taps[0] + 1, taps[1] + 1))[:, :, : taps[0], : taps[1]]
    one_stride = 1 in taps
    assert bound(evt.conv2d("D = acc"), X, cropped).copied == (() if one_stride else ("B",))


def test_taps_of_a_volume_have_one_stride() -> None:
    op, x = evt.conv3d("D = acc"), last(half(2, 16, 5, 9, 7))
    found = bound(op, x, last(half(24, 40, 3, 3, 1))[:, :16])
    assert [strides(found, "B")[name] for name in ("outer", "depth", "height", "width")] == [360, 120, 40, 40]
    assert bound(op, x, last(half(24, 16, 3, 3, 2))[..., :1]).copied == ()
    assert bound(op, x, last(half(24, 16, 3, 4, 1))[:, :, :, :3]).copied == ("B",)


def test_pixels_of_a_wgrad_have_one_stride() -> None:
    op = convolution("D = acc", "conv2d_wgrad", kernel_size=3)
    wide = last(half(2, 40, 7, 5))
    found = bound(op, wide[:, :24], X)
    assert (found.copied, strides(found, "A")["width"]) == ((), 40)
    assert bound(op, last(half(2, 24, 9, 7))[:, :, 1:8, 1:6], X).copied == ("A",)
    found = bound(op, last(half(2, 40, 7, 1))[:, :24], last(half(2, 16, 9, 3)))
    assert (found.copied, strides(found, "A")["width"]) == ((), 40)


def test_what_is_not_channels_last_is_copied() -> None:
    residual = last(half(*IMAGE))
    assert bound(OP, X.contiguous(), WEIGHT, bias=half(24), residual=residual).copied == ("A",)
    found = bound(OP, X.contiguous(), WEIGHT.contiguous(), bias=half(24), residual=half(*IMAGE))
    assert found.copied == ("A", "B", "residual")
    assert strides(found, "A") == strides(bound(OP, X, WEIGHT, bias=half(24), residual=residual), "A")
    assert strides(found, "residual") == {"m": 24, "n": 1, "l": 0}
    assert found.signature == bound(OP, X, WEIGHT, bias=half(24), residual=residual).signature
    expanded = half(1, 1, 9, 7).expand(2, 16, 9, 7)
    assert bound(OP, expanded, WEIGHT, bias=half(24), residual=residual).copied == ("A",)
    cropped = last(half(2, 24, 11, 9))[:, :, 1:10, 1:8]  # an operand of the product may lie so, an epilogue's not
    assert bound(OP, X, WEIGHT, bias=half(24), residual=cropped).copied == ("residual",)
    one = bound(OP, half(2, 1, 9, 7), half(24, 1, 3, 3), bias=half(24), residual=residual)
    assert one.copied == ()  # one channel is next to itself


def test_buffers_are_written_where_the_kernel_can() -> None:
    given = {"bias": half(24), "residual": last(half(*IMAGE))}
    wide = last(half(2, 40, 9, 7))
    found = bound(OP, X, WEIGHT, {"D": wide[:, 8:32]}, **given)
    assert (found.copied, strides(found, "D")) == ((), {"m": 40, "n": 1, "l": 0})
    assert OP(X, WEIGHT, out=wide[:, 8:32], **given).data_ptr() == wide[:, 8:32].data_ptr()
    with pytest.raises(evt.ArgumentError, match=r"E0608.*\n?.*elements share memory"):
        OP(X, WEIGHT, out=half(1, 24, 9, 7).expand(IMAGE), **given)


def test_other_buffers_are_written_by_a_copy() -> None:
    """The result of a call without buffers may be its buffer too, and so may any other memory of that shape."""
    given = {"bias": half(24), "residual": last(half(*IMAGE))}
    want = OP(X.contiguous(), WEIGHT.contiguous(), **given)
    assert want.is_contiguous()
    cropped = last(half(2, 24, 11, 9))[:, :, 1:10, 1:8]
    for buffer in (half(*IMAGE), half(24, 2, 9, 7).transpose(0, 1), cropped, half(2, 24, 9, 14)[..., ::2]):
        found = bound(OP, X, WEIGHT, {"D": buffer}, **given)
        assert (found.copied, strides(found, "D")) == (("D",), {"m": 24, "n": 1, "l": 0})
        assert OP(X, WEIGHT, out=buffer, **given) is buffer
        assert torch.equal(buffer, want)


def test_shapes_are_pytorchs() -> None:
    for name, wrong, expected in (
        ("residual", half(2, 9, 7, 24), "`residual` has shape [2, 9, 7, 24]; expected [2, 24, 9, 7]"),
        ("residual", half(1, 24, 9, 7), "`residual` has shape [1, 24, 9, 7]; expected [2, 24, 9, 7]"),
        ("residual", half(1, 24, 1, 1), "a number for each channel is declared `residual[n]`"),
        ("bias", half(9), "`bias` has shape [9]; expected [24]"),
        ("bias", half(1, 24, 1, 2), "`bias` has shape [1, 24, 1, 2]; expected [24]"),
    ):
        inputs = {"bias": half(24), "residual": last(half(*IMAGE)), name: wrong}
        with pytest.raises(evt.ArgumentError) as caught:
            OP(X, WEIGHT, **inputs)
        assert [each.code for each in caught.value.diagnostics] == ["E0604"]
        assert expected in str(caught.value)


def test_accesses_do_not_reach_into_the_next_group() -> None:
    x, w = evt.channels_last(torch.zeros(2, 16, 8, 8).half()), evt.channels_last(torch.zeros(64, 2, 3, 3).half())
    op = evt.conv2d("D = acc", groups=8)
    assert bind(op.request, x, w, {}, {}).signature.a.alignment == 8
    loop = op.plan("sm80", "f16", "f16", shapes=(x.shape, w.shape)).mainloop
    assert isinstance(loop, Convolution2x)
    assert loop.a.alignment == 2


def test_a_flat_buffer_has_the_rows_of_the_implicit_gemm() -> None:
    x, w = torch.randn(2, 8, 6, 5), torch.randn(4, 8, 3, 3)
    op = evt.conv2d("D = acc")
    flat = torch.empty(24, 4)
    op(x, w, out=flat)
    assert torch.equal(flat, op(x, w).permute(0, 2, 3, 1).reshape(24, 4))


def test_a_copied_tensor_is_a_copy() -> None:
    """A tensor whose only image has a stride of 0 is read in place, at its alignment."""
    memory = torch.randn(1 + 8 * 6 * 5).half()
    residual = memory[1:].as_strided((1, 8, 6, 5), (0, 1, 40, 8))
    op = evt.conv2d("D = acc + r", padding=1)
    x, w = evt.channels_last(torch.zeros(1, 8, 6, 5).half()), evt.channels_last(torch.zeros(8, 8, 3, 3).half())
    bound = bind(op.request, x, w, {"r": residual}, {})
    assert bound.copied == ()
    assert bound.signature["r"].alignment == 1
