"""Defaults of inputs and of functions' parameters: their values to the bit, also that of -0.0."""

from __future__ import annotations

import torch

import evt
from evt.functions.testing import temporarily

A, B = torch.ones(16, 8), torch.ones(8, 24)


def test_an_input_that_is_left_out_keeps_its_sign() -> None:
    for text in ("in gate: f32[m] = -0.0; D = 1 / gate + acc * 0", "in s: f32 = -0.0; D = 1 / s + acc * 0"):
        op = evt.gemm(text)
        assert op(A, B)[0, 0] == float("-inf")
        assert op.reference(A, B, float64=True)[0, 0] == float("-inf")


def test_a_group_that_leaves_an_input_out_keeps_its_sign() -> None:
    found = evt.grouped_gemm("in s: f32 = -0.0; D = 1 / s + acc * 0")([A, A], [B, B], s=[1.0, None])
    assert (found[0][0, 0], found[1][0, 0]) == (1.0, float("-inf"))


def test_a_parameter_that_is_left_out_keeps_its_sign() -> None:
    with temporarily():
        evt.function("signed(x, a=-0.0)", cxx="1 / a + x", torch=lambda x, a: 1 / a + x)
        op = evt.gemm("D = signed(acc)")
        assert op(A, B)[0, 0] == float("-inf")
        assert "-0.0f" in op.emit("sm80")
