"""Planning: routes and their rules, configurations, and shared memory."""

from __future__ import annotations

import math
import re

import pytest

import evt
from evt.emission import emit
from evt.ir.dtype import OPERANDS
from evt.plan import TARGETS, Config, LayoutClass, Problem, Signature, find_target, natural_signature, plan, survey
from evt.plan.epilogue.broadcasts import ColumnBroadcast, Coordinate, RandomNumbers, RowBroadcast
from evt.plan.epilogue.computes import BlockReduce, PairMember
from evt.plan.epilogue.loads import AuxLoad, SourceFetch
from evt.plan.epilogue.values import Access, ResultShape
from evt.plan.epilogue.writes import HalfStore, MaskStore, Reduction
from evt.plan.plan import MatrixProduct
from evt.plan.routes.gemm_2x import general_config
from evt.plan.signature import alignment_of
from tests.support.plans import RELU, accesses, dag_of, kinds, make, with_layout
from tests.support.route_taken import route_of

# Routes

#: The family by operand type, else by ``None``; an empty one is refused.
FAMILIES: dict[str, dict[str | None, str]] = {
    "sm80": {"e4m3": "", "e5m2": "", None: "2x"},
    "sm86": {"e4m3": "", "e5m2": "", None: "2x"},
    "sm89": {None: "2x"},
    "sm90": {"f64": "2x", None: "3x"},
    "sm100": {"f64": "2x", None: "sm100"},
    "sm103": {"f64": "2x", "i8": "2x", "u8": "2x", None: "sm100"},
    "sm120": {"e4m3": "sm120", "e5m2": "sm120", None: "2x"},
}


@pytest.mark.parametrize("dtype", [dtype.name for dtype in OPERANDS])
@pytest.mark.parametrize("arch", TARGETS)
def test_each_target_has_its_family(arch, dtype) -> None:
    family = FAMILIES[arch].get(dtype, FAMILIES[arch][None])
    if not family:
        with pytest.raises(evt.TargetError, match=f"E0503.*{arch}(.|\n)*{arch} does not multiply {dtype}"):
            make(RELU, arch, dtype)
        return
    made = make(RELU, arch, dtype)
    assert made.family == family
    assert made.target.name == arch
    assert made.generation == ("2.x" if family == "2x" else "3.x")
    assert f"for {arch}, CUTLASS {made.generation}." in emit(made).splitlines()[0]


def refusal(formula: str, arch: str, a: str, b: str | None = None) -> str:
    """Return the reason the route evt-3x does not compile a program."""
    with pytest.raises(evt.TargetError, match="E0502") as caught:
        evt.gemm(formula, route="evt-3x").plan(arch, a, b or a)
    return str(caught.value)


@pytest.mark.parametrize(
    ("arch", "a", "b", "reason"),
    [
        ("sm89", "f16", "f16", "sm89 runs CUTLASS 2.x"),
        ("sm90", "f64", "f64", "f64 is multiplied by the mma instructions of 2.x kernels"),
        ("sm100", "f64", "f64", "f64 is multiplied by the mma instructions of 2.x kernels"),
        ("sm100", "i8", "u8", "tcgen05 multiplies integers of one type, and A is i8, B is u8"),
        ("sm103", "i8", "i8", "the tcgen05 instructions of sm103 multiply floats only"),
        ("sm120", "bf16", "bf16", "CUTLASS 3.x multiplies 8-bit floats only on sm120, and A is bf16"),
    ],
)
def test_what_the_tensor_cores_do_not_multiply(arch, a, b, reason) -> None:
    assert reason in refusal("D = acc", arch, a, b)
    assert evt.gemm("D = acc").plan(arch, a, b).family == "2x"


def test_operands_that_must_run_along_k() -> None:
    dag = dag_of("D = acc", "e4m3")
    signature = with_layout(natural_signature(dag), "B", LayoutClass("n", 16))
    for arch in ("sm90", "sm120"):
        with pytest.raises(evt.TargetError, match="`B` is contiguous along n"):
            route_of(Problem(dag, signature, find_target(arch)))
    assert plan(Problem(dag, signature, find_target("sm100"))).family == "sm100"


