"""The kernel of group norms on the host: vectors of two groups, pixels apart, and CTAs without pixels."""

from __future__ import annotations

import random
from pathlib import Path

from evt.plan.group_norm import kernel_of
from tests.cxx.gxx import HOST, MARKS, build, check

pytestmark = MARKS


def test_results_of_group_norms(tmp_path: Path) -> None:
    check("group_norm", tmp_path, HOST)


def test_the_planner_counts_the_shared_memory_of_a_cta(tmp_path: Path) -> None:
    draw, lines = random.Random(0), ['#include "kit.hpp"', '#include "evt/group_norm.hpp"', "using evt::element::bf16;"]
    for _ in range(60):
        groups = draw.choice([1, 2, 8, 32])
        channels, pixels = groups * draw.choice([8, 10, 12, 16, 20, 40]), draw.randint(1, 9000)
        kernel = kernel_of(1, channels, pixels, groups, element="bf16", gain="f32", is_silu=True)
        if kernel is not None:
            counts = f"{kernel.of_group}, {kernel.slice}, {kernel.ctas}, {kernel.threads}"
            name = f"evt::group_norm::Kernel<bf16, float, {counts}, true>::Shared"
            lines.append(f"static_assert(sizeof({name}) == {kernel.shared_bytes(0)} && alignof({name}) == 16);")
    assert len(lines) > 20
    source = tmp_path / "shared.cpp"
    source.write_text("\n".join(lines))
    build(source, tmp_path / "shared.so", HOST)
