"""Two products of A: the routes that compute them, the sizes of their kernel, and the reasons for refusals."""

from __future__ import annotations

import pytest

import evt
from evt.measured import problem_key
from evt.plan import survey
from evt.plan.epilogue.broadcasts import PairBroadcast
from evt.plan.plan import OwnProduct
from evt.plan.speed import duration
from evt.request import packed_problem

TEXT = "D = silu(acc)*matmul(A, up)"
PAIRS = "out D[m, n/2]; D = silu(even(acc))*odd(acc)"


def test_the_own_kernel_has_pairs_of_columns() -> None:
    made = evt.linear(TEXT).plan("sm90", "bf16", "bf16")
    assert made.route == "gemm-own-3x"
    assert isinstance(made.mainloop, OwnProduct)
    assert made.mainloop.pairs
    assert made.mainloop.partner is not None
    assert made.mainloop.partner.name == "up"
    assert [each.name for each in made.parameters] == ["A", "B", "up", "D"]
    assert made.parameters[-1].modes == ("m", "n")


def test_vectors_have_a_value_for_each_pair() -> None:
    made = evt.linear("in b: bf16[n], c: bf16[n]; D = silu(acc + b)*(matmul(A, up) + c)").plan("sm90", "bf16", "bf16")
    found = [step for step in made.steps if isinstance(step, PairBroadcast)]
    assert [step.values.name for step in found] == ["in_b", "in_c"]
    assert [step.is_packed for step in found] == [True, True]
    assert made.parameters[-1].modes == ("m", "n")


def test_the_duration_is_that_of_the_pairs() -> None:
    made, pairs = (evt.linear(text, route="own").plan("sm90", "bf16", "bf16") for text in (TEXT, PAIRS))
    sizes = {"m": 4096, "n": 1024, "k": 512, "l": 1}
    both = duration(made, sizes, 132).total, duration(pairs, {**sizes, "n": 2048}, 132).total
    assert both[0] == pytest.approx(both[1])


def test_measurements_differ_from_those_of_pairs() -> None:
    problems = [packed_problem(evt.linear(text).request, "sm90", "bf16", "bf16") for text in (TEXT, PAIRS)]
    found = [survey(each).problem for each in problems]
    sizes = {"m": 64, "n": 64, "k": 64, "l": 1}
    assert found[0].dag == found[1].dag or str(found[0].dag) == str(found[1].dag)
    assert len({problem_key(each, sizes) for each in found}) == 2


REFUSED = {
    "D = silu(acc + bias[i[n]])*matmul(A, up)": "`bias` varies over n",
    "out s: f32[n], D; D = acc*matmul(A, up); s = max[m](acc)": "has a reduction",
    "in C: bf16[m, n]; D = acc*matmul(A, up) + C": "`C` varies over n",
    "D = acc*matmul(A, up)*matmul(A, other)": "a kernel takes one",
    "D = acc*matmul(A, up); r = sum[n](acc)": "has a reduction",
    "D = acc*matmul(A, up)*iota(n)": "has a coordinate",
    "A = relu(A); D = acc*matmul(A, up)": "operands have formulas",
    "out D: f32; D = acc*matmul(A, up)": "TMA does not store `D`",
    "in up: f16[n, k]; D = acc*matmul(A, up)": "different types",
}


@pytest.mark.parametrize("text", REFUSED)
def test_reasons(text: str) -> None:
    with pytest.raises(evt.TargetError) as raised:
        evt.linear(text).plan("sm90", "bf16", "bf16")
    assert REFUSED[text] in str(raised.value)


@pytest.mark.parametrize("arch", ["sm80", "sm100"])
def test_other_targets_are_refused(arch: str) -> None:
    with pytest.raises(evt.TargetError, match="only evt's GEMM kernel for sm90 has two products of A"):
        evt.linear(TEXT).plan(arch, "bf16", "bf16")
    assert not evt.supports(evt.linear(f"in up: bf16[n, k]; {TEXT}"), arch=arch)