#: A program for each thing that depends on an element's place.
PLACED = {
    "packed bits": "out D, k: b1[m, n]; D = acc; k = acc > 0",
    "reductions": "out D, r: f32[m]; D = acc; r = sum[n](acc)",
    "pairs of columns": "out D, h[m, n/2]; D = acc; h = even(acc) * odd(acc)",
    "blocks of columns": "out D, q: f32[m, n/32]; D = acc; q = max[n%32](acc)",
    "coordinates": "D = acc + iota(n)",
    "random numbers": "in seed: i32; D = acc * rand(seed, 0)",
}


@pytest.mark.parametrize("what", PLACED)
def test_places_on_each_target(what) -> None:
    formula = PLACED[what]
    assert f"there are no 3.x visitors for {what} on sm120" in refusal(formula, "sm120", "e4m3")
    assert make(formula, "sm120", "e4m3").family == "2x"
    own = (PairMember, Coordinate, RandomNumbers, BlockReduce, Reduction, MaskStore, HalfStore)
    assert any(isinstance(node, own) for node in make(formula, "sm100").steps)
    assert kinds(make(formula, "sm100")) == kinds(make(formula))
    ours = {arch: re.findall(r"evt::epilogue::(\w+)", emit(make(formula, arch))) for arch in ("sm90", "sm100")}
    assert ours["sm100"]
    assert ours["sm100"] == ours["sm90"]


#: Names that the text for a target must not have: other architectures' collectives, descriptors and nodes.
FOREIGN = {
    "sm90": r"Sm100|Sm120|sm100|sm120",
    "sm100": r"arch::Sm90|\bAux(Load|Store)Descriptor|Sm120|sm120|= evt::fusion::(?!Apply|Graph|WithElement)",
    "sm103": r"arch::Sm90|\bAux(Load|Store)Descriptor|Sm120|sm120|= evt::fusion::(?!Apply|Graph|WithElement)",
    "sm120": r"arch::Sm90|Sm100|sm100|\bEpilogueDescriptor|= evt::fusion::(?!Apply|Graph|WithElement)",
}


@pytest.mark.parametrize("arch", FOREIGN)
def test_a_text_has_nothing_of_another_architecture(arch) -> None:
    formulas = [RELU, "out D: f32[m, n], E; E = acc*C; D = tanh(E) + residual", "out D: f32[m]; D = sum[n](acc)"]
    for formula in (*formulas, *PLACED.values()):
        made = make(formula, arch, "e4m3")
        if made.generation == "3.x":
            generated = emit(made).partition("\n// YOUR EPILOGUE\n")[2]
            assert re.findall(FOREIGN[arch], generated) == []


def test_sm100_is_given_rows() -> None:
    formula = "out D[n, m], r: f32[m]; D = relu(acc); r = sum[n](D)"
    made = make(formula, "sm100")
    assert (made.rows, made.columns) == ("n", "m")
    assert made.destination is not None
    assert made.destination.row_major
    assert [node.shape for node in made.reductions] == [ResultShape.ROW]
    for other in (formula.replace("D[n, m]", "D: f32[n, m]"), formula.replace("[n, m]", ""), "out D[n, m]; D = acc"):
        assert make(other, "sm100").rows == "m"
    reason = "a column-major D of 16 bits is computed as the transposed problem"
    assert reason in refusal("out D[n, m], k: b1[m, n]; D = acc; k = acc > 0", "sm100", "f16")
    assert make("D = acc", "sm100", "f32").rows == "m"  # tcgen05 takes operands that WGMMA does not


def test_a_d_that_is_not_stored_is_wrapped() -> None:
    formula = "out D: f32[m]; D = sum[n](acc)"
    wrapped = "using CollectiveEpilogue = evt::unstored<"
    assert [wrapped in emit(make(formula, arch, "e4m3")) for arch in ("sm90", "sm100")] == [False, True]
    assert wrapped not in emit(make(RELU, "sm100"))
    assert "evt/unstored_sm100.hpp" not in emit(make(RELU, "sm100"))


@pytest.mark.parametrize("spelling", ["sm90", "sm_90", "sm90a", "sm_90a", "90", "SM90"])
def test_target_spellings(spelling) -> None:
    assert find_target(spelling).gencode == "sm_90a"


