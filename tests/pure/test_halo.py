"""The halo kernel: tiles against a model of its memory, its plan, and its epilogue as text."""

from __future__ import annotations

import random
import re
from dataclasses import asdict, replace
from math import inf

import pytest

import evt
from evt.emission import emit
from evt.emission.headers import needed
from evt.emission.kernel import spell
from evt.ir.convolution import Convolution, ConvolutionProblem
from evt.ir.dtype import E4M3, E5M2, F16, F32, I8, U8
from evt.plan import Options, Plan, convolution_class, plan
from evt.plan.epilogue.nodes import (
    Access,
    AccFetch,
    Apply,
    AuxLoad,
    AuxStore,
    ColumnBroadcast,
    Coordinate,
    PlaceKeys,
    Reduction,
    RowBroadcast,
    ScalarBroadcast,
    SourceFetch,
    Varies,
)
from evt.plan.halo import PIXELS, Width, halo_of, time
from evt.plan.halo_tiles import SHARED_BYTES, Cycles, Plane, Tile, choose
from evt.plan.plan import HaloConvolution
from evt.plan.routes.halo_3x import configs_sm90
from evt.plan.speed import fastest
from evt.plan.survey import survey
from evt.spec import packed_problem, problem_sizes

RESIDUAL = "D = relu(acc + bias + residual)"
LAYER = (2, 64, 56, 56), (64, 64, 3, 3)


def planned(text: str, dtype: str = "f16", shapes=LAYER, **keywords) -> Plan:
    return evt.conv2d(text, padding=1, route="conv-halo-3x", **keywords).plan("sm90", dtype, dtype, shapes=shapes)


def node_of(made: Plan, kind: type):
    (found,) = (node for node in made.nodes if isinstance(node, kind))
    return found


# Tiles

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


def box_of(problem: ConvolutionProblem, tile: Tile, first: tuple[int, int], guard: int) -> list[Pixel | None]:
    """Return the pixels of a box in shared memory, which begins at a place of the input, and zeros behind them."""
    steps = problem.geometry.stride
    rows = range(first[0], first[0] + tile.box_rows * steps[0], steps[0])
    columns = range(first[1], first[1] + tile.pitch * steps[1], steps[1])
    places = [(image, row, column) for image in range(tile.images) for row in rows for column in columns]
    return [pixel(problem, *place) for place in places] + [None] * guard


@pytest.mark.parametrize("seed", range(60))
def test_every_tap_meets_its_pixel(seed):
    """For each pixel of a tile and each tap, memory has the pixel that the convolution multiplies, or a zero."""
    problem, draw = drawn(seed), random.Random(seed)
    (rows, columns), (taps_y, taps_x) = problem.results, problem.filter_size
    (sy, sx), (dy, dx) = problem.geometry.stride, problem.geometry.dilation
    pad_y, pad_x = (before for before, _ in problem.pads)
    plane = Plane.of(problem.sizes, 64, 2)
    tile = choose(plane, draw.choice(PIXELS[:8]))
    assert tile is not None
    guard = (tile.rows + plane.height.halo - tile.box_rows) * tile.pitch + tile.columns + plane.width.halo - tile.pitch
    for y0 in range(0, rows, tile.rows):
        for x0 in range(0, columns, tile.columns):
            for ty in range(taps_y):
                for tx in range(taps_x):
                    (qy, ry), (qx, rx) = divmod(ty * dy, sy), divmod(tx * dx, sx)
                    box = box_of(problem, tile, (y0 * sy + ry - pad_y, x0 * sx + rx - pad_x), guard)
                    for y in range(min(tile.rows, rows - y0)):
                        for x in range(min(tile.columns, columns - x0)):
                            row, column = (y0 + y) * sy + ty * dy - pad_y, (x0 + x) * sx + tx * dx - pad_x
                            for image in range(tile.images):
                                found = box[(image * tile.box_rows + y + qy) * tile.pitch + x + qx]
                                assert found == pixel(problem, image, row, column), (tile, y0 + y, x0 + x, ty, tx)


