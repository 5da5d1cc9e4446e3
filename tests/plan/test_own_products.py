"""The GEMM kernel of evt: its plan, its tiles, its text, its refusals, and the calls that it takes."""

from __future__ import annotations

import random
import re
from dataclasses import replace

import pytest

import evt
from evt.emission import emit
from evt.emission.kernel import spell
from evt.ir.dtype import BY_NAME
from evt.plan import Candidate, Plan, Survey, plan, survey
from evt.plan.epilogue.loads import AuxLoad
from evt.plan.epilogue.values import Access
from evt.plan.epilogue.writes import AuxStore
from evt.plan.gemm import ProductClass, Tile, rows_of_part, tile_of, tiles_of
from evt.plan.geometry.convolution import ceil_div
from evt.plan.geometry.halo import SHARED_BYTES
from evt.plan.plan import OwnProduct
from evt.plan.speed import product_microseconds
from evt.plan.staged import MOST_STAGED
from evt.request import packed_problem
from evt.runtime.plans import check_sizes

RESIDUAL = "D = relu(acc + bias + residual)"
ROUTE = "gemm-own-3x"
OPERANDS = ["f16", "bf16", "f32", "tf32", "e4m3", "e5m2", "i8", "u8"]


def planned(text: str = RESIDUAL, dtype: str = "f16", operation: str = "linear", **keywords: object) -> Plan:
    op = evt.Program(evt.diagnostics.Source(text), operation, **{"route": ROUTE, **keywords})
    return op.plan("sm90", dtype, dtype)


def candidate(dtype: str, text: str = "out D: f16; D = acc + bias") -> Candidate:
    (found,) = survey(packed_problem(evt.linear(text).request, "sm90", dtype, dtype), ROUTE).asked
    return found


# The plan


def test_tma_moves_c_and_d() -> None:
    made = planned()
    assert (made.family, made.template, made.shared_memory) == ("own", "own_sm90", SHARED_BYTES)
    assert isinstance(made.mainloop, OwnProduct)
    assert (made.mainloop.a.name, made.mainloop.b.name, made.transposed) == ("A", "B", False)
    assert made.source is not None
    assert made.destination is not None
    assert (made.source.pointer.name, made.destination.pointer.name) == ("in_residual", "out_D")
    (store,) = (node for node in made.steps if isinstance(node, AuxStore))
    assert store.access is Access.TILE
    assert {"tile_rows", "tile_columns", "images"}.isdisjoint(field.name for field in made.fields)
    assert made.with_pdl


def test_a_column_major_d_is_stored_element_by_element() -> None:
    made = planned("in C[n, m]; out D[n, m]; D = relu(acc + C)")
    assert (made.source, made.destination) == (None, None)
    assert [node.access for node in made.steps if isinstance(node, AuxLoad | AuxStore)] == [Access.DIRECT] * 2


# Its tiles


