"""The gradient of a convolution's input by the halo kernel: the equivalent fprop, its instruction, refusals."""

from __future__ import annotations

import math
import random
import re
from collections.abc import Mapping
from typing import Any

import pytest

import evt
from evt.emission import emit
from evt.emission.kernel import spell
from evt.emission.own import own
from evt.ir.convolution import Convolution, ConvolutionProblem
from evt.ir.dtype import F16
from evt.launch.halo import shape
from evt.plan import Plan
from evt.plan.epilogue.loads import SourceFetch
from evt.plan.epilogue.writes import AuxStore
from evt.plan.halo import forward, halo_of
from evt.plan.plan import HaloConvolution
from evt.plan.speed import fastest
from tests.support.convolutions import convolution
from tests.support.one_config import with_config

RELU = "D = where(z > 0, acc, 0)"
LAYER = (2, 64, 56, 56), (64, 64, 3, 3)
#: The shapes of the gradient and of the weight, and the geometry.
SHAPES: dict[str, tuple[Any, dict[str, Any]]] = {
    "layer": (LAYER, {"padding": 1}),
    "valid": (((2, 96, 9, 33), (96, 40, 3, 5)), {}),
    "asymmetric": (((2, 64, 13, 11), (64, 24, 3, 3)), {"padding": ((1, 0), (0, 2)), "dilation": (1, 2)}),
    "pointwise": (((2, 64, 13, 11), (64, 200, 1, 1)), {}),
}


def planned(name: str = "layer", text: str = RELU, **keywords: Any) -> Plan:
    shapes, geometry = SHAPES[name]
    return convolution(text, "conv2d_dgrad", route="own", **geometry, **keywords).plan("sm90", "f16", shapes=shapes)


def problem_of(name: str) -> ConvolutionProblem:
    (a, b), geometry = SHAPES[name]
    return Convolution.of("conv2d_dgrad", geometry).problem(a, b)


def as_fprop(problem: ConvolutionProblem) -> ConvolutionProblem:
    """Return the fprop over the gradient, whose weight is as large and has inputs and outputs exchanged."""
    pads = [
        (dilation * (size - 1) - before, dilation * (size - 1) - after)
        for size, dilation, (before, after) in zip(
            problem.filter_size, problem.geometry.dilation, problem.pads, strict=True
        )
    ]
    geometry = Convolution.of("conv2d", {"padding": pads, "dilation": problem.geometry.dilation})
    shapes = (problem.images, problem.filters, *problem.results), (problem.channels, problem.filters)
    return geometry.problem(shapes[0], (*shapes[1], *problem.filter_size))


@pytest.mark.parametrize("name", SHAPES)
def test_a_dgrad_is_a_fprop(name) -> None:
    problem = problem_of(name)
    sizes, other = forward("dgrad", problem.sizes), as_fprop(problem)
    parts = ("", "output_", "filter_", "pad_", "stride_", "dilation_")
    for size in ("images", "channels", "filters", *(f"{part}{axis}" for part in parts for axis in ("height", "width"))):
        assert sizes[size] == other.sizes[size], size
    assert other.results == problem.pixels
    assert halo_of(problem.geometry, problem, F16) == halo_of(other.geometry, other, F16)
    assert forward("fprop", other.sizes) == other.sizes


def value(expression: str, sizes: Mapping[str, int]) -> int:
    """Return the C++ value of an expression of the call's arguments."""
    text = re.sub(r"arguments\.(\w+)", lambda found: str(sizes[found[1]]), expression)
    return int(eval(text.replace("static_cast<int>", ""), {"__builtins__": {}}))


@pytest.mark.parametrize("name", SHAPES)
def test_the_kernel_is_given_that_fprop(name) -> None:
    text, problem = own(planned(name)), problem_of(name)
    assert text is not None
    sizes = forward("dgrad", problem.sizes)
    members = {member.removeprefix("problem."): each for member, each in text.problem if member.startswith("problem.")}
    assert len(members) == 15
    axes = ("height", "width")
    names = {name: name for name in ("images", "channels", "filters")} | {f"{axis}.size": axis for axis in axes}
    parts = ("output", "pad", "stride", "dilation")
    names |= {f"{axis}.{part}": f"{part}_{axis}" for axis in axes for part in parts}
    names |= {f"{axis}.taps": f"filter_{axis}" for axis in axes}
    assert {member: value(each, problem.sizes) for member, each in members.items()} == {
        member: sizes[name] for member, name in names.items()
    }


def test_the_filters_are_transposed() -> None:
    made = planned()
    text, mma = emit(made, "k"), spell(made).fragment.multiplication
    assert (mma.transposed, mma.flags) == (True, ", 1, 1, 1, 0")
    assert "kTransposed = true;" in text
    forward_text = emit(evt.conv2d(RELU, padding=1).plan("sm90", "f16", shapes=LAYER), "k")
    assert "kTransposed = false;" in forward_text
    assert "a, b, p, 1, 1, 0, 0;" in forward_text


def test_the_derivative_of_an_activation_is_its_epilogue() -> None:
    made = planned(text="D = acc * gelu'(z) + C")
    nodes = {type(node) for node in made.steps}
    assert {SourceFetch, AuxStore} <= nodes
    assert made.destination is not None