@pytest.mark.parametrize("seed", range(200))
def test_tiles_fit_and_cover_the_output(seed):
    problem = drawn(seed)
    rows, columns = problem.results
    for pixels in PIXELS:
        tile = choose(Plane.of(problem.sizes, 32, 2), pixels)
        if tile is not None:
            assert tile.positions <= pixels
            assert tile.columns <= tile.sum_pitch <= tile.pitch
            assert tile.tiles == -(-rows // tile.rows) * -(-columns // tile.columns)
            assert 2 * tile.box_pixels * 64 < SHARED_BYTES


def chosen(side: int, pixels: int) -> dict[str, int]:
    """Return the tile of a 3x3 convolution, without what there is of shared memory."""
    sizes = evt.conv2d("D = acc", padding=1).spec.convolution.problem((2, 64, side, side), (64, 64, 3, 3)).sizes
    found = asdict(choose(Plane.of(sizes, 64, 2), pixels))
    return {name: found[name] for name in found if name not in ("box_bytes", "left")}


def test_a_layer_shares_its_padding_between_rows():
    tile = {"images": 1, "rows": 7, "columns": 28, "pitch": 29, "sum_pitch": 29, "box_rows": 9, "tiles": 4, "run": 3}
    assert chosen(28, 208) == tile


def test_eight_columns_waste_no_pixels():
    """Where the width is a multiple of eight, the instruction multiplies nothing in vain."""
    tile = {"images": 1, "rows": 28, "columns": 8, "pitch": 10, "sum_pitch": 8, "box_rows": 30, "tiles": 14, "run": 3}
    assert chosen(56, 224) == tile
    plane = Plane.of(evt.conv2d("D = acc", padding=1).spec.convolution.problem(*LAYER).sizes, 64, 2)
    assert choose(plane, 224).positions == 28 * 8


def test_small_images_share_a_tile():
    tile = {"images": 4, "rows": 7, "columns": 7, "pitch": 8, "sum_pitch": 8, "box_rows": 8, "tiles": 1, "run": 3}
    assert chosen(7, 256) == tile


@pytest.mark.parametrize(
    ("channels", "plane_bytes"), [(8, 32), (16, 32), (24, 64), (32, 64), (40, 32), (64, 128), (96, 64), (256, 128)]
)
def test_planes_waste_few_channels(channels, plane_bytes):
    geometry = Convolution.of("conv2d", {"padding": 1})
    problem = geometry.problem((2, channels, 28, 28), (64, channels, 3, 3))
    found = convolution_class(geometry, problem).halo
    assert found.plane_bytes == plane_bytes
    assert found.fast == (channels > 8)
    assert 1 <= len(found.widths) <= 4


@pytest.mark.parametrize(
    ("channels", "plane_bytes"), [(8, 32), (16, 32), (24, 64), (40, 128), (72, 128), (96, 128), (112, 128), (240, 128)]
)
def test_one_tap_has_the_fewest_planes(channels, plane_bytes):
    """A step over one tap takes longer than its multiplications, whatever the plane has of channels."""
    geometry = Convolution.of("conv2d", {})
    problem = geometry.problem((2, channels, 28, 28), (64, channels, 1, 1))
    assert convolution_class(geometry, problem).halo.plane_bytes == plane_bytes


@pytest.mark.parametrize("taps", [1, 3])
@pytest.mark.parametrize(("channels", "side"), [(64, 56), (256, 14), (512, 7)])
def test_widths_suit_few_images_and_many(channels, side, taps):
    """The best of the kernels that are built takes little longer than the best of all, by the estimate."""
    geometry = Convolution.of("conv2d", {"padding": taps // 2})
    for filters in (64, 512):
        problem = geometry.problem((1, channels, side, side), (filters, channels, taps, taps))
        found, plane = halo_of(geometry, problem, F16), Plane.of(problem.sizes, 64, 2)
        for images in (1, 4, 32, 100, 256) if found.fast else (1, 2, 4, 8, 32):
            known = (Width(pixels, shared) for pixels in PIXELS for shared in (False, True))
            times = {width: time(plane, width, images, filters) for width in known}
            assert min(times[width] for width in found.widths) <= 1.2 * min(times.values())


def test_few_tiles_are_shared():
    """Of one image there are 8 tiles of 8 planes for 132 multiprocessors; of many there is no need to share them."""
    geometry = Convolution.of("conv2d", {"padding": 1})
    problem = geometry.problem((1, 512, 7, 7), (512, 512, 3, 3))
    plane = Plane.of(problem.sizes, 64, 2)
    cycles = Cycles.of(plane, choose(plane, 64, shared=True), 64)
    assert [cycles.blocks(tiles) for tiles in (8, 8 * 3, 8 * 256)] == [8, 4, 2]
    assert [cycles.shared(tiles) < cycles.alone(tiles) for tiles in (8, 8 * 3, 8 * 256)] == [True, True, False]
    one_plane = Plane.of({**problem.sizes, "channels": 64}, 64, 2)
    assert time(one_plane, Width(64, shared=True), 1, 512) == inf
    assert not Cycles.of(one_plane, choose(one_plane, 64, shared=True), 64).blocks(8)


def test_kernels_that_share_tiles_are_other_kernels():
    shapes = (1, 512, 7, 7), (512, 512, 3, 3)
    op = evt.conv2d(RESIDUAL, padding=1, route="own")
    found = configs_sm90(packed_problem(op.spec, "sm90", "f16", "f16", shapes))
    assert {config.schedule for config in found if config.use == "always"} == {"halo", "halo_shared"}
    made = {
        schedule: next(config for config in found if config.schedule == schedule)
        for schedule in ("halo", "halo_shared")
    }
    for schedule, config in made.items():
        planned = evt.conv2d(RESIDUAL, padding=1, route="own", config=config.name).plan("sm90", "f16", shapes=shapes)
        assert planned.mainloop.shared == (schedule == "halo_shared")
        options = "2, false, true>" if planned.mainloop.shared else "2>"
        assert f"Epilogue, {options};" in emit(planned)


@pytest.mark.parametrize("operand", [E4M3, I8, F16, F32], ids=str)
def test_planes_and_speed_are_matters_of_bytes(operand):
    geometry, count = Convolution.of("conv2d", {"padding": 1}), 8 * 16 // operand.bits
    for bytes_, (plane_bytes, fast) in {
        96: (32, True),
        128: (128, True),
        1280: (128, True),
        1408: (128, False),
    }.items():
        channels = bytes_ * count // 16
        problem = geometry.problem((2, channels, 28, 28), (64, channels, 3, 3))
        found = convolution_class(geometry, problem, operand).halo
        assert (found.plane_bytes, found.fast) == (plane_bytes, fast)


@pytest.mark.parametrize(("operand", "step"), [(F16, 8), (E5M2, 8), (F32, 8), (I8, 16), (U8, 16)], ids=str)
def test_widths_of_the_instruction(operand, step):
    op = evt.conv2d("out D: f32[m, n]; D = acc", padding=1, route="own")
    every = configs_sm90(packed_problem(op.spec, "sm90", str(operand), str(operand), LAYER))
    planes = {128 // (operand.bits // 8) >> i for i in range(3)}
    assert {config.tile for config in every} <= {(n, 64, k) for n in range(64, 257, step) for k in planes}
    alone = [config for config in every if config.schedule == "halo"]
    assert len(alone) > 3 * (len(range(64, 257, step)) - 2)
    unknown = configs_sm90(packed_problem(op.spec, "sm90", str(operand), str(operand)))
    assert {config.tile[0] % step for config in unknown} == {0}


def test_the_batch_does_not_choose_the_kernel():
    geometry = Convolution.of("conv2d", {"padding": 1})
    classes = {convolution_class(geometry, geometry.problem((n, *LAYER[0][1:]), LAYER[1])) for n in (1, 7, 256)}
    assert len(classes) == 1


# The plan


def test_tma_moves_c_and_d():
    made = planned(RESIDUAL)
    assert (made.family, made.template, made.shared_memory) == ("halo", "conv_halo", SHARED_BYTES)
    assert isinstance(made.mainloop, HaloConvolution)
    assert [type(node) for node in made.nodes] == [AccFetch, RowBroadcast, SourceFetch, Apply, AuxStore]
    assert node_of(made, AuxStore).access is Access.TILE
    assert (made.source.pointer.name, made.destination.pointer.name) == ("in_residual", "out_D")
    assert [field.name for field in made.fields][-2:] == ["tile_rows", "tile_columns"]


@pytest.mark.parametrize(
    "text",
    [
        "out D: f32[m, n]; D = acc + C",
        "out D: i8[m, n]; D = acc + C",
        "in C: f16[m, n]; out D[n, m]; D = acc + C",
    ],
)
def test_what_tma_cannot_store_is_stored_element_by_element(text):
    made = planned(text)
    assert (made.source, made.destination) == (None, None)
    assert node_of(made, AuxLoad).access is node_of(made, AuxStore).access is Access.DIRECT
    fragment = spell(made).fragment
    assert (fragment.source, fragment.destination, fragment.places) == ("void", "void", True)


def test_unaligned_filters_are_stored_element_by_element():
    made = planned(RESIDUAL, shapes=((2, 64, 9, 7), (27, 64, 3, 3)))
    assert (made.source, made.destination) == (None, None)


def test_only_one_input_goes_through_the_buffer():
    made = planned("in wide: f32[m, n], C: bf16[m, n]; D = acc + wide + C*gate")
    assert node_of(made, SourceFetch).dtype.name == "bf16"
    loads = {node.name: node.access for node in made.nodes if isinstance(node, AuxLoad)}
    assert loads == {"in_wide": Access.DIRECT, "in_gate": Access.DIRECT}


def test_vectors_are_given_or_single_values():
    made = planned("in s: f32[m], t: f32[n?]; D = acc*s + t*alpha + iota(n) - iota(l)")
    assert node_of(made, ColumnBroadcast).strides == (1, 0, 0)
    assert isinstance(node_of(made, RowBroadcast).strides[1], Varies)
    assert node_of(made, ScalarBroadcast).name == "in_alpha"
    assert {node.axis for node in made.nodes if isinstance(node, Coordinate)} == {"column", "batch"}


def test_values_are_computed_once():
    """A tree of visitors may hold a leaf several times; straight-line code does not."""
    made = planned("out D, E; z = acc + bias; E = sigmoid(z); D = E*z + C")
    assert not made.tree
    assert len({node.name for node in made.nodes}) == len(made.nodes)


# The text


def epilogue_of(made: Plan) -> str:
    """Return the struct of the epilogue."""
    return re.search(r"^struct Epilogue \{.*?^\};", emit(made, "k"), re.DOTALL | re.MULTILINE)[0]


VISIT = """\
  CUTLASS_DEVICE float visit(
      [[maybe_unused]] int i, [[maybe_unused]] float acc, [[maybe_unused]] float source,
      [[maybe_unused]] Fetched const& fetched, [[maybe_unused]] evt::fragment::Places const& places) {
    // acc + bias
    float const v0 = Region0::apply(acc, in_bias.get(i));
    // sigmoid(z) + C*w[m, n]
    float const v1 = Region1::apply(v0, source, in_w.get(i, fetched.in_w));
    // E = z
    out_E.put(v0, i, places);
    return v1;
  }
"""


def test_the_epilogue_is_straight_line_code():
    text = epilogue_of(planned("out D, E; z = acc + bias; E = z; D = sigmoid(z) + C*w[m, n]"))
    assert VISIT in re.sub(r"// 1:\d+ ", "// ", text)
    assert "    in_w.fetch(fetched.in_w, places);\n" in text
    assert "  static constexpr bool kPlaces = true;" in text


def test_places_are_asked_for_where_they_are_needed():
    texts = (
        RESIDUAL,
        "D = acc*alpha + iota(n)",
        "D = acc + iota(m)",
        "in s: f32[m]; D = acc*s",
        "out D, E; D = acc; E = D",
    )
    assert [spell(planned(text)).fragment.places for text in texts] == [False, False, True, True, True]


def test_reductions_are_finished_with_each_tile():
    made = planned("out D, t: f32[n], p: i32[m]; D = acc; t = sum[m](acc*acc); p = argmax[n](acc)")
    assert isinstance(node_of(made, PlaceKeys), PlaceKeys)
    names = [node.name for node in made.nodes if isinstance(node, Reduction)]
    text = emit(made, "k")
    assert "evt::fragment::RowReduction<evt::Sum, float, evt::Partial>" in text
    assert "evt::fragment::ColumnReduction<evt::MaxKey, int64_t, evt::Partial>" in text
    for name in names:
        assert f"    {name}.finish();\n" in text
        assert f"decltype(Epilogue::{name})::parts(tiles_of(arguments))" in text


def test_atomic_reductions_have_no_parts():
    spec = evt.conv2d("out D, t: f32; D = acc; t = max[m, n](acc)", padding=1).spec
    problem = replace(packed_problem(spec, "sm90", "f16", "f16", LAYER), options=Options(atomic=True))
    text = emit(plan(problem, "conv-halo-3x"), "k")
    assert "evt::fragment::ScalarReduction<evt::Max, float, evt::Atomic>" in text
    assert "tiles_of(arguments))" not in text


def test_roundings_are_those_of_element_hpp():
    text = emit(planned("out D: f32[m, n]; D = bf16(acc) + e4m3(acc*2)", numerics="match_eager"), "k")
    assert "evt::element::round_to<evt::element::bf16>(" in text
    assert "evt::round_to<" not in text[text.index("YOUR EPILOGUE\n// -") :]


def test_no_collective_and_no_cute_is_included():
    """They would take longer to compile than the kernel."""
    made = planned(RESIDUAL)
    assert not {"convolution_3x.hpp", "visitors_3x.hpp", "convert.hpp"} & set(needed(made, spell(made).functors))
    included = re.findall(r'#include ["<]((?:cutlass|cute)/[^">]+)', emit(made, "k"))
    assert set(included) == {"cutlass/cutlass.h", "cutlass/device_kernel.h"}


def test_threads_that_act_for_a_warp_are_elected():
    """Of a thread that is chosen by its number ptxas does not know that it is alone: TMA takes much longer."""
    text = emit(planned(RESIDUAL), "k")
    assert text.count("elect.sync _|p, 0xffffffff;") == 1
    loads = text[text.index("give_registers<kProducerRegisters>();") :]
    assert re.match(
        r"[^;]*;\s+int const warp = \S*warp\(\);\s+if \(\S*elect\(\)\) \{\s+if \(warp == 0\) load_input", loads
    )


#: By the types of A, the pixels, and B, the filters: the instruction, its last words, how TMA moves both.
INSTRUCTIONS = {
    ("f16", "f16"): ("k16.f32.f16.f16", "p, 1, 1, 0, 0;", "FLOAT16"),
    ("bf16", "bf16"): ("k16.f32.bf16.bf16", "p, 1, 1, 0, 0;", "BFLOAT16"),
    ("f32", "tf32"): ("k8.f32.tf32.tf32", "p, 1, 1;", "TFLOAT32"),
    ("e4m3", "e5m2"): ("k32.f32.e5m2.e4m3", "p, 1, 1;", "UINT8"),
    ("i8", "i8"): ("k32.s32.s8.s8", "p;", "UINT8"),
    ("u8", "i8"): ("k32.s32.s8.u8", "p;", "UINT8"),
}


@pytest.mark.parametrize("types", INSTRUCTIONS)
def test_the_instruction(types):
    made = evt.conv2d(RESIDUAL, padding=1, route="conv-halo-3x").plan("sm90", *types, shapes=LAYER)
    instruction, words, map_type = INSTRUCTIONS[types]
    text, count = emit(made, "k"), made.config.tile[0] // 2
    assert f'"wgmma.mma_async.sync.aligned.m64n{2 * count}{instruction} {{"' in text
    assert f"}}, a, b, {words}" in text
    assert f"kType = CU_TENSOR_MAP_DATA_TYPE_{map_type};" in text
    mma = spell(made).fragment.multiplication
    assert ", ".join(mma.registers) == ", ".join(f"%{i}" for i in range(count))
    names = [f"%{count + i}" for i in range(4)]
    assert (mma.a, mma.b) == (f"{{{names[0]}, {names[2]}}}", f"{{{names[1]}, {names[3]}}}")


def test_integers_are_summed_as_integers():
    text = emit(planned("out D: f16, E: i32[m, n]; E = acc; D = acc*scale", "i8"), "k")
    assert "  using Accumulator = int32_t;\n" in text
    assert '"+r"(sums[0])' in text
    assert "[[maybe_unused]] int32_t acc," in text
    assert "out_E.put(acc, i, places);" in text


def test_padding_that_sixteen_bits_do_not_hold():
    """Where a box begins would wrap around."""
    shapes = ((1, 64, 4, 4), (64, 64, 3, 3))
    assert evt.conv2d(RESIDUAL, padding=32767, route="own").plan("sm90", shapes=shapes).route == "conv-halo-3x"
    with pytest.raises(evt.TargetError, match="the padding is beyond 32767"):
        evt.conv2d(RESIDUAL, padding=32768, route="own").plan("sm90", shapes=shapes)
    assert evt.conv2d(RESIDUAL, padding=32768).plan("sm90", shapes=shapes).route != "conv-halo-3x"


# What is said of it


def test_explain_says_when_it_is_preferred():
    op = evt.conv2d(RESIDUAL, padding=1)
    fast = op.explain("sm90", "f16", "f16", shapes=LAYER)
    (chosen,) = (route for route in fast.routes if route.chosen)
    assert (chosen.name, chosen.kind, chosen.unmet) == ("conv-halo-3x", "own", "")
    assert "visitors, as straight-line code:" in str(fast)
    assert 3 <= len(fast.configurations) <= 4
    deep = op.explain("sm90", "f16", "f16", shapes=((2, 2048, 7, 7), (512, 2048, 1, 1)))
    (other,) = (route for route in deep.routes if route.name == "conv-halo-3x")
    assert (other.applies, other.chosen) == (True, False)
    assert "it applies, and is preferred where the operands have 8 or 16 bits" in str(deep)
    forced = evt.conv2d(RESIDUAL, route="own").plan("sm90", shapes=((2, 2048, 7, 7), (512, 2048, 1, 1)))
    assert forced.route == "conv-halo-3x"


def test_one_dimension_is_one_row():
    made = evt.conv1d(RESIDUAL, padding=1).plan("sm90", shapes=((2, 64, 100), (64, 64, 3)))
    assert made.route == "conv-halo-3x"
    assert made.config.tile[0] in PIXELS


def test_few_images_take_it_where_many_do_not():
    """Both kernels are built, unless a route is asked for, and each call takes one of them."""
    op = evt.conv2d(RESIDUAL, padding=1)

    def plans_for(images, program):
        shapes = (images, 512, 7, 7), (512, 512, 3, 3)
        sizes = problem_sizes(program.spec, shapes)
        found = survey(packed_problem(program.spec, "sm90", "f16", "f16", shapes), program.spec.settings.route)
        return found.defaults, found.defaults[fastest(found.defaults, sizes, 132)].route

    built = [plans_for(images, op) for images in (1, 32, 256)]
    assert [taken for _, taken in built] == ["conv-halo-3x", "conv-halo-3x", "conv-evt-3x"]
    assert {plan.route for plan in built[0][0]} == {"conv-evt-3x", "conv-halo-3x"}
    assert {str(plans) for plans, _ in built} == {str(built[0][0])}  # the same kernels for any number of images
    forced, taken = plans_for(1, evt.conv2d(RESIDUAL, padding=1, route="evt"))
    assert {plan.route for plan in forced} == {"conv-evt-3x"} == {taken}
    told = op.explain("sm90", "f16", "f16", shapes=((1, 512, 7, 7), (512, 512, 3, 3)))
    assert "its kernels are built, too: a call of few images" in str(told)
    assert all(name.startswith("implicit") for name in told.configurations)


def test_further_matrices_are_left_to_other_kernels():
    for text in ("in a[m, n], b[m, n]; D = acc + a + b", "out D, E; E = acc; D = relu(acc)"):
        op = evt.conv2d(text, padding=1)
        assert op.plan("sm90", "f16", "f16", shapes=LAYER).route == "conv-evt-3x"
        assert evt.conv2d(text, padding=1, route="own").plan("sm90", "f16", shapes=LAYER).route == "conv-halo-3x"
