"""Kernels of two own routes that are built for one layer: products beside the halo kernel."""

from __future__ import annotations

import random

import pytest

import evt
from evt.plan import Plan, survey
from evt.plan.cards import find_card
from evt.plan.speed import fastest
from evt.request import packed_problem, problem_sizes


@pytest.mark.parametrize(
    ("text", "channels", "filters", "both"),
    [
        ("D = acc", 64, 128, True),
        ("D = acc", 64, 64, False),
        ("D = acc", 64, 160, True),
        ("D = acc", 72, 128, True),
        ("D = acc", 48, 128, False),
        ("out D, s: f32[n]\nD = acc\ns = sum[m](acc)", 64, 128, False),
    ],
)
def test_products_are_built_beside_the_halo_kernel(text: str, channels: int, filters: int, both: bool) -> None:
    """A product is beside it for more than a block of filters, a line of channels or more, and no sums over rows."""
    shapes = (8, channels, 14, 14), (filters, channels, 1, 1)
    problem = packed_problem(evt.conv2d(text).request, "sm90", "f16", "f16", shapes)
    halo = {"conv-halo-3x"}
    assert {plan.route for plan in survey(problem).defaults} == (halo | {"gemm-own-3x"} if both else halo)


def test_products_beside_the_halo_kernel_are_the_fastest_for_some_images() -> None:
    op, (pixels, filters) = evt.conv2d("D = acc"), ((512, 14, 14), (1024, 512, 1, 1))

    def plans(images: int, route: str | None = None) -> list[Plan]:
        problem = packed_problem(op.request, "sm90", "f16", "f16", ((images, *pixels), filters))
        return [plan for plan in survey(problem, route).defaults if plan.route == "gemm-own-3x"]

    every = plans(8, "gemm-own-3x")
    for images in (1, 16, 256):
        sizes = problem_sizes(op.request, ((images, *pixels), filters))
        best = every[fastest(every, sizes, find_card("sm90"))].config
        assert best in [plan.config for plan in plans(8)]
    assert len(plans(8)) < len(every) // 2


@pytest.mark.parametrize("seed", range(16))
def test_a_kind_of_routes_has_the_kernels_of_each_of_its_routes(seed: int) -> None:
    """A request for evt's kernels leaves the choice among them to each call."""
    draw = random.Random(seed)
    images, channels, filters, side = (
        draw.randint(1, 32),
        draw.randint(9, 120),
        draw.randint(1, 160),
        draw.randint(9, 90),
    )
    taps, stride = draw.choice((1, 3, 5)), draw.choice((1, 2))
    op = evt.conv2d("D = relu(acc + bias)", padding=taps // 2, stride=stride)
    shapes = (images, channels, side, side), (filters, channels, taps, taps)
    problem = packed_problem(op.request, "sm90", "f16", "f16", shapes)
    usual, own = (
        {(plan.route, plan.config) for plan in survey(problem, route).defaults if plan.family == "own"}
        for route in (None, "own")
    )
    assert own
    assert usual <= own
