"""The halo kernel: tiles against a model of its memory, its plan, and its epilogue as text."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

import evt
from evt.emission import emit
from evt.emission.headers import needed
from evt.emission.kernel import spell
from evt.ir.dtype import BY_NAME
from evt.launch.halo_call import class_of
from evt.plan import Options, Plan, plan
from evt.plan.epilogue.broadcasts import ColumnBroadcast, Coordinate, RowBroadcast, ScalarBroadcast
from evt.plan.epilogue.computes import Apply, PlaceKeys
from evt.plan.epilogue.loads import AccFetch, AuxLoad, SourceFetch
from evt.plan.epilogue.values import Access, Varies
from evt.plan.epilogue.writes import AuxStore, Reduction
from evt.plan.geometry.halo import SHARED_BYTES
from evt.plan.halo import PIXELS
from evt.plan.plan import HaloConvolution
from evt.plan.speed import fastest
from evt.plan.survey import survey
from evt.request import packed_problem, problem_sizes

RESIDUAL = "D = relu(acc + bias + residual)"
LAYER = (2, 64, 56, 56), (64, 64, 3, 3)


def planned(text: str, dtype: str = "f16", shapes=LAYER, **keywords) -> Plan:
    return evt.conv2d(text, padding=1, route="conv-halo-3x", **keywords).plan("sm90", dtype, dtype, shapes=shapes)


def node_of(made: Plan, kind: type):
    (found,) = (node for node in made.steps if isinstance(node, kind))
    return found


# The plan


def test_tma_moves_c_and_d() -> None:
    made = planned(RESIDUAL)
    assert (made.family, made.template, made.shared_memory) == ("own", "own_sm90", SHARED_BYTES)
    assert isinstance(made.mainloop, HaloConvolution)
    assert [type(node) for node in made.steps] == [AccFetch, RowBroadcast, SourceFetch, Apply, AuxStore]
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
def test_what_tma_cannot_store_is_stored_element_by_element(text) -> None:
    made = planned(text)
    assert (made.source, made.destination) == (None, None)
    assert node_of(made, AuxLoad).access is node_of(made, AuxStore).access is Access.DIRECT
    fragment = spell(made).fragment
    assert (fragment.source, fragment.destination, fragment.places) == ("void", "void", True)


@pytest.mark.parametrize(("filters", "elements"), [(27, 1), (30, 2), (32, 0)])
def test_unaligned_filters_are_stored_in_rows(filters: int, elements: int) -> None:
    """Threads store D from the buffer that TMA would store it from, and load the residual element by element."""
    made = planned(RESIDUAL, shapes=((2, 64, 9, 7), (filters, 64, 3, 3)))
    assert isinstance(made.mainloop, HaloConvolution)
    assert made.mainloop.stored == elements
    assert made.destination is not None
    assert (made.source is None) == (elements > 0)


def test_a_result_of_no_columns_has_no_rows_to_align() -> None:
    assert planned("out D: f16; D = mean[m, n](acc)").destination is None


def test_only_one_input_goes_through_the_buffer() -> None:
    made = planned("in wide: f32[m, n], C: bf16[m, n]; D = acc + wide + C*gate")
    assert node_of(made, SourceFetch).dtype.name == "bf16"
    loads = {node.name: node.access for node in made.steps if isinstance(node, AuxLoad)}
    assert loads == {"in_wide": Access.DIRECT, "in_gate": Access.DIRECT}


def test_vectors_are_given_or_single_values() -> None:
    made = planned("in s: f32[m], t: f32[n?]; D = acc*s + t*alpha + iota(n) - iota(l)")
    assert node_of(made, ColumnBroadcast).strides == (1, 0, 0)
    assert isinstance(node_of(made, RowBroadcast).strides[1], Varies)
    assert node_of(made, ScalarBroadcast).name == "in_alpha"
    assert {node.axis for node in made.steps if isinstance(node, Coordinate)} == {"column", "batch"}


def test_values_are_computed_once() -> None:
    """A tree of visitors may hold a leaf several times; straight-line code does not."""
    made = planned("out D, E; z = acc + bias; E = sigmoid(z); D = E*z + C")
    assert not made.tree
    assert len({node.name for node in made.steps}) == len(made.steps)


# The text


def epilogue_of(made: Plan) -> str:
    """Return the struct of the epilogue."""
    (text,) = re.findall(r"^struct Epilogue \{.*?^\};", emit(made, "k"), re.DOTALL | re.MULTILINE)
    return text


VISIT = """\
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < N; ++i) {
      // acc + bias
      float const v2 = Region0::apply(acc(i), in_bias.get(i, places));
      // sigmoid(z) + C*w[m, n]
      float const v5 = Region1::apply(v2, source(i), in_w.get(i, places, fetched.in_w));
      // E = z
      out_E.put(v2, i, places);
      store(i, v5);
    }
  }
