"""Eager numerics: no instruction joins a sum with a product before it, not with one inside a function either."""

from __future__ import annotations

import pytest

import evt
from evt.emission.functors import functors
from evt.functions import TABLE

UNARY = [  # without neg: -C + acc is acc - C
    row.name
    for row in TABLE.values()
    if row.required == 1 and row.result == "value" and not row.source and row.name != "neg"
]


@pytest.mark.parametrize("numerics", ["eager", "precise"])
def test_only_eager_numerics_guard_the_operators_of_functions(numerics: str) -> None:
    for name in UNARY:
        text = f"in C: f32[m, n]; out D: f32, E: f32, H: f32; z = {name}(C); "
        text += "D = z + acc; E = acc - z*acc; H = hardsigmoid(z)"
        plan = evt.gemm(text, numerics=numerics).plan("sm90", "f16")
        expressions = " ".join(each.expression for functor in functors(plan) for each in functor.statements)
        for guarded in ("rounded::sum(", "rounded::difference(", "rounded::product(", "eager::hardsigmoid("):
            assert (guarded in expressions) == (numerics == "eager"), (name, guarded, expressions)
