"""Convolutions of few channels, or of no whole vectors: the copies that CUTLASS's kernels read, not the operands."""

from __future__ import annotations

from dataclasses import replace

import pytest

import evt
from evt.diagnostics import Source
from evt.emission.convolution import convolution
from evt.emission.workspace import jobs_before
from evt.ir.convolution import Convolution
from evt.ir.dtype import F16, F32, I8, DType
from evt.plan import Plan, convolution_class, plan, survey
from evt.plan.plan import Convolution2x
from evt.request import packed_problem

TREE = "D = relu(acc + bias) + residual"


def planned(arch: str, channels: int, size: int = 7, dtype: str = "f16", text: str = TREE, **keywords) -> Plan:
    shapes = ((2, channels, 33, 35), (64, channels, size, size))
    return evt.conv2d(text, route="evt", **keywords).plan(arch, dtype, dtype, shapes=shapes)


def row_channels(channels: int, operand: DType, stride: int) -> int:
    geometry = Convolution.of("conv2d", {"stride": stride})
    problem = geometry.problem((2, channels, 33, 35), (64, channels, 7, 7))
    return convolution_class(geometry, problem, operand).row_channels


def extents_of(made: Plan) -> dict[str, str]:
    """Return the members of a convolution's problem."""
    found = convolution(made)
    assert found is not None
    return dict(found.extents)


def alignments(made: Plan) -> tuple[int, ...]:
    """Return the elements of an access to A and to B, as the kernel is told and as its text has them last."""
    assert isinstance(made.mainloop, Convolution2x)
    spelled = convolution(made)
    assert spelled is not None
    assert spelled.options[-2:] == tuple(map(str, made.mainloop.alignments))
    return made.mainloop.alignments


@pytest.mark.parametrize("operand", [I8, F16, F32], ids=str)
@pytest.mark.parametrize("stride", range(1, 6))
def test_windows_of_a_padded_copy_start_at_whole_vectors(operand, stride) -> None:
    element_bytes = operand.bits // 8
    for channels in range(1, 9):
        padded = row_channels(channels, operand, stride)
        assert padded >= channels
        assert padded & (padded - 1) == 0
        assert padded * element_bytes * stride % 16 == 0
        half = padded // 2  # no larger than that takes
        assert half < channels or half * element_bytes * stride % 16


@pytest.mark.parametrize("channels", [1, 2, 3, 4, 5, 8, 9, 12, 17, 64, 65, 100])
def test_channels_that_are_few_or_no_whole_vectors_are_copied(channels) -> None:
    made = planned("sm90", channels, stride=2, padding=3)
    copied = channels <= 8 or channels % 8
    assert made.route == ("conv-padded-3x" if copied else "conv-evt-3x")
    assert [copy.name for copy in made.copies] == (["A", "B"] if copied else [])
    for copy, job in zip(made.copies, (job for jobs in jobs_before(made) for job in jobs.jobs), strict=True):
        assert copy.padded_channels == ((4 if channels <= 4 else 8) if channels <= 8 else 0)
        assert (job.name, copy.vector % 4) == (f"padded_{copy.name}", 0)
        expected = str(copy.padded_channels) if channels <= 8 else "evt::rounded_up<8>(arguments.channels)"
        assert dict(job.members)["padded_channels"] == expected


def test_whole_vectors_keep_taps_and_pixels() -> None:
    made = planned("sm90", 100, 3, padding=1)
    extents = extents_of(made)
    channels = "evt::rounded_up<8>(arguments.channels)"
    assert extents["extents of the activation"].endswith(f"static_cast<int>({channels})}}")
    assert extents["strides of the activation"] == (
        f"{{{channels} * arguments.width * arguments.height, {channels} * arguments.width, {channels}, 1}}"
    )
    assert extents["stride"].endswith("static_cast<int>(arguments.stride_width)}")


