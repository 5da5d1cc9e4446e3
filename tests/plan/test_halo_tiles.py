"""The halo kernel's tiles against a model of its memory, and the specialisations of its kernels."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import product
from math import inf

import pytest

import evt
from evt.emission import emit
from evt.ir.convolution import Convolution, ConvolutionProblem
from evt.ir.dtype import E4M3, E5M2, F16, F32, I8, U8, DType
from evt.plan import convolution_class
from evt.plan.geometry.convolution import Axis, Problem
from evt.plan.geometry.halo import SHARED_BYTES, TAPS_PER_STAGE, Geometry
from evt.plan.geometry.halo_kernel import KernelClass
from evt.plan.geometry.halo_schedule import geometry_of, grid_of, lines_of_eight, scheduled
from evt.plan.halo import PIXELS, Halo, halo_of
from evt.plan.halo_cost import BlockedConvolution, Cycles, choose
from evt.plan.halo_kernels import time
from evt.plan.routes.halo_3x import configs_sm90
from evt.request import packed_problem
from tests.support.layers import random_layers

RESIDUAL = "D = relu(acc + bias + residual)"
LAYER = (2, 64, 56, 56), (64, 64, 3, 3)

#: An image, a row, a column.
Pixel = tuple[int, int, int]


def drawn(seed: int) -> ConvolutionProblem:
    """Return a small convolution of any stride, dilation and padding."""
    draw = random.Random(seed)

    def two(*choices: int) -> tuple[int, int]:
        return draw.choice(choices), draw.choice(choices)

    taps, stride, dilation = two(1, 2, 3, 3, 5), two(1, 1, 1, 2, 3), two(1, 1, 1, 2, 3)
    pads = tuple((draw.randrange(4), draw.randrange(4)) for _ in range(2))
    sizes = [draw.randrange(d * (t - 1) + 1, 24) for t, d in zip(taps, dilation, strict=True)]
    geometry = Convolution.of("conv2d", {"stride": stride, "padding": pads, "dilation": dilation})
    return geometry.problem((1, 64, *sizes), (64, 64, *taps))


def pixel(problem: ConvolutionProblem, image: int, row: int, column: int) -> Pixel | None:
    """Return a pixel of the input; None for the zeros around it."""
    height, width = problem.pixels
    return (image, row, column) if 0 <= row < height and 0 <= column < width else None


def box_of(problem: ConvolutionProblem, tile: Geometry, first: tuple[int, int], guard: int) -> list[Pixel | None]:
    """Return the pixels of a box in shared memory, which begins at a place of the input, and zeros behind them."""
    steps = problem.geometry.stride
    rows = range(first[0], first[0] + tile.box_rows * steps[0], steps[0])
    columns = range(first[1], first[1] + tile.input_pitch * steps[1], steps[1])
    places = [(image, row, column) for row in rows for image in range(tile.images) for column in columns]
    return [pixel(problem, *place) for place in places] + [None] * guard


@pytest.mark.parametrize("seed", range(60))
def test_every_tap_meets_its_pixel(seed) -> None:
    """For each pixel of a tile and each tap, memory has the pixel that the convolution multiplies, or a zero."""
    problem, draw = drawn(seed), random.Random(seed)
    (rows, columns), (taps_y, taps_x) = problem.results, problem.filter_size
    (sy, sx), (dy, dx) = problem.geometry.stride, problem.geometry.dilation
    pad_y, pad_x = (before for before, _ in problem.pads)
    blocked = BlockedConvolution.of(problem.sizes, 64, 2)
    tile = choose(blocked, draw.choice(PIXELS[:8]))
    assert tile is not None
    for y0 in range(0, rows, tile.rows):
        for x0 in range(0, columns, tile.columns):
            for ty in range(taps_y):
                for tx in range(taps_x):
                    (qy, ry), (qx, rx) = divmod(ty * dy, sy), divmod(tx * dx, sx)
                    box = box_of(problem, tile, (y0 * sy + ry - pad_y, x0 * sx + rx - pad_x), tile.guard)
                    for y in range(min(tile.rows, rows - y0)):
                        for x in range(min(tile.columns, columns - x0)):
                            row, column = (y0 + y) * sy + ty * dy - pad_y, (x0 + x) * sx + tx * dx - pad_x
                            for image in range(tile.images):
                                found = box[((y + qy) * tile.images + image) * tile.input_pitch + x + qx]
                                assert found == pixel(problem, image, row, column), (tile, y0 + y, x0 + x, ty, tx)


@pytest.mark.parametrize("seed", range(200))
def test_tiles_fit_and_cover_the_output(seed) -> None:
    problem = drawn(seed)
    rows, columns = problem.results
    for pixels in PIXELS:
        tile = choose(BlockedConvolution.of(problem.sizes, 32, 2), pixels)
        if tile is not None:
            assert tile.accumulated_pixels <= pixels
            assert tile.columns <= tile.accumulator_pitch <= tile.input_pitch
            assert tile.tiles_high * tile.tiles_wide == -(-rows // tile.rows) * -(-columns // tile.columns)
            assert 2 * tile.box_pixels * 64 < SHARED_BYTES


#: The fields of a tile, without its place in shared memory.
SIZES = ("images", "rows", "columns", "input_pitch", "accumulator_pitch", "box_rows", "taps_per_stage")


def chosen(side: int, pixels: int) -> tuple[int, ...]:
    """Return the sizes of the tile of a 3x3 convolution."""
    sizes = evt.conv2d("D = acc", padding=1).request.convolution.problem((2, 64, side, side), (64, 64, 3, 3)).sizes
    made = choose(BlockedConvolution.of(sizes, 64, 2), pixels)
    return tuple(getattr(made, name) for name in SIZES)


def test_a_layer_shares_its_padding_between_rows() -> None:
    assert chosen(28, 208) == (1, 7, 28, 29, 29, 9, 3)


def test_eight_columns_waste_no_pixels() -> None:
    """If the width is a multiple of eight, the instruction multiplies no padding."""
    assert chosen(56, 224) == (1, 28, 8, 10, 8, 30, 3)
    blocked = BlockedConvolution.of(evt.conv2d("D = acc", padding=1).request.convolution.problem(*LAYER).sizes, 64, 2)
    assert choose(blocked, 224).accumulated_pixels == 28 * 8


def test_small_images_share_a_tile() -> None:
    assert chosen(7, 256) == (4, 7, 7, 8, 8, 9, 3)


def offered(channels: int, taps: int, side: int = 28, operand: DType = F16) -> Halo:
    geometry = Convolution.of("conv2d", {"padding": taps // 2})
    problem = geometry.problem((2, channels, side, side), (64, channels, taps, taps))
    return halo_of(geometry, problem, operand)


@pytest.mark.parametrize(("channels", "block_bytes"), [(8, 32), (16, 32), (24, 64), (32, 64), (64, 128), (256, 128)])
def test_channel_blocks_waste_few_channels(channels, block_bytes) -> None:
    found = offered(channels, 3)
    assert {each.block_bytes for each in found.offered if not each.shared} == {block_bytes}
    assert found.fast == (channels > 8)
    assert 1 <= len(found.offered) <= 5


def test_channel_blocks_and_widths_are_chosen_together() -> None:
    """By 64 pixels, a run of taps takes longer than its multiplications: wider channel blocks make fewer runs."""
    found = offered(48, 5, 36)
    assert {each.block_bytes for each in found.offered if each.pixels < 100} == {128}
    assert max(found.offered, key=lambda each: each.pixels).block_bytes == 32


@pytest.mark.parametrize(("channels", "block_bytes"), [(40, 128), (72, 128), (96, 128), (112, 128), (240, 128)])
def test_one_tap_has_the_fewest_channel_blocks(channels, block_bytes) -> None:
    """A step over one tap of few pixels takes longer than its multiplications, for any channel block."""
    assert {each.block_bytes for each in offered(channels, 1).offered if each.pixels <= 128} == {block_bytes}


def test_pixels_that_begin_within_a_line_take_longer_to_load() -> None:
    """With 360 channels, 15 of 16 pixels begin within a line of L2, and their 64 channels touch two lines."""
    width = Axis(20, 20, 3, 1, 1, 1)
    blocked = {channels: BlockedConvolution.cut(width, width, None, 2 * channels, 128) for channels in (320, 360, 384)}
    lines = {channels: lines_of_eight(each.problem, each.kernel(64)) for channels, each in blocked.items()}
    assert lines == {320: 8, 360: 15, 384: 8}


@pytest.mark.parametrize("taps", [1, 3])
@pytest.mark.parametrize(("channels", "side"), [(64, 56), (256, 14), (512, 7)])
def test_widths_suit_few_images_and_many(channels, side, taps) -> None:
    """The best of the kernels that are built takes little longer than the best of all, by the estimate."""
    geometry = Convolution.of("conv2d", {"padding": taps // 2})
    for filters in (64, 512):
        problem = geometry.problem((1, channels, side, side), (filters, channels, taps, taps))
        found, blocked = halo_of(geometry, problem, F16), BlockedConvolution.of(problem.sizes, 64, 2)
        wide = [(each.pixels, each.shared) for each in found.offered if each.block_bytes == 128]
        for images in (1, 2, 4, 8, 32, 100, 256):
            known = product(PIXELS, (False, True))
            times = {each: time(blocked, each[0], images, filters, shared=each[1]) for each in known}
            assert min(times[each] for each in wide) <= 1.3 * min(times.values())


def test_few_tiles_are_shared() -> None:
    """One image has 8 tiles of 8 channel blocks for 132 multiprocessors; many images have no need to share tiles."""
    geometry = Convolution.of("conv2d", {"padding": 1})
    problem = geometry.problem((1, 512, 7, 7), (512, 512, 3, 3))
    blocked = BlockedConvolution.of(problem.sizes, 64, 2)
    cycles = Cycles.of(blocked, choose(blocked, 64, shared=True), 64, shared=True)
    assert [cycles.sharing.cluster_size(tiles) for tiles in (8, 8 * 3, 8 * 256)] == [8, 4, 2]
    faster = [cycles.shared(8 * tiles) < cycles.alone(tiles, 512) for tiles in (1, 3, 256)]
    assert faster == [True, True, False]
    one_block = BlockedConvolution.of({**problem.sizes, "channels": 64}, 64, 2)
    assert time(one_block, 64, 1, 512, shared=True) == inf
    assert not Cycles.of(one_block, choose(one_block, 64, shared=True), 64, shared=True).sharing.cluster_sizes


def test_kernels_that_share_tiles_are_other_kernels() -> None:
    shapes = (1, 512, 7, 7), (512, 512, 3, 3)
    op = evt.conv2d(RESIDUAL, padding=1, route="own")
    found = configs_sm90(packed_problem(op.request, "sm90", "f16", "f16", shapes))
    assert {config.schedule for config in found if config.use == "always"} == {"halo", "halo_shared"}
    made = {
        schedule: next(config for config in found if config.schedule == schedule)
        for schedule in ("halo", "halo_shared")
    }
    for schedule, config in made.items():
        planned = evt.conv2d(RESIDUAL, padding=1, route="own", config=config.name).plan("sm90", "f16", shapes=shapes)
        assert planned.mainloop.shared == (schedule == "halo_shared")
        shared = str(planned.mainloop.shared).lower()
        assert f"evt::kit::Kernel<Mainloop, Epilogue, {shared}, false, 3>;" in emit(planned)


@pytest.mark.parametrize(
    ("filter_size", "taps"),
    [((3, 3), 3), ((1, 1), 1), ((5, 5), 5), ((7, 7), 1), ((3, 5), 3), ((2, 2), 1), ((1, 5), 5), ((1, 9), 3)],
)
def test_a_kernel_has_the_multiplications_of_its_filters_alone(filter_size, taps) -> None:
    shapes = (2, 64, 56, 56), (64, 64, *filter_size)
    text = emit(evt.conv2d(RESIDUAL, route="conv-halo-3x").plan("sm90", "f16", shapes=shapes))
    assert f"evt::kit::Kernel<Mainloop, Epilogue, false, false, {taps}>;" in text
    unknown = emit(evt.conv2d(RESIDUAL, route="conv-halo-3x").plan("sm90", "f16"))
    assert "evt::kit::Kernel<Mainloop, Epilogue>;" in unknown


def test_the_size_of_filters_changes_no_geometry() -> None:
    for problem, kernel, _ in random_layers(3, 400):
        first = next(each for each in TAPS_PER_STAGE if problem.tap_count % each == 0)
        unknown, known, one = (geometry_of(problem, replace(kernel, taps_per_stage=each)) for each in (0, first, 1))
        assert known == unknown
        assert one.taps_per_stage == 1  # another filter than the planner's


@pytest.mark.parametrize("operand", [E4M3, I8, F16, F32], ids=str)
def test_channel_blocks_and_speed_are_matters_of_bytes(operand) -> None:
    for bytes_, fast in {128: True, 1280: True, 1408: False}.items():
        found = offered(bytes_ * 8 // operand.bits, 3, operand=operand)
        assert (found.offered[0].block_bytes, found.fast) == (128, fast)
    assert offered(1408 * 8 // operand.bits, 3, 56, operand).fast


@pytest.mark.parametrize(("operand", "step"), [(F16, 8), (E5M2, 8), (F32, 8), (I8, 16), (U8, 16)], ids=str)
def test_widths_of_the_instruction(operand, step) -> None:
    op = evt.conv2d("out D: f32[m, n]; D = acc", padding=1, route="own")
    every = configs_sm90(packed_problem(op.request, "sm90", str(operand), str(operand), LAYER))
    widths = {128 // (operand.bits // 8) >> i for i in range(3)}
    assert {config.tile for config in every} <= {(n, 64, k) for n in range(64, 257, step) for k in widths}
    alone = [config for config in every if config.schedule == "halo"]
    assert len(alone) > 3 * (len(range(64, 257, step)) - 2)
    unknown = configs_sm90(packed_problem(op.request, "sm90", str(operand), str(operand)))
    assert {config.tile[0] % step for config in unknown} == {0}


def test_the_batch_does_not_choose_the_kernel() -> None:
    geometry = Convolution.of("conv2d", {"padding": 1})
    classes = {convolution_class(geometry, geometry.problem((n, *LAYER[0][1:]), LAYER[1])) for n in (1, 7, 256)}
    assert len(classes) == 1


def test_configurations_are_those_whose_tiles_fit() -> None:
    """A narrower kernel than one that fits may not fit: its tile is another."""
    shapes = (2, 72, 25, 9), (280, 72, 5, 5)
    keywords = {"padding": ((8, 2), (4, 6)), "dilation": (3, 1), "route": "own"}
    op = evt.conv2d("D = acc", **keywords)
    blocked = BlockedConvolution.of(op.request.convolution.problem(*shapes).sizes, 64, 2)
    names = {config.name for config in configs_sm90(packed_problem(op.request, "sm90", "f16", "f16", shapes))}
    for shared in (False, True):
        for pixels in PIXELS:
            name = f"halo{'_shared' * shared}_{pixels}x64x64"
            assert (name in names) == (time(blocked, pixels, 1, 64, shared=shared) < inf)
    fitting = [pixels for pixels in PIXELS if f"halo_shared_{pixels}x64x64" in names]
    assert min(fitting) < 136 < max(fitting)
    with pytest.raises(evt.TargetError, match="no configuration `halo_shared_136x64x64`"):
        evt.conv2d("D = acc", config="halo_shared_136x64x64", **keywords).plan("sm90", shapes=shapes)


def test_a_kernel_with_fewer_boxes_than_groups_of_taps_is_slower() -> None:
    sizes = (
        evt.conv2d("D = acc", padding=1, stride=2)
        .request.convolution.problem((16, 64, 160, 160), (128, 64, 3, 3))
        .sizes
    )
    blocked = BlockedConvolution.of(sizes, 64, 2)
    found = {pixels: choose(blocked, pixels) for pixels in (208, 256)}
    assert [Cycles.of(blocked, tile, pixels).held_up for pixels, tile in found.items()] == [1.0, 4 / 3]
    assert time(blocked, 208, 16, 128) < time(blocked, 256, 16, 128)


def end_of_reads(problem: Problem, kernel: KernelClass, made: Geometry) -> int:
    """Return the end of the instructions' reads in the last box, from the first: eight rows of a block's bytes each."""
    height, width = problem.height, problem.width
    down, right = ((axis.taps - 1) * axis.dilation // axis.stride for axis in (height, width))
    last = down * made.row_pitch + right + (kernel.pixels // 8 - 1) * made.next_eight + 7
    return (made.input_stages - 1) * made.input_stage_bytes + last * kernel.pixel_bytes + kernel.block_bytes


@pytest.mark.parametrize(("taps", "boxes"), [(3, 4), (5, 2)])
def test_each_group_of_few_taps_has_a_box_before_filters_take_the_rest(taps: int, boxes: int) -> None:
    """3x3 filters with a stride of 2: three boxes left nine filters, and the fourth group waited."""
    axis = Axis(56, 28, taps, 2, 1, taps // 2)
    tile = choose(BlockedConvolution.cut(axis, axis, None, 256, 128), 232)
    assert tile is not None
    assert tile.input_stages == boxes
    assert tile.filter_stages >= 5


@pytest.mark.parametrize("seed", range(8))
def test_shared_memory_has_what_instructions_read(seed: int) -> None:
    """For any layer and kernel, boxes are within shared memory, to the last row that an instruction reads."""
    found = [made for made in random_layers(seed, 100) if made[2].input_stages]
    assert len(found) > 20
    for problem, kernel, made in found:
        assert end_of_reads(problem, kernel, made) <= SHARED_BYTES - 1024
        assert made.input_stages * made.input_stage_bytes <= SHARED_BYTES
        assert made.input_stages >= 2 if not kernel.has_windows else made.input_stages in (3, 6)
        assert made.cluster_size in ((2, 4, 8) if kernel.shared else (1,))


#: Rows, columns and k of products, and the pixels of a tile; on 132 SMs, whether consumers cooperate, whether filters
#: are resident, the input and filter stages, and the CTAs.
WORK = {
    # 128 pairs of tiles take no more waves than 256 tiles, which load each pixel twice.
    (512, 4096, 4096, 128): (True, False, 5, 12, 128),
    (512, 4096, 4096, 256): (False, False, 3, 7, 128),  # 64 pairs would leave half of the SMs idle
    (50176, 256, 64, 256): (False, True, 4, 1, 132),  # one block of channels: its filters stay
    (200704, 256, 128, 128): (False, True, 8, 2, 132),
    (6272, 256, 1024, 128): (True, False, 5, 12, 98),
    (1024, 4096, 1024, 192): (False, False, 5, 8, 132),  # resident filters would leave two boxes
    (8192, 1280, 640, 128): (True, False, 5, 12, 132),
    (12544, 1024, 256, 192): (True, False, 4, 8, 132),  # on 128 of 132 SMs there would be a wave more
    (12544, 2048, 512, 64): (True, True, 8, 16, 128),
    (4096, 64, 512, 128): (False, True, 7, 8, 32),
}


@pytest.mark.parametrize("sizes", WORK, ids=str)
def test_the_schedule_of_products(sizes: tuple[int, int, int, int]) -> None:
    rows, columns, depth, pixels = sizes
    problem = Problem(1, depth, columns, Axis(1, 1, 1, 1, 1, 0), Axis(rows, rows, 1, 1, 1, 0))
    kernel = KernelClass(pixels, 64, 128, 128, True)
    made = scheduled(problem, kernel, geometry_of(problem, kernel), 132)
    blocks = -(-columns // (128 if made.cooperative else 64))
    grid = grid_of(made.tiles(problem) * blocks, blocks, 132, made.resident)
    assert (made.cooperative, made.resident, made.input_stages, made.filter_stages, grid) == WORK[sizes]


def test_the_widest_tiles_of_a_row_are_the_fewest() -> None:
    """A tile of an image of one row has the pixels that the kernel multiplies."""
    draw = random.Random(0)
    for _ in range(100):
        width, pixels = draw.randrange(1, 200_000), draw.choice(PIXELS)
        row = Axis(width, width, 1, 1, 1, 0)
        made = choose(BlockedConvolution.cut(Axis(1, 1, 1, 1, 1, 0), row, None, 1040, 128), pixels)
        assert made is not None
        if width > pixels:
            assert made.tiles_wide == -(-width // pixels)
