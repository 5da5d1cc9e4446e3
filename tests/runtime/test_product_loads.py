"""The boxes of products' operands have no rows and columns beyond the matrices, for which TMA takes long."""

from __future__ import annotations

import random

import pytest

import evt
from evt.launch.gemm import members, shape
from evt.launch.shape import TensorMap
from evt.plan import Plan, survey
from evt.plan.plan import OwnProduct
from evt.request import packed_problem
from tests.support.calls import of_product

OFFERED = survey(packed_problem(evt.linear("D = acc").request, "sm90", "bf16", "bf16"), "gemm-own-3x").defaults


def maps_of(plan: Plan, m: int, n: int, k: int) -> dict[str, TensorMap]:
    sizes = {field.name: max(n, k) for field in plan.fields if field.kind == "size"} | of_product(m, n, k)
    found = shape(plan, sizes, 132)
    assert found is not None
    return {each.member: each for each in found.maps if isinstance(each, TensorMap)}


@pytest.mark.parametrize("seed", range(20))
def test_the_last_block_of_columns_has_its_own_box(seed: int) -> None:
    draw = random.Random(seed)
    plan, blocks, rest = draw.choice(OFFERED), draw.randrange(9), 8 * draw.randrange(1, 8)
    found = maps_of(plan, draw.randrange(1, 3000), 64 * blocks + rest, 512)
    assert (found["b"].box[1], found["last"].box[1]) == (64, rest)
    assert found["last"].extents == found["b"].extents
    assert "last" not in maps_of(plan, 300, 64 * (blocks + 1), 512)


@pytest.mark.parametrize("seed", range(20))
def test_a_box_has_few_rows_if_a_has_few(seed: int) -> None:
    draw = random.Random(seed)
    plan = draw.choice(OFFERED)
    rows, (down, across, _) = plan.config.tile[0], plan.config.cluster
    m = draw.randrange(1, 2 * rows)
    loaded = rows // across if down * across > 1 else min(m, rows)
    assert maps_of(plan, m, 512, 512)["a"].box[1] == loaded


@pytest.mark.parametrize(
    ("text", "layout"),
    [("out D[m, n/2]; D = even(acc)*odd(acc)", "linear"), ("D = acc", "gemm")],
    ids=["pairs", "along n"],
)
def test_others_load_whole_blocks(text: str, layout: str) -> None:
    """Pairs are in boxes of two members, and the contiguous dimension of a box is a row of the swizzle."""
    plan = getattr(evt, layout)(text, route="gemm-own-3x").plan("sm90", "bf16", "bf16")
    assert isinstance(plan.mainloop, OwnProduct)
    assert "last" not in members(plan)
    assert "last" not in maps_of(plan, 300, 80, 512)
