"""B of 4 bits: packing, the prepared layout, meaning, zero points, plans, texts, refusals."""

from __future__ import annotations

import random
from itertools import product
from typing import Any

import pytest
import torch

import evt
from evt.errors import EvtError
from evt.ir.dtype import BY_NAME
from evt.launch.gemm import shape as launch_of
from evt.plan import survey
from evt.plan.cards import find_card
from evt.plan.gemm import FEW_SHARED_BYTES, ProductClass, Tile, fits, tile_of, tiles_of
from evt.plan.geometry.halo import SHARED_BYTES
from evt.plan.plan import OwnProduct
from evt.plan.speed import duration
from evt.program import Program
from evt.reference.int4 import unpacked
from evt.request import packed_problem, problem_sizes
from evt.runtime.arguments import bind

TYPES = {"bf16": torch.bfloat16, "f16": torch.float16}
W4A16 = "in s: bf16[n, k/128], z: i8[n, k/128]\nB = s*(B - z)\nD = acc"
W8A16 = "in s: f32[n]\nB = s*B\nD = acc"


def packed(text: str, a: str = "bf16", b: str = "i4", **settings: Any) -> Program:
    return evt.linear(f"linear(A: {a}[m, k], B: {b}[n, k])\n{text}", **settings)


def refusal(text: str, a: str = "bf16", target: str = "sm90") -> str:
    with pytest.raises(EvtError) as caught:
        packed(text, a).plan(target)
    return caught.value.diagnostics[0].message


# The layouts


