"""Factors of operands that are constant over blocks of k: meaning, diagnostics, graphs, plans, texts, refusals."""

from __future__ import annotations

import random
import re

import pytest
import torch

import evt
from evt.errors import EvtError
from evt.export import Named, torch_extension
from evt.ir import format_dag, parse_dag
from evt.ir.dtype import E4M3
from evt.ir.formula import formula
from evt.ir.node import base, divisor
from evt.plan import find_target, survey
from evt.plan.cards import find_card
from evt.plan.gemm import ProductClass, fits, tile_of, tiles_of
from evt.plan.plan import OwnProduct
from evt.plan.speed import fastest
from evt.program import Program
from evt.request import packed_problem, typed_graph

HEADER = "gemm(A: e4m3[m, k], B: e4m3[n, k])\n"
DEEPSEEK = HEADER + "in sa: f32[m, k/128], sb: f32[n/128, k/128]\nA = sa*A\nB = sb*B\nD = acc"
TYPES = {"e4m3": torch.float8_e4m3fn, "bf16": torch.bfloat16, "f16": torch.float16}


def scaled(inputs: str, formulas: str, dtype: str = "e4m3") -> Program:
    return evt.gemm(f"gemm(A: {dtype}[m, k], B: {dtype}[n, k])\nin {inputs}\n{formulas}\nout D: f32[m, n]\nD = acc")


def refusal(program: Program, target: str = "sm90") -> str:
    with pytest.raises(EvtError) as caught:
        program.plan(target)
    return caught.value.diagnostics[0].message


def spread(values: torch.Tensor, modes: tuple[str, ...], extents: dict[str, int]) -> torch.Tensor:
    """Return the values of blocks for each element of the undivided modes, [outer, k]."""
    for dim, mode in enumerate(modes):
        values = values.repeat_interleave(divisor(mode), dim).narrow(dim, 0, extents[base(mode)])
    have = [base(mode) for mode in modes]
    return values if len(have) == 2 else values[None, :] if have == ["k"] else values[:, None]


# The meaning