@pytest.mark.parametrize("channels", [9, 20])
def test_volumes_are_copied_too(channels) -> None:
    shapes = ((2, channels, 9, 13, 11), (64, channels, 3, 3, 3))
    for arch, route in (("sm90", "conv-padded-3x"), ("sm80", "conv-evt-2x")):
        made = evt.conv3d(TREE, padding=1).plan(arch, "f16", "f16", shapes=shapes)
        assert made.route in (route, "conv-stock-2x")
        (jobs,) = jobs_before(made)
        assert dict(jobs.jobs[0].members)["slices"] == "arguments.depth"
        assert dict(jobs.jobs[0].members)["stride_slice"] == "arguments.stride_depth_of_A"
        assert [extent.role for extent in made.copies[0].extents] == ["images", "depth", "height", "width"]


def test_narrow_accesses_of_2x_are_avoided_by_a_copy() -> None:
    for channels, dtype, vector in ((9, "f16", 8), (3, "i8", 16), (5, "e4m3", 16)):
        made = planned("sm89", channels, 3, dtype, "D = relu(acc + bias)", padding=1)
        assert alignments(made) == (vector, vector)
        assert made.config.stages > 2
    assert not planned("sm89", 10, 3).copies  # 4 bytes at a time


def test_a_row_of_taps_is_one_tap() -> None:
    made = planned("sm90", 3, stride=2, padding=3)
    extents = extents_of(made)
    window = "4 * static_cast<int>(arguments.filter_width)"
    assert extents["extents of the activation"].endswith(f"static_cast<int>(arguments.output_width), {window}}}")
    assert extents["strides of the activation"].endswith("4 * arguments.stride_width, 1}")
    assert extents["extents of the filters"].endswith(f"1, {window}}}")
    assert extents["stride"] == "{static_cast<int>(arguments.stride_height), 1}"
    assert extents["padding before"] == "{static_cast<int>(arguments.pad_height), 0}"
    assert made.config.tile[2] == 32  # 28 channels of a window


@pytest.mark.parametrize("keywords", [{"dilation": (1, 2)}, {"padding": (0, 1), "dilation": 3}])
def test_taps_that_lie_apart_are_no_row(keywords) -> None:
    made = planned("sm90", 3, 3, **keywords)
    assert made.route == "conv-padded-3x"
    assert made.copies[0].row is None
    assert (made.copies[0].padded_channels, made.copies[0].vector) == (0, 8)


@pytest.mark.parametrize("keywords", [{"padding": (200, 0)}, {"stride": (9, 1)}])
def test_what_tma_does_not_reach_goes_by_another_route(keywords) -> None:
    assert planned("sm90", 3, 3, **keywords).route == "conv-evt-2x"
    shapes = ((2, 3, 33, 35), (64, 3, 3, 3))
    explained = evt.conv2d(TREE, route="evt", **keywords).explain("sm90", "f16", "f16", shapes=shapes)
    route = next(route for route in explained.routes if route.name == "conv-padded-3x")
    assert any("reach too far" in why for _, why in route.rules)


@pytest.mark.parametrize(
    ("operation", "a", "b", "keywords", "reason"),
    [
        ("conv2d", (2, 64, 9, 9), (64, 64, 3, 3), {}, "the channels of A and B are whole vectors of 16 bytes"),
        ("conv2d", (2, 6, 9, 9), (64, 3, 3, 3), {"groups": 2}, "not a fprop without groups"),
        ("conv2d_dgrad", (2, 6, 9, 9), (6, 64, 3, 3), {}, "not a fprop without groups"),
        ("conv2d", (2, 20, 9, 9), (64, 20, 1, 1), {}, "reads the input once"),
    ],
)
def test_why_nothing_is_copied(operation, a, b, keywords, reason) -> None:
    program = evt.Program(Source("D = acc"), operation, **keywords)
    problem = packed_problem(program.request, "sm90", "f16", "f16", (a, b))
    failures = survey(problem, "conv-padded-3x").asked[0].refusals
    assert any(reason in failure.reason for failure in failures)