@pytest.mark.parametrize("name", ["A", "B", "D"])
def test_what_tma_cannot_move_takes_an_own_kernel(name) -> None:
    """The GEMM kernel of evt copies unaligned operands, and threads store D."""
    dag = dag_of(RELU)
    signature = natural_signature(dag)
    contiguous = {"A": "k", "B": "n", "D": "n"}[name]
    problem = Problem(dag, with_layout(signature, name, LayoutClass(contiguous, 4)), find_target("sm90"))
    assert route_of(problem) == "gemm-own-3x"
    with pytest.raises(evt.TargetError, match="E0502") as caught:
        route_of(problem, "evt-3x")
    assert f"`{name}` is aligned to 8 bytes" in str(caught.value)


def test_too_many_tensors_are_refused_before_nvcc() -> None:
    formula = "D = acc" + "".join(f" + x{i}" for i in range(60))
    for arch in ("sm80", "sm90"):
        with pytest.raises(evt.TargetError, match="at most 48"):
            evt.emit(formula, arch=arch)


def test_unknown_routes_configs_and_targets_are_named() -> None:
    for call in (
        lambda: make(RELU, route="evt-4x"),
        lambda: make(RELU, config="pingpong_1x1x1"),
        lambda: make(RELU, "sm70"),
        lambda: make(RELU, "sm91"),
    ):
        with pytest.raises(evt.TargetError, match="E0501"):
            call()
    with pytest.raises(evt.TargetError, match="E0501"):
        evt.emit(RELU, op="conv4d")


def test_a_header_and_another_type_contradict() -> None:
    with pytest.raises(evt.TargetError, match="E0305"):
        evt.gemm("gemm(A: f16, B: f16); D = acc").emit("sm90", "bf16")


# Transposed problems


def test_2x_computes_a_column_major_d_as_the_transposed_problem() -> None:
    made = make("in s: f32[m]; out D[n, m]; D = acc*s + bias", "sm80")
    assert (made.rows, made.columns) == ("n", "m")
    assert isinstance(made.mainloop, MatrixProduct)
    assert (made.mainloop.a.name, made.mainloop.b.name) == ("B", "A")
    found = {node.name: type(node) for node in made.steps}
    assert found["in_s"] is RowBroadcast
    assert found["in_bias"] is ColumnBroadcast


@pytest.mark.parametrize(("a", "b", "rows"), [("k", "n", "n"), ("k", "k", "m"), ("m", "n", "m"), ("m", "k", "m")])
def test_wide_operands_that_cutlass_would_swap_are_transposed(a, b, rows) -> None:
    for dtype, expected in (("f32", rows), ("f16", "m")):
        dag = dag_of("D = acc + bias", dtype)
        signature = natural_signature(dag)
        signature = Signature(LayoutClass(a, 4), LayoutClass(b, 4), signature.tensors) if dtype == "f32" else signature
        assert plan(Problem(dag, signature, find_target("sm90"))).rows == expected


# Configurations


def configs_of(formula: str, arch: str, dtype: str) -> tuple[Config, ...]:
    dag = dag_of(formula, dtype)
    problem = Problem(dag, natural_signature(dag), find_target(arch))
    return survey(problem, "evt").chosen.configs


@pytest.mark.parametrize("dtype", [dtype.name for dtype in OPERANDS])
@pytest.mark.parametrize("arch", ["sm89", "sm90", "sm100", "sm103", "sm120"])
def test_configurations_fit_and_have_names_of_their_own(arch, dtype) -> None:
    made = configs_of("D = acc", arch, dtype)
    assert len({config.name for config in made}) == len(made)
    for config in made:
        assert (
            make("D = acc", arch, dtype, route="evt", config=config.name).shared_memory
            <= find_target(arch).shared_memory
        )


def test_8_bit_floats_leave_registers_for_their_sums() -> None:
    for config in configs_of("D = acc", "sm90", "e4m3"):
        m, n, _ = config.tile
        threads = {"pingpong": 128, "cooperative": 256}[config.schedule]
        assert m * n / threads <= 96
    assert {config.schedule for config in default_configs_of(RELU, "e4m3")} == {"cooperative", "pingpong"}