"""


def test_the_epilogue_is_straight_line_code() -> None:
    text = epilogue_of(planned("out D, E; z = acc + bias; E = z; D = sigmoid(z) + C*w[m, n]"))
    assert VISIT in re.sub(r"// 1:\d+ ", "// ", text)
    assert "    in_w.fetch(fetched.in_w, places);\n" in text
    assert "  static constexpr bool kPlaces = true;" in text


def test_places_are_asked_for_where_they_are_needed() -> None:
    texts = (
        RESIDUAL,
        "D = acc*alpha + iota(n)",
        "D = acc + iota(m)",
        "in s: f32[m]; D = acc*s",
        "out D, E; D = acc; E = D",
    )
    assert [spell(planned(text)).fragment.places for text in texts] == [False, False, True, True, True]


def test_reductions_are_finished_with_each_tile() -> None:
    made = planned("out D, t: f32[n], p: i32[m]; D = acc; t = sum[m](acc*acc); p = argmax[n](acc)")
    assert isinstance(node_of(made, PlaceKeys), PlaceKeys)
    names = [node.name for node in made.steps if isinstance(node, Reduction)]
    text = emit(made, "k")
    assert "<evt::kit::Lanes, evt::epilogue::RowReduction<evt::Sum, float, evt::Partial>>" in text
    assert "<evt::kit::Lanes, evt::epilogue::ColReduction<evt::MaxKey, int64_t, evt::Partial>>" in text
    for name in names:
        assert f"    {name}.finish();\n" in text
        assert f"decltype(Epilogue::{name})::parts(tiles_of(arguments))" in text


def test_atomic_reductions_have_no_parts() -> None:
    request = evt.conv2d("out D, t: f32; D = acc; t = max[m, n](acc)", padding=1).request
    problem = replace(packed_problem(request, "sm90", "f16", "f16", LAYER), options=Options(atomic=True))
    text = emit(plan(problem, "conv-halo-3x"), "k")
    assert "evt::epilogue::ScalarReduction<evt::Max, float, evt::Atomic>" in text
    assert "tiles_of(arguments))" not in text


#: Parts of a program besides elements: the class, its arguments, and its header.
PARTS = {
    "in keep: b1[m, n], other: b1[m, n]; D = where(keep, where(other, acc, 1), 0)": (
        "MaskLoad>;",
        "in_keep.stride_m = arguments.stride_m_of_in_keep;",
        "mask",
    ),
    "out D, above: b1[m, n]; D = acc; above = acc > 0": (
        "MaskStore>;",
        "out_above.ptr = static_cast<uint8_t*>(arguments.out_above);",
        "mask",
    ),
    "in s: f32[n]; out D, r: f32[n]; D = acc*s; r = sqrt(s)": (
        "VectorStore<float, 1>>;",
        "out_r.ptr = static_cast<float*>(arguments.out_r);",
        "vector_store",
    ),
    "in seed: i32; D = dropout(acc, 0.5, seed, 2)": (
        "Random<false>>;",
        "_ptr = static_cast<uint32_t const*>(arguments.in_seed);",
        "random",
    ),
    "in seed: i64; D = dropout(acc, 0.5, seed, 2)": (
        "WideRandom<false>>;",
        "_ptr = {arguments.in_seed, true};",
        "random_wide",
    ),
    "in x: f32[index[m]]; D = acc*x": (
        "Gather<float, evt::At<int32_t>, evt::InOrder, evt::epilogue::Strides>>;",
        "in_x.rows = {static_cast<int32_t const*>(arguments.in_index), 0, arguments.extent_m_of_in_x};",
        "indexed",
    ),
    "D[m, index[n]] = acc": (
        "Scatter<evt::element::f16, evt::InOrder, evt::At<int32_t>, evt::epilogue::Strides>>;",
        "out_D.columns = {static_cast<int32_t const*>(arguments.in_index), 0, arguments.extent_n_of_out_D};",
        "indexed",
    ),
}


@pytest.mark.parametrize("program", PARTS)
def test_parts_that_know_their_places(program) -> None:
    made = planned(program)
    part, filled, header = PARTS[program]
    text = emit(made, "k")
    assert f"evt::own::Part<evt::kit::Lanes, evt::epilogue::{part}" in text
    assert filled in text
    assert f"epilogue/{header}.hpp" in needed(made, spell(made).functors)
    assert spell(made).fragment.places


def test_the_only_mask_of_a_tile_is_loaded_before_the_products() -> None:
    made = planned("in keep: b1[m, n]; D = where(keep, acc, 0)")
    text = emit(made, "k")
    assert "LanesOfTile<" in text.partition("evt::own::TileMaskLoad>;")[0].splitlines()[-1]
    assert "void begin_tile(" in text
    assert class_of(made).loads_bits
    assert not class_of(planned("D = acc")).loads_bits


def test_roundings_are_those_of_element_hpp() -> None:
    text = emit(planned("out D: f32[m, n]; D = bf16(acc) + e4m3(acc*2)", numerics="eager"), "k")
    assert "evt::element::round_to<evt::element::bf16>(" in text
    assert "evt::round_to<" not in text[text.index("YOUR EPILOGUE\n// -") :]


@pytest.mark.parametrize("dtype", [dtype for dtype in BY_NAME.values() if dtype.is_float and dtype.bits < 64])
def test_casts_need_no_type_of_cutlass(dtype) -> None:
    text = emit(planned(f"D = {dtype}(acc*2) + acc"), "k")
    assert "cutlass::" not in text[text.index("YOUR EPILOGUE\n// -") :].partition("struct Arguments")[0]


def test_no_collective_and_no_cute_is_included() -> None:
    """They would take longer to compile than the kernel."""
    made = planned(RESIDUAL)
    assert not {"convolution_3x.hpp", "epilogue/lanes_sm90.hpp", "convert.hpp"} & set(
        needed(made, spell(made).functors)
    )
    included = re.findall(r'#include ["<]((?:cutlass|cute)/[^">]+)', emit(made, "k"))
    assert set(included) == {"cutlass/cutlass.h", "cutlass/device_kernel.h"}


def test_threads_that_act_for_a_warp_are_elected() -> None:
    """For ptxas, a thread chosen by its number is not alone: TMA takes much longer."""
    text = emit(planned(RESIDUAL), "k")
    assert text.count("elect.sync _|p, 0xffffffff;") == 1
    (_, produces) = text.split("static void produce(Params const& params, SharedStorage const& storage)")
    first = r"int const warp = canonical_warp_idx_sync\(\);\s+if constexpr \(Mainloop::kLoadsByThreads\) [^;]*;"
    zeros = r"if constexpr \(Traits::kKeepsZeros\) \{[^}]*\}"
    loads = r"if constexpr \(!Mainloop::kLoadsByThreads\) Mainloop::load\(params, storage, warp\);"
    assert re.match(rf" \{{\s+{first}\s+{zeros}\s+if \(elect_one_sync\(\)\) \{{\s+{loads}", produces)


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
def test_the_instruction(types) -> None:
    made = evt.conv2d(RESIDUAL, padding=1, route="conv-halo-3x").plan("sm90", *types, shapes=LAYER)
    instruction, words, map_type = INSTRUCTIONS[types]
    text, count = emit(made, "k"), made.config.tile[0] // 2
    assert f'"wgmma.mma_async.sync.aligned.m64n{2 * count}{instruction} {{"' in text
    assert f"}}, a, b, {words}" in text
    assert f"kType = CU_TENSOR_MAP_DATA_TYPE_{map_type};" in text
    mma = spell(made).fragment.multiplication
    assert ", ".join(mma.registers) == ", ".join(f"%{i}" for i in range(count))
    names = [f"%{count + i}" for i in range(4)]
    assert mma.a == "a"
    assert f"mov.b64 a, {{{names[0]}, {names[2]}}};" in mma.moves
    assert f"mov.b64 b, {{{names[1]}, {names[3]}}};" in mma.moves


def test_integers_are_summed_as_integers() -> None:
    text = emit(planned("out D: f16, E: i32[m, n]; E = acc; D = acc*scale", "i8"), "k")
    assert "  using Accumulator = int32_t;\n" in text
    assert '"+r"(sums[0])' in text
    assert "[[maybe_unused]] int32_t acc," in text
    assert "out_E.put(acc(i), i, places);" in text


def test_padding_that_sixteen_bits_do_not_hold() -> None:
    """The start of a box would wrap around."""
    shapes = ((1, 64, 4, 4), (64, 64, 3, 3))
    assert evt.conv2d(RESIDUAL, padding=32767, route="own").plan("sm90", shapes=shapes).route == "conv-halo-3x"
    with pytest.raises(evt.TargetError, match="the padding is beyond 32767"):
        evt.conv2d(RESIDUAL, padding=32768, route="own").plan("sm90", shapes=shapes)
    assert evt.conv2d(RESIDUAL, padding=32768).plan("sm90", shapes=shapes).route != "conv-halo-3x"


# Explanations


def test_explain_says_when_it_is_preferred() -> None:
    op = evt.conv2d(RESIDUAL, padding=1)
    fast = op.explain("sm90", "f16", "f16", shapes=LAYER)
    (chosen,) = (route for route in fast.routes if route.chosen)
    assert (chosen.name, chosen.kind, chosen.unmet) == ("conv-halo-3x", "own", "")
    assert "visitors, as straight-line code:" in fast.details()
    assert 3 <= len(fast.configurations) <= 4
    deep = op.explain("sm90", "f16", "f16", shapes=((2, 2048, 7, 7), (512, 2048, 1, 1)))
    (other,) = (route for route in deep.routes if route.name == "conv-halo-3x")
    assert (other.applies, other.chosen) == (True, False)
    assert "with lower priority: a kernel of CUTLASS is expected to be faster" in deep.details()
    for padding, route in ((1, "conv-halo-3x"), (0, "gemm-own-3x")):
        forced = evt.conv2d(RESIDUAL, padding=padding, route="own")
        assert forced.plan("sm90", shapes=((2, 2048, 7, 7), (512, 2048, 1, 1))).route == route


def test_one_dimension_is_one_row() -> None:
    made = evt.conv1d(RESIDUAL, padding=1).plan("sm90", shapes=((2, 64, 100), (64, 64, 3)))
    assert made.route == "conv-halo-3x"
    assert made.config.tile[0] in PIXELS


def test_few_images_take_it_where_many_do_not():
    """Both kernels are built, unless a route is asked for, and each call takes one of them."""
    op = evt.conv2d(RESIDUAL, padding=1)

    def plans_for(images, program):
        shapes = (images, 512, 7, 7), (512, 512, 3, 3)
        sizes = problem_sizes(program.request, shapes)
        found = survey(packed_problem(program.request, "sm90", "f16", "f16", shapes), program.request.settings.route)
        return found.defaults, found.defaults[fastest(found.defaults, sizes, 132)].route

    built = [plans_for(images, op) for images in (1, 32, 256)]
    assert [taken for _, taken in built] == ["conv-halo-3x", "conv-halo-3x", "conv-evt-3x"]
    assert {plan.route for plan in built[0][0]} == {"conv-evt-3x", "conv-halo-3x"}
    assert {str(plans) for plans, _ in built} == {str(built[0][0])}  # the same kernels for any number of images
    forced, taken = plans_for(1, evt.conv2d(RESIDUAL, padding=1, route="evt"))
    assert {plan.route for plan in forced} == {"conv-evt-3x"} == {taken}
    told = op.explain("sm90", "f16", "f16", shapes=((1, 512, 7, 7), (512, 512, 3, 3)))
    assert "its kernels are built, too: a call takes one" in told.details()
    assert all(name.startswith("implicit") for name in told.configurations)


def test_further_matrices_are_left_to_other_kernels() -> None:
    for text in ("in a[m, n], b[m, n]; D = acc + a + b", "out D, E; E = acc; D = relu(acc)"):
        op = evt.conv2d(text, padding=1)
        assert op.plan("sm90", "f16", "f16", shapes=LAYER).route == "conv-evt-3x"
        assert evt.conv2d(text, padding=1, route="own").plan("sm90", "f16", shapes=LAYER).route == "conv-halo-3x"