def test_rows_may_be_dilated_and_padded_on_one_side() -> None:
    made = planned("sm90", 3, 3, dilation=(2, 1), padding=((1, 2), (0, 100)), stride=(1, 40))
    assert made.route == "conv-padded-3x"


@pytest.mark.parametrize(("channels", "padded"), [(1, 4), (2, 4), (3, 4), (4, 0), (5, 8), (7, 8), (8, 0)])
def test_2x_kernels_for_few_channels_copy_to_4_or_8_channels_where_there_are_not_so_many(channels, padded) -> None:
    made = planned("sm80", channels)
    assert made.route == "conv-evt-2x"
    assert isinstance(made.mainloop, Convolution2x)
    assert made.mainloop.iterators == "fixed channels"
    assert alignments(made) == (padded or channels,) * 2
    assert [copy.padded_channels for copy in made.copies] == [padded] * 2 * bool(padded)
    assert extents_of(made)["C"] == f"static_cast<int>({padded or 'arguments.channels'})"


def test_operands_that_are_not_aligned_are_copied_too() -> None:
    shapes = ((2, 8, 33, 35), (64, 8, 7, 7))
    op = evt.conv2d(TREE)
    problem = packed_problem(op.request, "sm80", "f16", "f16", shapes)
    assert not op.plan("sm80", "f16", "f16", shapes=shapes).copies
    signature = replace(problem.signature, b=replace(problem.signature.b, alignment=4))
    assert plan(replace(problem, signature=signature)).copies


def test_the_stock_convolutions_with_a_vector_take_a_step_for_every_tap() -> None:
    shapes = ((2, 3, 33, 35), (64, 3, 7, 7))
    with pytest.raises(evt.TargetError, match=r"E0503(.|\n)*takes? a step of the main loop for every tap"):
        evt.conv2d(TREE, route="stock").plan("sm80", "f16", "f16", shapes=shapes)
    made = evt.conv2d("D = relu(alpha*acc)", route="stock").plan("sm80", "f16", "f16", shapes=shapes)
    assert made.route == "conv-stock-2x"
    assert made.copies


def test_a_padded_copy_of_2_gib_is_refused_where_offsets_end() -> None:
    shapes = ((2**14, 1, 200, 200), (64, 1, 3, 3))  # 1.3 GB, of four channels 5.2
    with pytest.raises(evt.TargetError, match="2 GiB or more"):
        evt.conv2d(TREE).plan("sm80", "f16", "f16", shapes=shapes)
    assert evt.conv2d(TREE, route="evt").plan("sm90", "f16", "f16", shapes=shapes).route == "conv-padded-3x"


def test_the_copies_are_shown() -> None:
    shapes = ((2, 3, 33, 35), (64, 3, 7, 7))
    text = evt.conv2d(TREE, route="evt").explain("sm90", "f16", "f16", shapes=shapes).details()
    assert "before the kernel, pad: copies the operands, with zeros behind their channels" in text
    assert "padded_A: ElementA[images][height][width][channels]" in text


@pytest.mark.parametrize(
    ("channels", "filters", "tile"),
    [(20, 16, (64, 32)), (30, 30, (64, 32)), (36, 36, (64, 64)), (20, 96, (128, 128)), (21, 16, (64, 64))],
)
def test_pointwise_convolutions_of_few_filters_have_small_tiles(
    channels: int, filters: int, tile: tuple[int, int]
) -> None:
    """8 images of 112x112 pixels, 20 -> 16 channels, would have 784 tiles of 128x128, two of an SM at a time."""
    shapes = ((8, channels, 112, 112), (filters, channels, 1, 1))
    plan = evt.conv2d("D = relu(acc + bias)", route="stock-2x").plan("sm90", "f16", "f16", shapes=shapes)
    assert plan.config.tile[:2] == tile
    fed = evt.conv2d("A = relu(A); D = acc", route="mainloop-2x").plan("sm90", "f16", "f16", shapes=shapes)
    assert fed.config.tile[:2] == ((64, 64) if channels % 2 else (128, 128))