@pytest.mark.parametrize("name", SHAPES)
def test_the_same_tiles_are_taken_as_for_the_fprop(name) -> None:
    (shapes, geometry), problem = SHAPES[name], problem_of(name)
    other = as_fprop(problem)
    over = {"padding": other.geometry.padding, "dilation": other.geometry.dilation}
    weight = (problem.channels, problem.filters, *problem.filter_size)
    backwards = plans(convolution(RELU, "conv2d_dgrad", route="own", **geometry), shapes)
    forwards = plans(convolution(RELU, route="own", **over), (shapes[0], weight))
    assert [each.config for each in backwards] == [each.config for each in forwards]
    for multiprocessors in (4, 40, 132):
        assert fastest(backwards, problem.sizes, multiprocessors) == fastest(forwards, other.sizes, multiprocessors)


def plans(op: evt.Program, shapes: Any) -> list[Plan]:
    """Return the plans of the program's configurations."""
    names = op.explain("sm90", "f16", shapes=shapes).configurations
    return [with_config(op, name).plan("sm90", "f16", shapes=shapes) for name in names]


def test_it_is_preferred() -> None:
    shapes, geometry = SHAPES["layer"]
    assert convolution(RELU, "conv2d_dgrad", **geometry).plan("sm90", "f16", shapes=shapes).route == "conv-halo-3x"


def test_a_planned_gradient_with_a_stride_is_launched() -> None:
    """Filters of many dilated taps, whose classes reach far, run on each kernel that is offered for them."""
    draw, planned_problems = random.Random(42), 0
    while planned_problems < 40:
        taps, dilation = ([draw.choice(numbers) for _ in "yx"] for numbers in ((1, 2, 3, 5, 7), (1, 2, 3, 13)))
        steps = draw.choice(((2, 2), (2, 1), (1, 2), (1, 4), (3, 1)))
        pads = [d * (t - 1) // 2 for t, d in zip(taps, dilation, strict=True)]
        a, b = (2, 24, draw.randint(4, 30), draw.randint(4, 30)), (24, 16, *taps)
        geometry = {"stride": steps, "padding": pads, "dilation": dilation}
        op = convolution("D = acc", "conv2d_dgrad", route="conv-halo-3x", **geometry)
        try:
            plan = op.plan("sm90", "f16", shapes=(a, b))
        except (evt.TargetError, evt.ArgumentError):
            continue
        pixels = {"outer": a[1] * a[2] * a[3], "height": a[1] * a[3], "width": a[1]}  # any strides serve
        sizes = {each.name: pixels.get(str(each.role), 8) for each in plan.fields if each.kind == "size"}
        sizes |= {**op.request.convolution.problem(a, b).sizes, "tile_rows": 0, "tile_columns": 0}
        assert shape(plan, sizes, 132) is not None, (geometry, a, b)
        planned_problems += 1


@pytest.mark.parametrize("taps", [(1, 1), (1, 3), (2, 1), (3, 3)])
@pytest.mark.parametrize(
    ("text", "are_zeros"), [("D = acc", True), ("D = acc + bias", False), ("out D: f32[m, n]; D = acc", False)]
)
def test_classes_have_tiles_unless_zeros_are_stored_beside_another(
    taps: tuple[int, int], text: str, are_zeros: bool
) -> None:
    """Only a D of 16 bits is moved by the warps that store zeros."""
    op = convolution(text, "conv2d_dgrad", route="conv-halo-3x", stride=2)
    a, b = (5, 64, 9, 11), (64, 128, *taps)
    plan = op.plan("sm90", "f16", shapes=(a, b))
    sizes = {each.name: 8 for each in plan.fields if each.kind == "size"} | {"tile_rows": 0, "tile_columns": 0}
    made = shape(plan, {**sizes, **op.request.convolution.problem(a, b).sizes}, 132)
    assert made is not None
    with_taps = math.prod(min(each, 2) for each in taps) if are_zeros else 4
    of_class = made.values["operands.work_tiles"]
    assert isinstance(of_class, int)
    assert made.values["work_tiles"] == with_taps * of_class


@pytest.mark.parametrize(
    ("text", "keeps"),
    [
        ("D = acc", True),
        ("in keep: b1[m, n]; D = where(keep, acc, 0)", True),
        (RELU, True),
        ("D = relu(bf16(acc))", True),
        ("D = where(z > 0, acc, -0.0)", False),
        ("D = where(z > 0, acc, 1)", False),
        ("D = acc*s[n]", False),  # infinity times 0
        ("D = acc + C", False),
        ("out D, E; D = acc; E = acc", False),
        ("out D, a: f32[n]; D = acc; a = sum[m](acc)", False),
    ],
)
@pytest.mark.parametrize("stride", [1, 2])
def test_pixels_without_taps_are_stored_as_zeros(text: str, keeps: bool, stride: int) -> None:
    op = convolution(text, "conv2d_dgrad", route="conv-halo-3x", stride=stride)
    plan = op.plan("sm90", "f16", shapes=((2, 64, 9, 9), (64, 64, 1, 1)))
    assert isinstance(plan.mainloop, HaloConvolution)
    assert plan.mainloop.keeps_zeros == (keeps and stride > 1) == ("kKeepsZeros = true" in emit(plan))
