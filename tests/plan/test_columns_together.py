"""Columns that meet in an epilogue: plans satisfy the static_asserts about tiles in codegen/include/evt."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import evt
from evt.plan import Plan
from evt.plan.epilogue.computes import BlockReduce, FirstColumns, PairInterleave, PairMember
from evt.plan.epilogue.loads import HalfLoad, MaskLoad
from evt.plan.epilogue.step import Step
from evt.plan.epilogue.writes import BlockStore, HalfStore, MaskStore
from evt.plan.survey import survey
from evt.request import packed_problem
from tests.support.depth import in_depth

#: Outputs besides D, and their statements.
FORMULAS = {
    **{f"block of {w}": (f"Y: f32[m, n/{w}]", f"Y = max[n%{w}](acc)") for w in (8, 16, 32, 64, 128)},
    **{f"pairs {b} apart": ("Y: f16[m, n/2]", f"Y = even(acc, {b}) + odd(acc, {b})") for b in (1, 8, 16, 32)},
    **{f"interleaved {b} apart": ("Y: f16", f"Y = interleave(even(acc, {b}), odd(acc, {b}), {b})") for b in (1, 8, 32)},
    **{f"block of pairs {b} apart": ("Y: f32[m, n/128]", f"Y = max[n%64](even(acc, {b}))") for b in (1, 16, 32)},
    "sum of a pair": ("Y: f32[m]", "Y = sum[n](even(acc, 16))"),
    "bits": ("Y: b1", "Y = acc > 0"),
    "bits beside a block": ("Y: b1, Z: f32[m, n/128]", "Y = acc > 0; Z = max[n%128](acc)"),
}


def lanes_of(made: Plan) -> int:
    """Return the lanes of a warp beside each other in a row, as CUTLASS 2.x's RowArrangement has them."""
    (m, n, _), (warp_m, warp_n, _) = made.config.tile, made.config.warp
    rows = 8 // (n // warp_n)  # of a step, for the warps that share a group
    width = 256 * 8 // (made.elements_per_access * made.epilogue_dtype.bits)
    assert m % warp_m == 0
    return 32 // rows if 32 // width > rows else min(n // made.elements_per_access, 32, width)


def meets(made: Plan, node: Step) -> bool:
    """Return whether the columns of a node are where its header expects them."""
    vector, step = made.elements_per_access, made.config.epilogue_tile[1]
    match node:
        case BlockReduce(width=width) | BlockStore(width=width):
            if made.family == "2x":
                return width % vector == 0 and width // vector <= lanes_of(made)
            return width % 8 == 0 and step % width == 0
        case PairMember(distance=block) | PairInterleave(distance=block):
            return _paired(made, block)
        case HalfLoad(distance=block) | HalfStore(distance=block):
            return _paired(made, block)
        case FirstColumns(width=width):
            return made.family == "2x" or step % width == 0
        case MaskLoad() | MaskStore():
            if made.family == "2x":
                return vector >= 8 or 8 // vector <= lanes_of(made)
            return step in (32, 64) or (made.family == "sm100" and step % 32 == 0)
    return True


def _paired(made: Plan, block: int) -> bool:
    vector, step = made.elements_per_access, made.config.epilogue_tile[1]
    if made.family != "2x":
        return step % (2 * block) == 0
    return block == 1 if vector > block else 2 * (block // vector) <= lanes_of(made)


def plans(op: evt.Program, arch: str, dtype: str) -> Iterator[Plan]:
    """Yield the plans of every route and configuration."""
    for candidate in survey(packed_problem(op.request, arch, dtype, dtype)).candidates:
        if candidate.applies:
            made = map(candidate.try_plan, candidate.configs)
            yield from (each for each in made if isinstance(each, Plan))


@pytest.mark.parametrize("d", in_depth(["f64", "f32", "f16", "e4m3"], quick=["f64", "e4m3"]))
@pytest.mark.parametrize("name", FORMULAS)
def test_columns_meet_in_every_kernel(name: str, d: str) -> None:
    outputs, statements = FORMULAS[name]
    text = f"out D: {d}, {outputs}; D = acc*2; {statements}"
    routes = set()
    for op in (evt.gemm(text), evt.conv2d(text)):
        for arch, dtype in (("sm80", "f16"), ("sm90", "f16"), ("sm90", "e4m3"), ("sm90", "i8"), ("sm100", "f16")):
            for made in plans(op, arch, dtype):
                found = [node for node in made.steps if not meets(made, node)]
                assert not found, (made.route, made.config.name, arch, dtype, found)
                routes.add(made.route)
    assert {"evt-2x", "evt-3x", "conv-evt-2x"} <= routes