@pytest.mark.parametrize("signed", [True, False])
@pytest.mark.parametrize("shape", [(8, 128), (72, 256), (3, 16, 384), (0, 128), (2, 8, 0)])
def test_layouts_keep_the_elements(signed: bool, shape: tuple[int, ...]) -> None:
    least = -8 if signed else 0
    values = torch.randint(least, least + 16, shape, generator=torch.Generator().manual_seed(len(shape)))
    bytes_ = evt.pack_int4(values, signed=signed)
    words = evt.prepare(bytes_)
    dtype = BY_NAME["i4" if signed else "u4"]
    assert bytes_.shape == (*shape[:-1], shape[-1] // 2)
    assert words.shape == (*shape[:-2], shape[-2] // 8, shape[-1] // 128, 32, 4)
    assert torch.equal(unpacked(dtype, bytes_), values.to(torch.int8))
    assert torch.equal(unpacked(dtype, words), values.to(torch.int8))
    assert evt.prepare(words) is words


def test_the_words_are_those_of_pytorch() -> None:
    """The loop of matrix_to_m16n8k16_Bint4_layout, PyTorch's int4mm.cu."""
    values = torch.randint(0, 16, (16, 256), generator=torch.Generator().manual_seed(0))
    words = evt.prepare(evt.pack_int4(values, signed=False))
    for tile, outer, lane, pair in product(range(2), range(2), range(32), range(4)):
        ks = [outer * 128 + (2 * pair + which) * 16 + lane % 4 * 2 + add for which in (0, 1) for add in (0, 1, 8, 9)]
        v = [int(values[tile * 8 + lane // 4, k]) for k in ks]
        order = (v[7], v[5], v[3], v[1], v[6], v[4], v[2], v[0])
        word = int("".join(f"{each:04b}" for each in order), 2)
        assert int(words[tile, outer, lane, pair]) & 0xFFFFFFFF == word


@pytest.mark.parametrize(
    ("call", "code"),
    [
        (lambda: evt.pack_int4(torch.full((2, 4), 8)), "E0607"),
        (lambda: evt.pack_int4(torch.full((2, 4), -1), signed=False), "E0607"),
        (lambda: evt.pack_int4(torch.full((2, 4), 0.5)), "E0607"),
        (lambda: evt.pack_int4(torch.zeros(2, 3)), "E0604"),
        (lambda: evt.pack_int4([1, 2]), "E0607"),
        (lambda: evt.prepare(torch.zeros(4, 64, dtype=torch.uint8)), "E0604"),
        (lambda: evt.prepare(torch.zeros(8, 32, dtype=torch.uint8)), "E0604"),
        (lambda: evt.prepare(torch.zeros(8, 64)), "E0603"),
        (lambda: packed("D = acc")(torch.zeros(2, 256).bfloat16(), torch.zeros(8, 64, dtype=torch.uint8)), "E0604"),
        (lambda: packed("D = acc")(torch.zeros(2, 128).bfloat16(), torch.zeros(8, 128, dtype=torch.int8)), "E0603"),
        (lambda: packed("D = acc")(torch.zeros(2, 128).bfloat16(), torch.zeros(8, 128, dtype=torch.int32)), "E0604"),
    ],
)
def test_other_tensors_are_refused(call, code) -> None:
    with pytest.raises(EvtError) as caught:
        call()
    assert caught.value.diagnostics[0].code == code


# The meaning


@pytest.mark.parametrize("seed", range(10))
def test_the_reference_dequantises(seed: int) -> None:
    draw = random.Random(seed)
    generator = torch.Generator().manual_seed(seed)
    m, n, k = draw.randrange(1, 20), 8 * draw.randrange(1, 6), 128 * draw.randrange(1, 4)
    a, b, block = draw.choice(list(TYPES)), draw.choice(["i4", "u4"]), 128 * draw.choice([1, 2])
    least = -8 if b == "i4" else 0
    values = torch.randint(least, least + 16, (n, k), generator=generator)
    x = torch.randn(m, k, generator=generator).to(TYPES[a])
    weight, element = values.double(), "B"
    inputs, declared = dict[str, torch.Tensor](), []
    if draw.random() < 0.7:
        if draw.random() < 0.3:
            zero = torch.tensor(float(draw.randrange(max(least, 1), 9)))
            element, spread = f"(B - {int(zero)})", zero
        else:
            z = torch.randint(-4, 5, (n, -(-k // 128)), generator=generator).to(torch.int8)
            inputs["z"], element, spread = z, "(B - z)", z.repeat_interleave(128, 1)[:, :k]
            declared.append("z: i8[n, k/128]")
        weight = weight - spread.double()
    if draw.random() < 0.7:
        s = torch.rand(n, -(-k // block), generator=generator).bfloat16()
        inputs["s"], weight = s, weight * s.repeat_interleave(block, 1)[:, :k].double()
        declared.append(f"s: bf16[n, k/{block}]")
        element = f"s*{element}"
    else:
        s = torch.rand(n, generator=generator)
        inputs["s"], weight = s, weight * s.double()[:, None]
        declared.append("s: f32[n]")
        element = f"s*{element}"
    op = packed(f"in {', '.join(declared)}\nB = {element}\nout D: f32[m, n]\nD = acc", a, b)
    assert op.plan("sm90").route == "gemm-own-3x"
    weights = evt.pack_int4(values, signed=b == "i4")
    for given in (weights, evt.prepare(weights)):
        torch.testing.assert_close(op(x, given, **inputs).double(), x.double() @ weight.T, rtol=1e-5, atol=1e-4)


def test_a_float_zero_point_is_rounded_to_the_type_of_a() -> None:
    generator = torch.Generator().manual_seed(0)
    values = torch.randint(0, 16, (16, 128), generator=generator)
    x, z = torch.randn(4, 128, generator=generator).bfloat16(), torch.randn(16, generator=generator).bfloat16()
    op = packed("in z: bf16[n]\nB = B + z\nout D: f32[m, n]\nD = acc", "bf16", "u4")
    weight = (values.float() + z.float()[:, None]).bfloat16()
    found = op(x, evt.prepare(evt.pack_int4(values, signed=False)), z=z)
    torch.testing.assert_close(found.double(), x.double() @ weight.double().T, rtol=1e-5, atol=1e-4)


def test_gradients_of_a() -> None:
    values = torch.randint(-8, 8, (16, 128), generator=torch.Generator().manual_seed(0))
    x, s = torch.ones(4, 128).bfloat16().requires_grad_(), torch.arange(16) / 16
    packed("in s: f32[n]\nB = s*B\nout D: f32[m, n]\nD = acc")(x, evt.pack_int4(values), s=s).sum().backward()
    wanted = (values * s[:, None]).sum(0)
    assert x.grad is not None
    torch.testing.assert_close(x.grad.float(), wanted.expand(4, 128), rtol=2e-2, atol=0.2)
    with pytest.raises(EvtError, match="E0614"):
        packed("in s: f32[n]\nB = s*(B - 2)\nD = acc")(x, evt.pack_int4(values), s=s)


def test_groups_have_a_weight_each() -> None:
    generator = torch.Generator().manual_seed(0)
    values = torch.randint(-8, 8, (3, 16, 128), generator=generator)
    x, s = torch.randn(9, 128, generator=generator).bfloat16(), torch.rand(3, 16, 1, generator=generator)
    op = evt.grouped_gemm("gemm(A: bf16[m, k], B: i4[n, k]); in s: f32[n, k/128]; B = s*B; out D: f32[m, n]; D = acc")
    ends = torch.tensor([2, 2, 9], dtype=torch.int32)
    found = op(x, evt.prepare(evt.pack_int4(values)), offsets=ends, s=s)
    weight = values.double() * s.double()
    wanted = torch.cat([x[:2].double() @ weight[0].T, x[2:].double() @ weight[2].T])
    torch.testing.assert_close(found.double(), wanted, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("weights", [1, 3])
def test_batches_have_a_weight_each_or_share_one(weights: int) -> None:
    values = torch.randint(-8, 8, (3, 16, 128), generator=torch.Generator().manual_seed(0))
    values = values if weights == 3 else values[0]
    op, x = evt.gemm("gemm(A: bf16[m, k], B: i4[n, k]); out D: f32[m, n]; D = acc"), torch.randn(3, 4, 128).bfloat16()
    weight = evt.prepare(evt.pack_int4(values))
    torch.testing.assert_close(op(x, weight).double(), x.double() @ values.double().mT, rtol=1e-5, atol=1e-4)
    argument = bind(op.request, x, weight, {}, {}).tensors["B"]
    assert (argument.strides["l"], argument.layout.batch) == (
        (16 * 128 // 2, "strided") if weights == 3 else (0, "shared")
    )


# Plans and texts


@pytest.mark.parametrize("scaled", [True, False])
def test_tiles_have_whole_groups_of_k(scaled: bool) -> None:
    product = ProductClass(BY_NAME["bf16"], scaled=scaled, converted=True, packed=True)
    offered, others = tiles_of(product)
    assert offered
    for tile in (*offered, *others):
        assert (tile.row_bytes, tile.blocks) == (256, 1)
        assert fits(tile, product)
    plan = packed("in s: f32[n, k/128]\nB = s*B\nD = acc" if scaled else "D = acc").plan("sm90")
    assert tile_of(plan.config, 2) == offered[0]


@pytest.mark.parametrize(
    ("text", "b", "kernel"),
    [
        ("D = acc", "i4", "NoScales, evt::kit::Packed<evt::element::bf16, 8>>;"),
        ("B = B - 8\nD = acc", "u4", "NoScales, evt::kit::Packed<evt::element::bf16, 8>>;"),
        ("B = B + 1\nD = acc", "i4", "NoScales, evt::kit::Packed<evt::element::bf16, 7>>;"),
        ("in s: f32[n]\nB = s*(B - 3)\nD = acc", "u4", "NoScales, evt::kit::Packed<evt::element::bf16, 3>>;"),
        (
            W4A16,
            "i4",
            "ZeroPoints<ZeroPointOfB, evt::element::bf16, false, 23>>, evt::kit::Packed<evt::element::bf16, 8>>;",
        ),
        ("in z: bf16[k/128]\nB = B - z\nD = acc", "i4", "ZeroPoints<ZeroPointOfB, evt::element::bf16>>"),
        ("in z: bf16[k/128]\nB = B + z\nD = acc", "u4", "ZeroPoints<ZeroPointOfB, evt::element::bf16, true>>"),
    ],
)
def test_zero_points_are_constants_or_inputs(text: str, b: str, kernel: str) -> None:
    op = packed(text, "bf16", b, route="own")
    assert kernel in op.emit("sm90")
    loop = op.plan("sm90").mainloop
    assert isinstance(loop, OwnProduct)
    assert loop.is_packed


#: The microseconds of products (m, n, k) on a card by the configuration, 2026-11: W4A16 and W8A16.
MEASURED = {
    ("H200", W4A16, 144, 3072, 8192): {
        "own_cooperative_96x128x128_1x1x2": 30.1,
        "own_cooperative_64x128x128": 37.5,
        "own_cooperative_128x128x128_1x1x2": 41.0,
    },
    ("H200", W4A16, 174, 12288, 4096): {
        "own_cooperative_88x128x128": 45.4,
        "own_cooperative_96x128x128": 48.7,
        "own_cooperative_104x128x128": 49.5,
        "own_cooperative_64x128x128": 53.4,
        "own_cooperative_128x128x128": 55.8,
    },
    ("H200", W4A16, 32, 4096, 14336): {
        "own_stages_64x64x128_1x1x2": 28.5,
        "own_stages_16x64x128_1x1x2": 30.5,
        "own_cooperative_16x128x128_1x1x2": 30.8,
        "own_stages_16x64x128_1x1x4": 35.8,
    },
    ("H200", W4A16, 64, 1280, 8192): {
        "own_stages_64x64x128_1x1x2": 17.0,
        "own_stages_16x64x128_1x1x2": 19.8,
        "own_cooperative_16x128x128_1x1x2": 19.9,
        "own_stages_16x64x128_1x1x4": 20.1,
    },
    ("H100", W4A16, 64, 6144, 4096): {
        "own_cooperative_64x128x128_1x1x2": 18.9,
        "own_stages_64x64x128_1x1x2": 22.9,
        "own_cooperative_64x128x128": 25.4,
    },
    ("H100", W8A16, 64, 6144, 4096): {
        "own_pingpong_64x64x128": 21.1,
        "own_stages_64x64x128_1x1x2": 26.8,
    },
    ("H100", W4A16, 64, 4096, 4096): {
        "own_stages_64x64x128_1x1x2": 15.0,
        "own_cooperative_64x128x128_1x1x2": 18.4,
        "own_cooperative_64x128x128": 24.8,
    },
    ("H100", W8A16, 64, 4096, 4096): {
        "own_stages_64x64x128_1x1x2": 17.7,
        "own_pingpong_64x64x128": 18.9,
    },
    ("H100", W4A16, 64, 28672, 4096): {
        "own_cooperative_64x128x128": 44.4,
        "own_cooperative_64x128x128_1x1x2": 56.1,
        "own_stages_64x64x128_1x1x2": 67.0,
    },
    ("H100", W8A16, 64, 28672, 4096): {
        "own_pingpong_64x64x128": 63.5,
        "own_stages_64x64x128_1x1x2": 77.1,
    },
    ("H100", W4A16, 64, 4096, 14336): {
        "own_stages_64x64x128_1x1x2": 27.6,
        "own_cooperative_64x128x128_1x1x2": 38.8,
        "own_cooperative_64x128x128": 66.1,
    },
    ("H100", W8A16, 64, 4096, 14336): {
        "own_stages_64x64x128_1x1x2": 37.2,
        "own_pingpong_64x64x128": 45.4,
    },
}


#: Microseconds of a launch of few rows in a CUDA graph of launches that follow each other with different weights.
IN_A_LOOP = {
    (W4A16, 1, 6144, 4096): {
        "own_stages_16x64x128_1x1x2": 7.1,
        "own_stages_16x64x128_1x1x4": 9.7,
        "own_cooperative_16x128x128_1x1x2": 10.7,
        "own_cooperative_16x128x128": 14.9,
    },
    (W4A16, 16, 6144, 4096): {
        "own_stages_16x64x128_1x1x2": 8.2,
        "own_stages_16x64x128_1x1x4": 10.5,
        "own_cooperative_16x128x128_1x1x2": 12.6,
        "own_cooperative_16x128x128": 17.6,
    },
    (W4A16, 1, 5120, 5120): {
        "own_stages_16x64x128_1x1x2": 8.1,
        "own_stages_16x64x128_1x1x4": 10.6,
        "own_cooperative_16x128x128_1x1x2": 12.3,
        "own_cooperative_16x128x128": 15.5,
    },
    (W8A16, 1, 5120, 5120): {
        "own_stages_16x64x128_1x1x2": 11.3,
        "own_stages_16x64x128_1x1x4": 13.4,
        "own_pingpong_16x64x128": 17.8,
    },
    (W4A16, 1, 4096, 4096): {
        "own_stages_16x64x128_1x1x2": 6.4,
        "own_cooperative_16x128x128_1x1x2": 7.8,
        "own_stages_16x64x128_1x1x4": 8.2,
        "own_cooperative_16x128x128": 12.4,
    },
    (W8A16, 16, 4096, 4096): {
        "own_stages_16x64x128_1x1x2": 10.1,
        "own_stages_16x64x128_1x1x4": 11.2,
        "own_pingpong_16x64x128": 14.0,
    },
    (W4A16, 8, 28672, 4096): {
        "own_cooperative_16x128x128": 21.6,
        "own_cooperative_16x128x128_1x1x2": 22.5,
        "own_stages_16x64x128_1x1x2": 24.6,
        "own_stages_16x64x128_1x1x4": 33.8,
    },
    (W8A16, 1, 28672, 4096): {
        "own_pingpong_16x64x128": 34.6,
        "own_stages_16x64x128_1x1x2": 36.0,
        "own_stages_16x64x128_1x1x4": 42.8,
    },
    (W4A16, 1, 4096, 14336): {
        "own_stages_16x64x128_1x1x2": 16.2,
        "own_stages_16x64x128_1x1x4": 16.9,
        "own_cooperative_16x128x128_1x1x2": 19.3,
        "own_cooperative_16x128x128": 38.0,
    },
    (W8A16, 16, 4096, 14336): {
        "own_stages_16x64x128_1x1x2": 24.0,
        "own_stages_16x64x128_1x1x4": 24.5,
        "own_pingpong_16x64x128": 35.6,
    },
    (W4A16, 2, 1280, 8192): {
        "own_stages_16x64x128_1x1x4": 6.5,
        "own_stages_16x64x128_1x1x2": 7.1,
        "own_cooperative_16x128x128_1x1x2": 11.3,
        "own_cooperative_16x128x128": 20.1,
    },
    (W4A16, 4, 8192, 1024): {
        "own_stages_16x64x128_1x1x2": 4.3,
        "own_cooperative_16x128x128_1x1x2": 4.9,
        "own_cooperative_16x128x128": 5.9,
        "own_stages_16x64x128_1x1x4": 8.5,
    },
    (W8A16, 1, 8192, 1024): {
        "own_stages_16x64x128_1x1x2": 5.4,
        "own_pingpong_16x64x128": 6.1,
        "own_stages_16x64x128_1x1x4": 9.4,
    },
}
#: The microseconds of a single launch that a loop hides.
HIDDEN = 5.1


def estimated(text: str, card: str, *sizes: int) -> dict[str, float]:
    """Return the estimated microseconds of the offered configurations."""
    m, n, k = sizes
    program, shapes = packed(text, b="i4" if text == W4A16 else "i8", route="own"), ((m, k), (n, k))
    found = survey(packed_problem(program.request, "sm90", None, None, shapes))
    extents = problem_sizes(program.request, shapes)
    return {each.config.name: duration(each, extents, find_card(card)).total for each in found.defaults}


@pytest.mark.parametrize(
    "size", MEASURED, ids=lambda size: f"{size[0]}-{'W4A16' if size[1] == W4A16 else 'W8A16'}-{size[2:]}"
)
def test_a_call_takes_a_fast_tile(size: tuple[str, str, int, int, int]) -> None:
    (name, text, *sizes), times = size, MEASURED[size]
    found = estimated(text, name, *sizes)
    for config, us in times.items():
        assert found[config] == pytest.approx(us, rel=0.25)
    chosen = min(found, key=found.__getitem__)
    assert chosen not in times or times[chosen] <= 1.05 * min(times.values())


@pytest.mark.parametrize("size", IN_A_LOOP, ids=lambda size: f"{'W4A16' if size[0] == W4A16 else 'W8A16'}-{size[1:]}")
def test_a_call_of_few_rows_takes_the_fastest_tile_of_a_loop(size: tuple[str, int, int, int]) -> None:
    (text, *sizes), times = size, IN_A_LOOP[size]
    found = estimated(text, "H200", *sizes)
    for config, us in times.items():
        assert found[config] == pytest.approx(us + HIDDEN, rel=0.25)
    assert times[min(found, key=found.__getitem__)] == min(times.values())


@pytest.mark.parametrize(
    "config", ["own_stages_16x64x128_1x1x2", "own_stages_16x64x128_1x1x4", "own_cooperative_16x128x128"]
)
def test_no_ctas_of_few_rows_share_an_sm_if_all_have_one(config: str) -> None:
    """CTAs of the kernel before occupy half of each SM. The next ones would share the rest of a few SMs."""
    found = survey(packed_problem(packed(W4A16, config=config, route="own").request, "sm90")).defaults
    (plan,) = [each for each in found if each.config.name == config]
    fields = {field.name for field in plan.fields} | set("mnkl")
    most = 120 if config.endswith("1x1x4") else 132
    blocks = set()
    for n in range(1024, 20480, 512):
        made = launch_of(plan, dict.fromkeys(fields, 4096) | {"m": 16, "n": n, "k": 4096, "l": 1}, 132)
        blocks.add(made.grid > most)
        assert made.shared_bytes == (FEW_SHARED_BYTES if made.grid > most else SHARED_BYTES)
    assert blocks == {False, True}


def test_consumers_by_stages_share_columns() -> None:
    """Each has every other stage, so a row is summed in another order than in a single CTA."""
    config = "own_stages_16x64x128_1x1x2"
    op = packed(W4A16, route="own", config=config)
    assert "GemmTile<1, false, 1, 1, 2, true, false, false, 0, false, true>" in op.emit("sm90")
    plan = op.plan("sm90")
    assert tile_of(plan.config, 2) == Tile(16, 1, False, (1, 1, 2), 256, by_stages=True)
    with pytest.raises(EvtError, match="shares the k of a tile among thread blocks"):
        packed(W4A16, route="own", config=config, batch_invariant=True).plan("sm90")


def test_explain_names_factors_and_zero_points() -> None:
    details = packed(W4A16).explain("sm90").details()
    assert "sums of 128 elements of k times factors are added in f32" in details


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("in s: f32[n, k/64]\nB = s*B\nD = acc", "`s` is [n, k/64], and a stage has 128 elements of k"),
        ("in z: i32[n, k/128]\nB = B - z\nD = acc", "the zero point `z` is i32: expected i8, u8 or bf16"),
        ("B = B - 100\nD = acc", "the zero point is neither an input nor a whole number from -8 to 64"),
        ("B = relu(B)\nD = acc", "`B` has a mainloop fusion"),
        ("in z: i8[n, k/128]\nB = relu(B - z)\nD = acc", "`z` is [n, k/128], and no factor of `B` or zero point"),
        ("in x: i4[m, n]\nD = acc + x", "input `x` is i4, which is not a type of inputs"),
        ("D = i4(acc)", "there is no cast to i4"),
    ],
)
def test_other_formulas_are_refused(text: str, reason: str) -> None:
    assert reason in refusal(text)


def test_other_products_are_refused() -> None:
    assert "`A` is f32 and `B` is i4" in refusal("D = acc", "f32")
    for target in ("sm80", "sm100"):
        assert "only evt's GEMM kernel for sm90 converts B" in refusal("B = B - 1\nD = acc", target=target)