def stages(tile: Tile, staged: int, *, loads: bool) -> int:
    """Return kStages of kit/gemm.hpp: the stages that fit in shared memory, beside staged matrices and barriers."""
    consumers, most_stages, splits = 2, 12, tile.cluster[2]
    blocks = tile.blocks * (1 if tile.pingpong else consumers)
    stage = tile.row_bytes * (tile.rows + 64 * blocks)
    steps = ceil_div(ceil_div(tile.rows, 16), splits)
    completed = min(16 * steps, tile.rows)
    part = rows_of_part(tile, staged)
    parts, rings = ceil_div(completed, part) * tile.blocks, 1 if tile.pingpong else consumers
    few = 3 if tile.pingpong else ceil_div(128, part) if loads else 4
    buffers = min(parts, few) if staged else 0
    barriers = 8 * (2 * most_stages + 5 * consumers + 2 * rings * parts)
    fitting = [(SHARED_BYTES - 1024 - barriers - rings * each * part * 64 * staged) // stage for each in (buffers, 2)]
    sums = consumers * splits * min(2 * steps, tile.rows // 8) * 128 * 16 if splits > 1 else 0
    fewer = buffers > 2 and (fitting[0] < min(fitting[1], 4) or fitting[0] * stage < sums)
    found = min(most_stages, fitting[fewer])
    if splits > 1:  # the stages hold the partial sums that other CTAs send
        assert tile.rows % completed == 0
        assert sums <= found * stage
    return found


@pytest.mark.parametrize("staged", [0, 1, 2, 4, 6, 12, MOST_STAGED])
@pytest.mark.parametrize("dtype", OPERANDS)
def test_tiles_fit_shared_memory_and_registers(dtype: str, staged: int) -> None:
    product = ProductClass(BY_NAME[dtype], staged=staged)
    offered, asked = tiles_of(product)
    assert len({*offered, *asked}) == len(offered) + len(asked)
    for tile in (*offered, *asked):
        for loads in (False, True):
            assert stages(tile, staged, loads=loads) >= 2, tile
        sums = tile.blocks * tile.rows // 2  # of a thread of a consumer
        assert sums * (2 if product.promoted else 1) <= 192
        down, across, splits = tile.cluster
        assert down * across * splits <= 8
        assert tile.rows % (8 * across) == 0
        assert tile.columns // 64 % down == 0
    assert min(stages(tile, staged, loads=True) for tile in offered) >= (4 if staged <= 2 else 3)


@pytest.mark.parametrize("dtype", OPERANDS)
def test_configurations(dtype: str) -> None:
    found, operand = candidate(dtype), BY_NAME[dtype]
    product = ProductClass(operand)
    offered, asked = tiles_of(product)
    known = list(found.search_space.values())
    assert [tile_of(config, operand.bits // 8) for config in known] == [*offered, *asked]
    assert [config.use for config in known] == ["always"] * len(offered) + ["asked"] * len(asked)
    assert list(found.configs) == known[: len(offered)]
    depth = 128 * 8 // operand.bits
    deep = set() if product.promoted else {2 * depth}  # for few rows
    assert {config.tile[2] for config in found.default_configs} == {depth} | deep
    rows = {config.tile[0] for config in known}
    step = 8 if operand.is_float else 16
    most = 192 if product.promoted else 256
    assert rows == {*range(8, 33, 8), *range(32, most + 1, step)}
    names = set(found.search_space)
    asked_for = [f"own_cooperative_64x128x{depth}_1x1x4", f"own_cooperative_128x128x{depth}_2x1"]
    if not product.promoted:
        asked_for += [f"own_pingpong_64x64x{depth}_1x2", f"own_pingpong_128x128x{depth // 2}"]
    assert names.issuperset(asked_for)


def test_8_bit_floats_are_promoted() -> None:
    """A consumer then has twice the accumulators, and the consumers share a tile."""
    for dtype in ("e4m3", "e5m2"):
        tiles = [tile for found in tiles_of(ProductClass(BY_NAME[dtype])) for tile in found]
        assert all(not tile.pingpong and tile.row_bytes == 128 for tile in tiles)
        text = emit(planned("out D: f16; D = acc", dtype), "k")
        assert "GemmTile<1, false, 1, 1, 1, true>>;" in text
    assert ", true>>;" not in emit(planned("out D: f16; D = acc", "i8"), "k")


# Its text


def test_the_kernel_is_given_a_matrix_product() -> None:
    text = emit(planned(config="own_cooperative_256x128x64_1x2"), "k")
    for member, mode in (("rows", "m"), ("columns", "n"), ("depth", "k")):
        assert f"  result.{member} = static_cast<int>(arguments.{mode});\n" in text
    assert "result.a_stride = arguments.stride_m_of_A;" in text
    assert "result.b_stride = arguments.stride_n_of_B;" in text
    assert "using Kernel = evt::kit::Gemm<Mma, Epilogue, 64, evt::kit::GemmTile<1, false, 2, 1, 1>>;" in text
    assert "using Mainloop" not in text
    assert "/// The matrix product.\n" in text
    assert "if (arguments->l != 1) return evt::report(evt::Failure::arguments);" in text
    assert re.search(r"int64_t l; +// batches: 1\n", text)
    assert "convolution_of" not in text
    assert "cute::" not in text


@pytest.mark.parametrize(
    ("config", "kernel"),
    [
        ("own_pingpong_128x128x64", "64, evt::kit::GemmTile<2, true, 1, 1, 1>"),
        ("own_pingpong_64x64x32_1x2", "32, evt::kit::GemmTile<1, true, 2, 1, 1>"),
        ("own_cooperative_128x128x128_2x1", "128, evt::kit::GemmTile<1, false, 1, 2, 1>"),
        ("own_cooperative_64x128x64_1x1x4", "64, evt::kit::GemmTile<1, false, 1, 1, 4>"),
    ],
)
def test_a_configuration_is_a_tile_of_the_kernel(config: str, kernel: str) -> None:
    assert f"using Kernel = evt::kit::Gemm<Mma, Epilogue, {kernel}>;" in emit(planned(config=config), "k")


def test_rows_of_columns_are_transposed_filters() -> None:
    text = emit(planned(operation="gemm"), "k")
    assert "static constexpr bool kTransposed = true;" in text
    assert "}, a, b, p, 1, 1, 1, 0;" in text
    assert "result.b_stride = arguments.stride_k_of_B;" in text
    assert "static constexpr bool kTransposed = false;" in emit(planned(), "k")


# Refusals


REFUSED = {
    "a column-major A": ("gemm(A: f16[k, m], B: f16[n, k])\nD = acc", "`A` is f16 and contiguous along m"),
    "f32 rows of columns": ("gemm(A: f32[m, k], B: f32[k, n])\nD = acc", "`B` is f32 and contiguous along n"),
    "f64": ("gemm(A: f64[m, k], B: f64[n, k])\nD = acc", "f64 is multiplied by the mma instructions of 2.x kernels"),
    "f64 values": ("gemm(A: f16[m, k], B: f16[n, k])\nin x: f64[n]; D = acc + x", "`x` is f64"),
    "wide pairs": (
        "gemm(A: f16[m, k], B: f16[n, k])\nin r[m, n/2]; out D[m, n/2]; D = silu(even(acc, 32))*odd(acc, 32) + r",
        "64 columns are taken together, and a warp has 16",
    ),
    "a mainloop fusion": ("gemm(A: f16[m, k], B: f16[n, k])\nA = relu(A); D = acc", "`A` has a mainloop fusion"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_refusals(what: str) -> None:
    text, reason = REFUSED[what]
    with pytest.raises(evt.TargetError) as raised:
        evt.gemm(text, route=ROUTE).plan("sm90")
    (found,) = raised.value.diagnostics
    assert found.code == "E0502"
    assert reason in f"{found.message} {found.notes}"


def test_targets_without_wgmma() -> None:
    for arch in ("sm80", "sm100", "sm120"):
        with pytest.raises(evt.TargetError, match=f"the target is {arch}"):
            evt.linear("D = acc", route=ROUTE).plan(arch)


def test_an_unknown_configuration_names_the_usual_ones() -> None:
    """The route has hundreds of configurations."""
    with pytest.raises(evt.TargetError, match="no configuration `own_pingpong_264x64x64`") as raised:
        planned(config="own_pingpong_264x64x64")
    (found,) = raised.value.diagnostics
    names = found.help.removeprefix("configurations: ").split(", ")
    assert names[:8] == [config.name for config in candidate("f16").default_configs[:8]]
    assert names[8:] == ["and others: see `evt explain`"]


def test_a_configuration_of_another_route_requests_the_route() -> None:
    assert evt.linear(RESIDUAL, config="pingpong_64x64x64").plan("sm90").route == "stock-3x"
    assert evt.linear(RESIDUAL, config="own_pingpong_64x64x64").plan("sm90").route == ROUTE


@pytest.mark.parametrize("splits", [2, 4, 8])
def test_each_split_has_a_stage_of_k(splits: int) -> None:
    made = planned(config=f"own_cooperative_64x128x64_1x1x{splits}")
    least = 64 * (splits - 1) + 1
    for k in range(8, 64 * splits + 9, 8):
        sizes = {"m": 16, "n": 64, "k": k, "l": 1}
        if k >= least:
            check_sizes(made, sizes)
            continue
        with pytest.raises(evt.LaunchError, match=rf"E0804\]: k = {k}: {made.config.name} has {splits} thread blocks"):
            check_sizes(made, sizes)


def test_fast_sums_of_narrow_floats_have_the_tiles_of_wide_ones() -> None:
    """Tensor cores add, and consumers take turns. Other types and factors of blocks have no such choice."""
    text = "out D: f16; D = acc + bias"
    precise, fast = (planned(text, "e4m3", accumulate=word) for word in ("precise", "fast"))
    assert (precise.config.schedule, fast.config.schedule) == ("own_cooperative", "own_pingpong")
    kernels = [spell(made).own.kernel for made in (precise, fast)]
    assert [kernel.count("true") for kernel in kernels] == [1, 1]  # promoted; pingpong
    assert fast.config.name == planned(text, "f16").config.name.replace("x64", "x128")
    assert emit(planned(RESIDUAL, accumulate="fast")) == emit(planned(RESIDUAL))
    scaled = "in s: f32[m, k/128]; A = s*A; out D: f16; D = acc"
    assert spell(planned(scaled, "e4m3", accumulate="fast")).own == spell(planned(scaled, "e4m3")).own


# The calls that it takes


def surveyed(text: str, dtype: str = "f16", operation: str = "linear", shapes=None) -> Survey:
    op = evt.Program(evt.diagnostics.Source(text), operation)
    return survey(packed_problem(op.request, "sm90", dtype, dtype, shapes))


SUITED = {
    "a residual": RESIDUAL,
    "rows": "in x: f16[m]; D = gelu(acc*x)",
    "dropout": "D = dropout(acc + bias, 0.1, seed, offset)",
    "packed bits": "in K: b1[m, n]; out D, M: b1; M = acc > 0; D = where(K, acc, 0)",
    "sums over rows": "in x: f16[m, n]; out D, s: f32[n]; D = where(x > 0, acc, 0); s = sum[m](D)",
    "pairs": "out D[m, n/2]; D = silu(even(acc))*odd(acc)",
    "bytes": "in s: f32[m]; out D: e4m3; D = s*acc",
    "pairs of bytes": "out D: i8[m, n/2]; D = silu(even(acc))*odd(acc)",
    "a wide result": "out D: f32; D = acc",
    "bytes and a matrix to read": "in x: f16[m, n]; out D: e4m3; D = acc + x",
    "two matrices to read": "D = acc + x + y; in x[m, n], y[m, n]",
    "two matrices to write": "out D, Z; Z = acc + bias; D = gelu(Z)",
    "pairs with a reduction": "out D[m, n/2], s: f32[m]; D = silu(even(acc + bias))*odd(acc); s = max[n](abs(D))",
}


@pytest.mark.parametrize("what", SUITED)
def test_it_is_taken(what: str) -> None:
    assert surveyed(SUITED[what]).plan.route == ROUTE


UNSUITED = {
    "wide operands": ("D = acc", "f32", "the operands are f32"),
    "too many bytes": (
        "out D, E: f32, F: f32, G: f32, H: f32; D = acc; E = acc; F = acc; G = acc; H = acc",
        "f16",
        "an element of the epilogue's matrices has 18 bytes, and buffers have 16",
    ),
    "columns of a result": ("out D[n, m]; D = acc", "f16", "`D` is moved element by element"),
    "a vector alone": ("out s: f32[m]; s = sum[n](acc)", "f16", "`s` is not a matrix, and TMA stores matrices"),
    "distant pairs": ("out D[m, n/2], E; E = acc; D = even(acc, 8)", "f16", "`D` is moved element by element"),
    "wide pairs": ("out D: f32[m, n/2]; D = even(acc) + odd(acc)", "f16", "`D` is moved element by element"),
    "pairs and a matrix": (
        "out D[m, n/2], E; E = acc; D = even(acc) + odd(acc)",
        "f16",
        "`D` is moved element by element",
    ),
    "blocks": ("D = acc / max[n%16](abs(acc))", "f16", "pairs and blocks of columns"),
}


@pytest.mark.parametrize("what", UNSUITED)
def test_cutlass_is_preferred(what: str) -> None:
    text, dtype, reason = UNSUITED[what]
    found = surveyed(text, dtype)
    assert found.plan.route != ROUTE
    (own,) = (each for each in found.candidates if each.route.name == ROUTE)
    assert own.applies
    assert reason in own.unsuited
    assert own.unsuited


def test_it_is_chosen_and_cutlass_is_printed() -> None:
    """The text that a user reads and compiles is CUTLASS's, unless the user requests a kernel of evt."""
    op = evt.linear(RESIDUAL)
    assert surveyed(RESIDUAL).plan.route == ROUTE
    assert op.plan("sm90").route == "stock-3x"
    assert "cutlass::gemm" in op.emit("sm90")
    own = evt.linear(RESIDUAL, route="own")
    assert own.plan("sm90").route == ROUTE
    assert "evt::kit::Gemm<" in own.emit("sm90")
    assert evt.linear(RESIDUAL, config="own_pingpong_64x64x64").plan("sm90").route == ROUTE
    (route,) = (each for each in op.explain("sm90").routes if each.name == ROUTE)
    assert (route.applies, route.chosen, route.beside, route.unmet) == (True, True, False, "")
    assert op.explain("sm90").plan.route == ROUTE
    assert evt.linear("in x: f16[m]; D = acc*x").plan("sm80").route == "evt-2x"


def test_a_thread_has_pairs_of_any_distance() -> None:
    text = "out D[m, n/2], r: f32[m]; D = silu(even(acc, {0}))*odd(acc, {0}); r = {1}"
    for apart in (1, 8, 16, 32):
        assert surveyed(text.format(apart, "sum[n](acc)"), "bf16").plan.mainloop.pairs == apart
    for further in ("sum[n](even(acc, 8))", "max[n](max[n%64](even(acc, 32)))"):
        assert surveyed(text.format(32, further), "bf16").plan.route != ROUTE


# Batches


BATCHES = "gemm-own-batches"


def test_several_batches_take_one_launch() -> None:
    for batches, route in ((1, ROUTE), (2, BATCHES), (300, BATCHES)):
        shapes = (batches, 64, 32), (batches, 32, 16)
        assert surveyed("D = acc", operation="gemm", shapes=shapes).plan.route == route
        explained = evt.gemm("D = acc").explain("sm90", shapes=shapes)
        assert explained.plan.route == route
        (own,) = (each for each in explained.routes if each.name == ROUTE)
        assert bool(own.unmet) == (batches > 1)
    candidate_of_batches = surveyed("D = acc", "f16", "gemm", ((2, 64, 32), (2, 32, 16))).candidates[0]
    assert candidate_of_batches.unsuited == "there are batches, which would be launched one by one"


def test_explain_counts_batches() -> None:
    """That there are too many is known once the sizes are; several launches take most of them."""
    shapes = (300, 64, 32), (300, 32, 16)
    for route, refused in ((ROUTE, True), ("evt", False)):
        op = evt.gemm("D = acc", route=route)
        (chosen,) = (each for each in op.explain("sm90", shapes=shapes).routes if each.chosen)
        reason = "there are 300, which take 300 launches of at most 256"
        assert (("batches are at most 1 in a launch", reason) in chosen.rules) == refused
        assert chosen.applies == (not refused)
        found = op.explain("sm90", shapes=((3, 64, 32), (3, 32, 16)))
        assert not any("in a launch" in statement for each in found.routes for statement, _ in each.rules)
    shapes = (70_000, 8, 32), (70_000, 32, 16)
    assert "batches are at most" not in evt.gemm("D = acc", route="evt").explain("sm80", shapes=shapes).details()
    many = evt.gemm("D = acc + iota(l)", route="evt").explain("sm80", shapes=shapes)
    assert "fails  batches are at most 65535 in a launch: there are 70000, and the program counts all" in many.details()


def test_operands_that_batches_share_are_refused_before_they_are_counted() -> None:
    problem = packed_problem(evt.gemm("D = acc").request, "sm90", "f16", "f16")
    shared = replace(problem, signature=replace(problem.signature, b=replace(problem.signature.b, batch="shared")))
    with pytest.raises(evt.TargetError, match=r"E0502\](.|\n)*several batches share `B`"):
        plan(shared, ROUTE)
    assert plan(shared).route == BATCHES
    assert plan(shared, BATCHES).route == BATCHES


#: Programs of batches that the GEMM kernel leaves to CUTLASS, and the reason.
LEFT = {
    "reductions": ("out D, r: f32[m]; D = acc; r = sum[n](acc)", "a reduction would have parts for each batch"),
    "numbers of batches": ("D = acc + iota(l)", "coordinates and random numbers depend on the batch"),
    "random numbers": ("D = dropout(acc, 0.1, seed, offset)", "coordinates and random numbers depend on the batch"),
    "vectors": ("in s: f32[n]; out D, a: f32[n]; D = acc; a = exp(s)", "`a` is a vector that is stored"),
    "columns": ("out D[n, m]; D = acc", "`D` is moved element by element"),
}


@pytest.mark.parametrize("what", LEFT)
def test_batches_that_are_left_to_cutlass(what: str) -> None:
    text, reason = LEFT[what]
    found = surveyed(text, operation="gemm", shapes=((3, 64, 32), (3, 32, 16)))
    assert found.plan.route not in (ROUTE, BATCHES)
    (own,) = (each for each in found.candidates if each.route.name == BATCHES)
    assert any(reason in refusal.reason for refusal in own.refusals)


def test_batches_share_and_own_matrices() -> None:
    """Strides of batches are arguments: 0 for a matrix that batches share."""
    op = evt.gemm("in s: f16[l, m], t: f16[n]; D = (acc + t)*s + C", route=BATCHES)
    made = op.plan("sm90", "f16", "f16", shapes=((3, 64, 32), (3, 32, 64)))
    with pytest.raises(evt.TargetError, match="there is one batch"):
        op.plan("sm90", "f16", "f16")
    strides = {field.tensor for field in made.fields if field.role == "l" and field.tensor}
    assert strides == {"A", "B", "C", "D", "s"}
    assert (made.mainloop.batched, made.mainloop.has_many) == (True, True)


def test_batches_take_the_time_of_their_tiles() -> None:
    """Batches of whole tiles take the time of one product with their rows, or a little more: each has a B."""
    request, sizes = evt.gemm("D = acc").request, {"m": 768, "n": 1024, "k": 512}
    batches, rows = {**sizes, "l": 64}, {**sizes, "m": 64 * sizes["m"], "l": 1}

    def estimates(route: str, size: dict[str, int]) -> list[float]:
        shapes = (size["l"], 64, 32), (size["l"], 32, 64)
        found = survey(packed_problem(request, "sm90", "f16", "f16", shapes), route).defaults
        return [product_microseconds(made, size, 132) for made in found]

    pairs = zip(estimates(BATCHES, batches), estimates(ROUTE, rows), strict=True)
    assert all(one <= several < 1.5 * one for several, one in pairs)


def test_values_of_the_batch_are_those_of_its_one() -> None:
    """If the modes of a tensor have a batch, the epilogue has equal classes with equal arguments."""

    def parts(text: str) -> list[tuple[str, object]]:
        found = spell(planned(text, operation="gemm")).fragment
        assert found is not None
        return [(part.type, part.arguments) for part in found.parts]

    batched = "in b: f16[l, n], s: f32[l, m], g: f32[l], x[l, m, n]; out D[l, m, n], r: f32[l]; D = g*acc*s + b + x"
    assert parts(batched + "; r = max[m, n](acc)") == parts(
        "in b: f16[n], s: f32[m], g: f32, x[m, n]; out D[m, n], r: f32; D = g*acc*s + b + x; r = max[m, n](acc)"
    )


def test_every_configuration_has_a_text() -> None:
    """A draw of the configurations that a user may ask for."""
    draw = random.Random(0)
    for dtype in OPERANDS:
        found = candidate(dtype)
        for config in draw.sample(found.configs, 6):
            down, across, splits = config.cluster
            promotes = str(ProductClass(BY_NAME[dtype]).promoted).lower()
            flags = f", {promotes}" if promotes == "true" or config.schedule == "own_stages" else ">>;"
            assert f", {across}, {down}, {splits}{flags}" in emit(found.plan(config), "k")