@pytest.mark.parametrize("seed", range(12))
def test_the_reference_scales_elements_without_a_rounding(seed: int) -> None:
    draw = random.Random(seed)
    generator = torch.Generator().manual_seed(seed)
    extents = {"m": draw.randrange(1, 200), "n": draw.randrange(1, 200), "k": draw.randrange(1, 400)}
    dtype = draw.choice(list(TYPES))
    elements, exact, inputs, formulas = [], [], dict[str, torch.Tensor](), []
    for name, outer in (("A", "m"), ("B", "n")):
        element = torch.randn(extents[outer], extents["k"], generator=generator).to(TYPES[dtype])
        elements.append(element)
        product, text = element.double(), name
        for number in range(draw.randrange(1 if name == "A" else 0, 3)):
            first = name == "A" and number == 0
            widths = draw.choice((16, 64, 128, 512)), draw.choice(("", "/32", "/128"))
            shape = (f"{outer}{widths[1]}", f"k/{widths[0]}") if first or draw.random() < 0.5 else (f"k/{widths[0]}",)
            modes = shape[::-1] if draw.random() < 0.3 else shape
            values = torch.rand([-(-extents[base(mode)] // divisor(mode)) for mode in modes], generator=generator) + 0.5
            given = f"s{name}{number}"
            inputs[given] = values
            wide = spread(values.double() if len(modes) == 1 or modes == shape else values.double().T, shape, extents)
            divides = draw.random() < 0.4
            product = product / wide if divides else product * wide
            text = f"{text}/{given}" if divides else draw.choice((f"{given}*{text}", f"{text}*{given}"))
            formulas.append((given, f"{given}: f32[{', '.join(modes)}]"))
        exact.append(product)
        if text != name:
            formulas.append(("", f"{name} = {text}"))
    declared = ", ".join(text for given, text in formulas if given)
    op = scaled(declared, "\n".join(text for given, text in formulas if not given), dtype)
    result = op.reference(*elements, **inputs, float64=True)
    assert torch.allclose(result, exact[0] @ exact[1].T, rtol=1e-6, atol=1e-6)


def test_rows_of_a_linear_map_have_dimensions() -> None:
    op = evt.linear(DEEPSEEK.removeprefix(HEADER).replace("gemm", "linear"))
    a, b = torch.randn(6, 130).to(torch.float8_e4m3fn), torch.randn(200, 130).to(torch.float8_e4m3fn)
    sa, sb = torch.rand(6, 2), torch.rand(2, 2)
    flat = op.reference(a, b, sa=sa, sb=sb)
    assert torch.equal(op.reference(a.view(2, 3, 130), b, sa=sa.view(2, 3, 2), sb=sb), flat.view(2, 3, 200))


@pytest.mark.parametrize(
    ("inputs", "formulas", "factors"),
    [
        ("s: f32[m, k/64]", "A = s*A", {"A": "s"}),
        ("s: f32[m, k/64]", "A = 2*A*s", {"A": "s*2"}),
        ("s: f32[m, k/64], t: f32[k]", "A = s*(t*A)", {"A": "s"}),
        ("s: f32[m, k/64], t: f32[k]", "A = t*(s*A)", {"A": "s"}),
        ("s: f32[n, k/64]", "B = relu(B)/s", {"B": "1/s"}),
        ("s: f32[k/64], t: f32[m]", "A = t*A/s", {"A": "1/s*t"}),
        ("t: f32[m]", "A = t*A", {}),
    ],
)
def test_factors_are_the_outermost_ones(inputs: str, formulas: str, factors: dict[str, str]) -> None:
    dag = scaled(inputs, formulas).request.dag
    assert set(dag.scales) == set(factors)
    for name, text in factors.items():
        rest = "relu(B)" if "relu" in formulas else f"(t*{name})" if "t: f32[k]" in inputs else name
        assert f"{name} = {text}*{rest}" in formula(dag)
    assert parse_dag(format_dag(dag)) == dag
    assert evt.gemm(formula(dag)).request.dag.scales.keys() == dag.scales.keys()


@pytest.mark.parametrize(
    ("inputs", "formulas", "code", "message"),
    [
        ("s: f32[m, k/64]", "A = relu(s*A)", "E0411", "`s` is [m, k/64], and no factor of `A`"),
        ("s: f32[m, k/64]", "A = s + A", "E0411", "`s` is [m, k/64], and no factor of `A`"),
        ("s: f32[n, k/64]", "A = s*A", "E0411", "`s` is [n, k/64] and `A` is [m, k]"),
        ("s: f32[l, m, k/64]", "A = s*A", "E0901", "work on an operand with one `s` for each batch"),
        ("s: f32[m, k/48]", "A = s*A", "E0301", "there is no mode `k/48` here"),
        ("s: f32[m/64]", "A = s*A", "E0301", "there is no mode `m/64` here"),
        ("s: f32[m, k/64]", "C = s\nA = s*A", "E0409", "`C` is assigned and nothing reads it"),
    ],
)
def test_mistakes(inputs: str, formulas: str, code: str, message: str) -> None:
    with pytest.raises(EvtError) as caught:
        scaled(inputs, formulas)
    found = [(each.code, each.message) for each in caught.value.diagnostics]
    assert any(each == code and text.startswith(message) for each, text in found), found


def test_the_epilogue_cannot_read_them() -> None:
    with pytest.raises(EvtError, match="the product sums over k"):
        evt.gemm(HEADER + "in s: f32[m, k/128]\nA = s*A\nD = acc*s")


@pytest.mark.parametrize(
    ("shape", "expected"), [((6, 3), "expected [6, 4]"), ((4, 6), "expected [6, 4]"), ((6, 4, 1), "expected [6, 4]")]
)
def test_shapes_are_checked(shape: tuple[int, ...], expected: str) -> None:
    op = scaled("s: f32[m, k/64]", "A = s*A", "bf16")
    a, b = torch.randn(6, 200).bfloat16(), torch.randn(8, 200).bfloat16()
    with pytest.raises(EvtError, match=re.escape(expected)):
        op(a, b, s=torch.ones(shape))


def test_there_are_no_gradients_and_no_operators_of_pytorch() -> None:
    op = scaled("s: f32[m, k/64]", "A = s*A", "bf16")
    a, b = torch.randn(6, 200).bfloat16().requires_grad_(), torch.randn(8, 200).bfloat16()
    with pytest.raises(EvtError, match="E0614"):
        op(a, b, s=torch.ones(6, 4))
    with pytest.raises(EvtError, match="E0614"):
        op.gradient()
    with pytest.raises(EvtError, match="E0615"):
        op.verify(a.detach(), b, s=torch.ones(6, 4))


def test_extensions_are_refused() -> None:
    with pytest.raises(EvtError, match="factors for blocks of k"):
        torch_extension("made", [Named("scaled", evt.gemm(DEEPSEEK).request)], [find_target("sm90")])


# The plan


@pytest.mark.parametrize(
    ("inputs", "formulas", "config", "scales"),
    [
        ("sa: f32[m, k/128], sb: f32[n/128, k/128]", "A = sa*A\nB = sb*B", "128x128x128",
            "FactorOfA, FactorOfB, true, false"),
        ("sa: f32[m, k/128], sb: f32[n, k/128]", "A = sa*A\nB = sb*B", "128x128x128",
            "FactorOfA, FactorOfB, true, true"),
        ("sa: f32[m/128, k/128], sb: f32[n/64, k/128]", "A = sa*A\nB = sb*B", "64x128x128",
            "FactorOfA, FactorOfB, false, true"),
        ("sa: f32[m/128, k/128]", "A = sa*A", "192x128x128_1x2",
            "FactorOfA, evt::kit::NoFactor, true, false"),
        ("sa: f32[m/128, k/128]", "A = sa*A", "64x128x128",
            "FactorOfA, evt::kit::NoFactor, false, false"),
        ("s: f32[k/256], t: f32[n]", "B = s*t*B", "16x128x128",
            "evt::kit::NoFactor, FactorOfB, false, true"),
    ],
)  # fmt: skip
def test_factors_that_are_constant_over_a_tile_join_the_others(
    inputs: str, formulas: str, config: str, scales: str
) -> None:
    op = evt.gemm(f"{HEADER}in {inputs}\n{formulas}\nD = acc", route="gemm-own-3x", config=f"own_cooperative_{config}")
    assert f", true>, evt::kit::Scales<{scales}>>;" in op.emit("sm90")


def test_the_plan_has_the_blocks_and_strides_of_factors() -> None:
    made = evt.gemm(HEADER + "in s: bf16[k/256, n/64], t: f32[n]\nB = s*t*B\nD = acc").plan("sm90")
    assert isinstance(made.mainloop, OwnProduct)
    (factor,) = made.mainloop.factors
    assert factor.operand == "B"
    assert {each.name: each.blocks for each in factor.inputs} == {"s": (64, 256), "t": (1, 0)}
    strides = {each.name: tuple(map(str, each.strides)) for each in factor.inputs}
    assert strides == {"s": ("stride_n_of_in_s", "stride_k_of_in_s", "0"), "t": ("stride_n_of_in_t", "0", "0")}
    assert "times factors are added in f32" in str(evt.gemm(DEEPSEEK).explain("sm90"))
    assert "factors of operands: A = sa*A" in evt.gemm(DEEPSEEK).explain("sm90").details()


@pytest.mark.parametrize("dtype", ["e4m3", "bf16"])
def test_promoted_tiles_with_factors_fit(dtype: str) -> None:
    operand = typed_graph(scaled("s: f32[k/128]", "A = s*A", dtype).request).operands[0].dtype
    product = ProductClass(operand, scaled=True)
    offered, others = tiles_of(product)
    assert not any(tile.pingpong for tile in (*offered, *others))
    assert all(fits(tile, product) for tile in offered)
    plan = scaled("s: f32[k/128]", "A = s*A", dtype).plan("sm90")
    assert tile_of(plan.config, operand.bits // 8) == offered[0]


@pytest.mark.parametrize(
    ("inputs", "formulas", "dtype", "known"),
    [
        ("sa: f32[m, k/128], sb: f32[n/128, k/128]", "A = sa*A; B = sb*B", "e4m3", True),
        ("sa: f32[m/64, k/128], sb: bf16[n/64, k/256]", "A = sa*A; B = sb*B", "e4m3", True),
        ("sa: f32[m, k/128]", "A = sa*A", "e4m3", True),
        ("sa: f32[m/128, k/128]", "A = sa*A", "e4m3", False),
        ("sa: f32[m, k/128], sb: f32[n/32, k/128]", "A = sa*A; B = sb*B", "e4m3", False),
        ("sb: f32[n/128, k/128]", "B = sb*B", "e4m3", False),
        ("sa: f32[m, k/128]", "A = sa*A", "bf16", False),
    ],
)  # fmt: skip
def test_tiles_by_rows_are_for_factors_of_rows_and_of_blocks_of_columns(
    inputs: str, formulas: str, dtype: str, known: bool
) -> None:
    (found,) = survey(packed_problem(scaled(inputs, formulas, dtype).request, "sm90"), "gemm-own-3x").asked
    configs = found.search_space
    named = [name for name in configs if name.startswith("own_rows_")]
    assert bool(named) == known
    for name in named:
        tile = tile_of(configs[name], 1)
        assert (tile.rows, tile.cluster[2]) == (128, 1)
        assert tile.sums <= 96


@pytest.mark.parametrize("together", [32, 64, 128, 256])
@pytest.mark.parametrize("distance", [1, 32])
def test_pairs_are_by_rows_if_two_blocks_of_columns_share_a_factor(together: int, distance: int) -> None:
    text = (
        "linear(A: e4m3[m, k], B: e4m3[n, k])\n"
        f"in sa: f32[m, k/128], sb: f32[n/{together}, k/128]\nA = sa*A\nB = sb*B\n"
        f"out D: bf16[m, n/2]\nD = silu(even(acc, {distance}))*odd(acc, {distance})"
    )
    (found,) = survey(packed_problem(evt.linear(text).request, "sm90"), "gemm-own-3x").asked
    tiles = [tile_of(config, 1) for config in found.search_space.values()]
    assert all(tile.columns == 128 for tile in tiles if tile.by_rows)
    by_rows = [config.name for config in found.default_configs if tile_of(config, 1).by_rows]
    assert bool(by_rows) == any(tile.by_rows for tile in tiles) == (together % 128 == 0)
    for name in by_rows:
        emitted = evt.linear(text, route="gemm-own-3x", config=name).emit("sm90")
        assert f"true, false, true, {distance}>" in emitted


#: The fastest configuration of products with block scales by (m, n, k). H200, 2026-11-29.
FASTEST_BY_ROWS = {
    (1024, 2112, 7168): "own_rows_128x144x128",
    (2048, 2112, 7168): "own_rows_128x144x128",
    (4096, 2112, 7168): "own_rows_128x176x128",
    (1024, 7168, 2048): "own_rows_128x160x128",
    (1024, 7168, 16384): "own_rows_128x160x128",
    (1024, 4096, 14336): "own_rows_128x128x128",
    (1024, 28672, 4096): "own_rows_128x128x128",
    (8192, 7168, 2048): "own_rows_128x128x128",
}


@pytest.mark.parametrize("size", FASTEST_BY_ROWS, ids=str)
def test_many_rows_take_the_fastest_tile_by_rows(size: tuple[int, int, int]) -> None:
    m, n, k = size
    problem = packed_problem(
        evt.linear(DEEPSEEK.replace("gemm(", "linear(", 1)).request, "sm90", shapes=((m, k), (n, k))
    )
    plans = survey(problem, "gemm-own-3x").defaults
    chosen = plans[fastest(plans, {"m": m, "n": n, "k": k, "l": 1}, find_card("H200"))]
    assert chosen.config.name == FASTEST_BY_ROWS[size]


@pytest.mark.parametrize(
    ("columns", "blocks", "scales"),
    [
        (64, 1, "true, false"),
        (128, 2, "true, false"),
        (192, 3, "true, true"),
        (144, 3, "true, true"),  # blocks of 48
        (160, 2, "true, true"),
        (176, 1, "true, true"),
    ],
)
def test_consumers_by_rows_multiply_all_columns(columns: int, blocks: int, scales: str) -> None:
    text = evt.gemm(DEEPSEEK, route="gemm-own-3x", config=f"own_rows_128x{columns}x128").emit("sm90")
    assert f"GemmTile<{blocks}, false, 1, 1, 1, true, false, true>" in text
    assert f"Scales<FactorOfA, FactorOfB, {scales}>" in text
    assert f"wgmma.mma_async.sync.aligned.m64n{columns}k32.f32.e4m3.e4m3" in text


@pytest.mark.parametrize(
    ("epilogue", "transposed"),
    [
        ("D = acc", True),
        ("in r: f32[m], t: f32[n], a: f32; D = r*t*gelu(acc + a) * C", True),
        ("out D: f16[m, n], Z: bf16[m, n]; Z = acc; D = relu(acc)", True),
        ("out D: e4m3[m, n]; D = acc", False),
        ("in X: f32[m, n]; D = acc + X", False),
        ("out D, s: f32[n]; D = acc; s = sum[m](acc)", False),
        ("D = where(iota(n) <= iota(m), acc, 0)", False),
        ("out D, keep: b1[m, n]; D = relu(acc); keep = acc > 0", False),
        ("out D: bf16[m, n/2]; D = even(acc)*odd(acc)", False),
    ],
)
def test_vectors_and_matrices_of_16_bits_make_a_transposed_epilogue(epilogue: str, transposed: bool) -> None:
    text = DEEPSEEK.removesuffix("D = acc") + epilogue
    names = evt.gemm(text, route="gemm-own-3x").explain("sm90").configurations
    by_rows = next(name for name in names if name.startswith("own_rows_"))
    emitted = evt.gemm(text, route="gemm-own-3x", config=by_rows).emit("sm90")
    assert ("static constexpr bool kTransposed = true;" in emitted) is transposed


def test_a_transposed_epilogue_exchanges_vectors_of_rows_and_columns() -> None:
    text = DEEPSEEK.replace("D = acc", "in r: f32[m], t: bf16[n]; D = r*t*acc")
    emitted = evt.gemm(text, route="gemm-own-3x", config="own_rows_128x192x128").emit("sm90")
    columns = "evt::fragment::LanesOfTile<192>, evt::epilogue::ColumnBroadcast<evt::element::bf16, float, true>"
    assert f"in_t_type = evt::own::Part<{columns}>;" in emitted
    assert "in_r_type = evt::own::Part<evt::kit::Lanes, evt::epilogue::RowBroadcast<float, float, true>>;" in emitted


def test_blocks_of_tiles_by_rows_have_odd_strips_or_64_columns() -> None:
    offered, others = tiles_of(ProductClass(E4M3, scaled=True, by_rows=True))
    tiles = [tile for tile in (*offered, *others) if tile.by_rows]
    assert {tile.columns for tile in tiles} == set(range(64, 193, 16))
    for tile in tiles:
        strips, rest = divmod(tile.block_columns, 16)
        assert rest == tile.columns % tile.block_columns == 0
        assert strips == 4 if tile.columns % 64 == 0 else strips % 2 == 1


@pytest.mark.parametrize("target", ["sm80", "sm89", "sm100", "sm120"])
def test_other_targets_say_why(target: str) -> None:
    assert "only evt's GEMM kernel for sm90 has factors for blocks of k" in refusal(evt.gemm(DEEPSEEK), target)


@pytest.mark.parametrize(
    ("inputs", "formulas", "dtype", "reason"),
    [
        ("s: f32[m, k/64]", "A = s*A", "e4m3", "`s` is [m, k/64], and a stage has 128 elements of k"),
        ("s: f32[m, k/32]", "A = s*A", "bf16", "`s` is [m, k/32], and a stage has 64 elements of k"),
        ("s: f32[m, k/128], p: f32", "A = p*s*A", "e4m3", "the factor reads the single value `p`"),
        ("s: f64[m, k/128]", "A = s*A", "e4m3", "`s` is f64"),
        ("s: f32[m, k/128]", "A = s*relu(A)", "e4m3", "`A` has a mainloop fusion"),
        ("s: f32[m, k/128]", "A = s*A", "i8", "A is i8, and factors multiply sums of floats"),
    ],
)
def test_other_factors_are_refused(inputs: str, formulas: str, dtype: str, reason: str) -> None:
    assert reason in refusal(scaled(inputs, formulas, dtype))


def test_rows_stay_independent_of_their_number() -> None:
    op = evt.gemm(DEEPSEEK, batch_invariant=True)
    assert "partial sums of 128 elements are added in f32" in str(op.explain("sm90"))


# Groups of rows


def test_each_group_has_factors_of_its_b() -> None:
    op = evt.grouped_gemm(DEEPSEEK)
    rows, weights = torch.randn(50, 256).to(TYPES["e4m3"]), torch.randn(3, 200, 256).to(TYPES["e4m3"])
    sa, sb, ends = torch.rand(50, 2) + 0.5, torch.rand(3, 2, 2) + 0.5, torch.tensor([20, 20, 50], dtype=torch.int32)
    found = op(rows, weights, sa=sa, sb=sb, offsets=ends)
    single = evt.gemm(DEEPSEEK)
    for group, (first, end) in enumerate(((0, 20), (20, 20), (20, 50))):
        part = slice(first, end)
        assert torch.equal(found[part], single(rows[part], weights[group], sa=sa[part], sb=sb[group]))


@pytest.mark.parametrize(
    ("inputs", "message"), [("s: f32[m/128, k/128]", "groups of rows begin anywhere"), ("s: f32[m, k/128]", "")]
)
def test_blocks_of_rows_have_no_groups(inputs: str, message: str) -> None:
    text = f"{HEADER}in {inputs}\nA = s*A\nD = acc"
    op = evt.grouped_gemm(text, route="gemm-own-ragged")
    if message:
        assert message in refusal(op)
    else:
        assert op.plan("sm90").route == "gemm-own-ragged"
