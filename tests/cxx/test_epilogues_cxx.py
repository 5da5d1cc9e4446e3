"""The epilogues of emitted 2.x kernels, visitors and final reductions, run on the host against the reference."""

from __future__ import annotations

from pathlib import Path

import pytest

from evt.reference.compare import distance
from evt.request import typed_graph
from tests.cxx.epilogues import run
from tests.cxx.gxx import MARKS
from tests.support.crossings import CASES, bits, poisoned, program, tensors

pytestmark = MARKS
#: One compilation takes g++ ten seconds.
QUICK = ("rotary",)
PRODUCTS = [
    pytest.param(name, marks=() if name in QUICK else pytest.mark.slow)
    for name, case in CASES.items()
    if case.operation != "conv2d" and not case.views  # which takes several launches
]


@pytest.mark.parametrize("name", PRODUCTS)
def test_epilogues(name: str, tmp_path: Path) -> None:
    op, case = program(name, "2x"), CASES[name]
    a, b, inputs, held = tensors(name, op, "cpu")
    want = op.reference(a, b, float64=True, **inputs, **held)._asdict()
    stored = op.reference(a, b, **inputs, **held)._asdict()
    made = {key: held[key].clone() if key in held else poisoned(each) for key, each in stored.items()}
    run(op, a, b, inputs, made, tmp_path)
    for output in typed_graph(op.request, case.dtype, case.dtype).outputs:
        got, dtype = made[output.name], output.dtype
        assert dtype is not None
        if dtype.is_float:
            inside = dtype if dtype.bits == 16 else None
            assert distance(got, want[output.name], dtype, inside=inside) <= 1, output.name
        else:
            assert bits(got).equal(bits(stored[output.name])), output.name