@pytest.mark.parametrize(("arch", "dtype"), [("sm90", "f16"), ("sm90", "e4m3"), ("sm100", "f16")])
def test_the_epilogue_visits_both_columns_of_a_pair(arch, dtype) -> None:
    for block, columns in ((1, 2), (16, 32), (32, 64)):
        for config in configs_of(f"out D[m, n/2]; D = even(acc, {block}) * odd(acc, {block})", arch, dtype):
            assert config.epilogue_tile[1] % columns == 0


def test_sm100_multiplies_the_tile_of_a_pair_of_blocks() -> None:
    one, two = (make("D = acc", "sm100", config=name).config for name in ("one_sm_128x128x64", "two_sm_128x128x64_2x1"))
    tiles = [getattr(each, "mma_tile", None) for each in (one, two)]
    assert tiles == [(128, 128, 64), (256, 128, 64)]
    spelled = emit(make("D = acc", "sm100", config=two.name))
    assert "using KernelSchedule = cutlass::gemm::KernelTmaWarpSpecialized2SmSm100;" in spelled
    assert "using EpilogueSchedule = cutlass::epilogue::TmaWarpSpecialized2Sm;" in spelled


def default_configs_of(formula: str, dtype: str) -> tuple[Config, ...]:
    dag = dag_of(formula, dtype)
    problem = Problem(dag, natural_signature(dag), find_target("sm90"))
    return survey(problem, "evt").chosen.default_configs


def test_heavy_epilogues_get_no_tile_that_takes_their_registers() -> None:
    for dtype, light in (("f16", 3), ("e4m3", 3)):
        assert len(default_configs_of(RELU, dtype)) == light
        heavy = default_configs_of("D = gelu(acc + bias)", dtype)
        assert [config.use for config in heavy] == ["always"] * len(heavy)
        assert max(config.tile[0] * config.tile[1] for config in heavy) <= 128 * 128


def test_2x_never_multiplies_f32_in_two_stages() -> None:
    f32, f16 = (dag_of("D = acc", dtype).operands[0].dtype for dtype in ("f32", "f16"))
    assert all(general_config(f32, alignment).stages > 2 for alignment in (1, 2, 4))
    assert [general_config(f16, alignment).stages for alignment in (1, 2, 4, 8)] == [2, 4, 4, 4]


def test_alignment_is_what_divides_everything() -> None:
    f16 = dag_of("D = acc").operands[0].dtype
    assert alignment_of(f16, "n", 256, {"m": 64}, 64) == 8
    assert alignment_of(f16, "n", 256, {"m": 64}, 60) == 4
    assert alignment_of(f16, "n", 258, {"m": 64}, 64) == 1
    assert alignment_of(f16, "n", 256, {"m": 66, "l": 64}, 64) == 2
    assert alignment_of(f16, None, 256, {"m": 64, "n": 8}, 64) == 1


# Shared memory: another configuration or source may have the room


def outputs(count: int, reduction: str, modes: str) -> str:
    """Return a program with many reductions."""
    names = [f"r{index}" for index in range(count)]
    lines = [f"out D: f16, {', '.join(f'{name}: f32[{modes}]' for name in names)}", "D = acc"]
    return "\n".join([*lines, *(f"{name} = {reduction}(acc * {index + 2})" for index, name in enumerate(names))])


@pytest.mark.parametrize("arch", TARGETS)
@pytest.mark.parametrize(
    "text",
    [
        "in C: f64[l, m, n]\nout D: e4m3\nD = C - acc",
        "in C: f64[l, m, n], E: f64[l, m, n]\nout D: f64, Z: f64\nZ = C*acc\nD = E - Z",
        outputs(16, "sum[m]", "n"),
        outputs(16, "sum[n]", "m"),
        outputs(24, "max[m]", "n"),
        "".join(f"in row{index}: f64[n]\n" for index in range(30))
        + "D = acc"
        + "".join(f"+row{index}" for index in range(30)),
    ],
)
@pytest.mark.parametrize("dtype", ["f16", "e4m3", "i8", "f32"])
def test_what_does_not_fit_takes_another_source_configuration_or_route(text, arch, dtype) -> None:
    if dtype == "e4m3" and arch in ("sm80", "sm86"):
        pytest.skip("no such product")
    made = make(text, arch, dtype)
    assert made.shared_memory <= TARGETS[arch].shared_memory
    assert made.route in {"evt-2x", "evt-3x"}
    assert emit(made)


