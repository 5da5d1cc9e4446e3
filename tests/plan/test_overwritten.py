"""Outputs that overwrite a matrix, and elements that are counted: own products complete these once."""

from __future__ import annotations

import pytest

import evt
from evt.emission import emitted
from evt.launch.members import IsOverwritten, structs
from evt.plan.overwritten import overwritten

#: Outputs and inputs that may be the same memory, by a program.
OVERWRITTEN = {
    "D = acc + bias": [],
    "D = acc*s[m] + C": [("out_D", "in_C")],
    "in C: f32[m, n], E: f16[m, n]; out D, Z: f32[m, n]; D = acc + E; Z = acc*C": [
        ("out_D", "in_E"),
        ("out_Z", "in_C"),
    ],
    "in K: b1[m, n]; out D, Z: b1[m, n]; D = where(K, acc, 0); Z = acc > 0": [("out_Z", "in_K")],
    "in C: f16[m, n/2]; out D[m, n/2]; D = even(acc)*odd(acc) + C": [("out_D", "in_C")],
    "in i: i32[m]; D[i[m], n] = acc + C + x[i[m], n]": [],
}


@pytest.mark.parametrize("text", OVERWRITTEN)
def test_matrices_that_outputs_may_overwrite(text: str) -> None:
    made = evt.linear(text, route="gemm-own-3x").plan("sm90", "f16", "f16")
    assert sorted((str(one), str(other)) for one, other in overwritten(made)) == OVERWRITTEN[text]


def test_elements_that_are_counted_or_overwritten_are_completed_once() -> None:
    """The last tile of rows begins early, else: see kit/gemm.hpp."""
    texts = {
        "D = acc": ("", 0),
        "out D, s: f32[n]; D = acc; s = sum[m](acc)": ("result.once = true;", 1),
        "D = acc + C": ("result.once = arguments.out_D == arguments.in_C;", IsOverwritten),
    }
    for text, (line, value) in texts.items():
        made = evt.linear(text, route="gemm-own-3x").plan("sm90", "f16", "f16")
        written = emitted(made).text
        assert line in written if line else "result.once" not in written
        given = next(dict(each.members)["once"] for each in structs(made) if each.kernel == "kernel")
        assert given == value or isinstance(given, IsOverwritten)