def test_a_source_beyond_shared_memory_is_loaded_by_a_visitor() -> None:
    taken = [make(f"in C: {dtype}[l, m, n]\nout D: e4m3\nD = C - acc", "sm100") for dtype in ("i32", "f64")]
    assert [kinds(each)[0] for each in taken] == [SourceFetch, AuxLoad]
    assert accesses(taken[1], AuxLoad) == [Access.DIRECT]


def test_reductions_fill_shared_memory_only_where_warps_meet_in_it() -> None:
    """Sums over the rows meet in the shared memory of sm90, those over the columns in registers."""
    rows, columns = (make(outputs(16, f"sum[{over}]", kept), "sm90") for over, kept in (("m", "n"), ("n", "m")))
    assert rows.shared_memory - columns.shared_memory == 16 * 8 * 128 * 4


def test_a_configuration_that_does_not_fit_is_refused_by_name_and_passed_over_otherwise() -> None:
    text = outputs(32, "max[m]", "n")
    needs = r"pingpong_128x128x64 needs 234 KiB of shared memory .* a thread block of sm90 has 227"
    with pytest.raises(evt.TargetError, match=rf"E0502(.|\n)*{needs}"):
        make(text, "sm90", config="pingpong_128x128x64")
    smaller = make(text, "sm90").config
    assert math.prod(smaller.tile) < 128 * 128 * 64
    assert evt.gemm(text, route="evt").explain("sm90").configurations == (smaller.name,)


def test_a_route_without_a_configuration_that_fits_is_passed_over() -> None:
    rows = [f"row{index}" for index in range(46)]
    text = "".join(f"in {row}: f64[n]\n" for row in rows) + f"D = acc + {' + '.join(rows)}"
    assert make(text, "sm120", "e4m3").route == "evt-2x"
    with pytest.raises(evt.TargetError, match=r"E0502(.|\n)*cooperative_128x128x64 needs \d+ KiB"):
        make(text, "sm120", "e4m3", route="evt-3x")
    explained = evt.gemm(text).explain("sm120", "e4m3", "e4m3")
    evt_3x = next(route for route in explained.routes if route.name == "evt-3x")
    assert [statement for statement, reason in evt_3x.rules if reason] == ["a configuration fits in shared memory"]


PAIRED = "in C: f16[m, n]\nout D: f16[m, n/2]\nD = silu(even(acc + C, 32)) * odd(acc + C, 32)"


def test_pairs_meet_within_a_warp_whatever_the_alignment() -> None:
    """A warp's 32 accesses cover both members of a pair: a tensor with less alignment is read singly."""
    dag = dag_of(PAIRED)
    for alignment, width, access in ((8, 8, Access.TILE), (2, 2, Access.TILE), (1, 2, Access.STRIDED)):
        signature = with_layout(natural_signature(dag), "C", LayoutClass("n", alignment))
        made = plan(Problem(dag, signature, find_target("sm80")))
        assert made.elements_per_access == width
        assert access in accesses(made, AuxLoad)


@pytest.mark.parametrize("dtype", ["f16", "f64"])
def test_pairs_far_apart_do_not_cut_tiles_by_a_wide_type(dtype) -> None:
    text = "out D: f64[m, n], E: f64[m, n/2]\nD = acc*2\nE = even(D, {block})*odd(D, {block})"
    elements = [make(text.format(block=block), "sm80", dtype).epilogue_dtype.name for block in (16, 32)]
    assert elements == ["f64", "f32"]


def test_the_plans_of_a_problem_are_made_once() -> None:
    """Each of a model's equal layers asks for them, several times."""
    dag = dag_of("D = relu(acc)", "bf16")
    found = survey(Problem(dag, natural_signature(dag), find_target("sm90")))
    assert found.defaults is found.defaults
    assert found.defaults[0] is found.plan
