"""Estimates against measured kernels, the resources that bound a kernel, and the order of formulas and kernels."""

from __future__ import annotations

import itertools
import json
import statistics

import pytest
from click.testing import CliRunner

import evt
from evt.cli import main
from evt.errors import ArgumentError, TargetError
from evt.estimate import Estimate
from evt.plan import TARGETS
from evt.plan.cards import CARDS, find_card

#: Microseconds of `relu(acc + bias + residual)` in f16 on an H200, 2026-11, by images, channels, filters, pixels, taps
#: and stride.
MEASURED = {
    (256, 3, 64, 224, 7, 2): 284.9,
    (256, 64, 64, 56, 3, 1): 92.2,
    (256, 128, 128, 28, 3, 1): 90.7,
    (256, 256, 256, 14, 3, 1): 89.6,
    (256, 512, 512, 7, 3, 1): 82.1,
    (256, 128, 128, 56, 3, 2): 107.7,
    (256, 256, 256, 28, 3, 2): 90.1,
    (256, 512, 512, 14, 3, 2): 83.8,
    (256, 64, 64, 56, 1, 1): 82.5,
    (256, 64, 256, 56, 1, 1): 247.4,
    (256, 256, 64, 56, 1, 1): 152.6,
    (256, 512, 128, 28, 1, 1): 84.7,
    (256, 256, 1024, 14, 1, 1): 71.0,
    (256, 1024, 256, 14, 1, 1): 50.1,
    (256, 512, 2048, 7, 1, 1): 58.1,
    (256, 2048, 512, 7, 1, 1): 43.5,
    (256, 256, 512, 56, 1, 2): 141.8,
    (256, 1024, 2048, 14, 1, 2): 79.6,
    (8, 1280, 1280, 16, 3, 1): 85.5,
    (2, 1280, 1280, 16, 3, 1): 38.0,
    (8, 640, 640, 32, 3, 1): 89.0,
    (8, 320, 320, 64, 3, 1): 85.8,
    (32, 64, 64, 56, 3, 1): 20.2,
    (1, 1024, 256, 14, 1, 1): 9.0,
    (1, 256, 256, 28, 3, 1): 8.8,
}
#: The time of an epilogue over another one's, as measured on an H200: the product or layer, and the two epilogues.
RATIOS = (
    ((6304, 3072, 768), "gelu(acc + bias)", "acc + bias", 1.44),
    ((16384, 1024, 1024), "gelu(acc + bias)", "acc + bias", 1.21),
    ((16384, 1024, 1024), "dropout(acc, 0.1, seed, offset)", "acc", 1.76),
    ((4096, 4096, 4096), "dropout(acc, 0.1, seed, offset)", "acc", 1.09),
    ((4096, 4096, 4096), "acc + bias", "acc", 1.01),
)


def estimated(layer: tuple[int, ...], arch: str = "h200") -> Estimate:
    images, channels, filters, pixels, taps, stride = layer
    by_cutlass = images == 256 and channels > 512
    route = ("evt" if by_cutlass else "conv-halo-3x") if taps == stride == 1 else None
    op = evt.conv2d("D = relu(acc + bias + residual)", stride=stride, padding=taps // 2, route=route)
    return op.estimate(((images, channels, pixels, pixels), (filters, channels, taps, taps)), arch, "f16", "f16")


def of_product(m: int, n: int, k: int, text: str, arch: str = "h200") -> Estimate:
    return evt.gemm(f"D = {text}", route="evt").estimate(((m, k), (k, n)), arch, "bf16", "bf16")


def test_estimates_agree_with_measurements() -> None:
    errors = sorted(abs(estimated(layer).us / us - 1) for layer, us in MEASURED.items())
    assert statistics.median(errors) < 0.06
    assert errors[int(0.9 * len(errors))] < 0.12


def test_estimates_rank_measured_kernels() -> None:
    """Pairs whose times differ by 10 %."""
    times = {layer: (us, estimated(layer).us) for layer, us in MEASURED.items()}
    pairs = [pair for pair in itertools.combinations(times.values(), 2) if not 0.9 < pair[0][0] / pair[1][0] < 1.1]
    right = [(first[0] < second[0]) == (first[1] < second[1]) for first, second in pairs]
    assert sum(right) > 0.95 * len(pairs) > 200


@pytest.mark.parametrize(("sizes", "text", "base", "ratio"), RATIOS)
def test_functions_of_an_epilogue_take_time(sizes: tuple[int, int, int], text: str, base: str, ratio: float) -> None:
    found = of_product(*sizes, text).us / of_product(*sizes, base).us
    assert found == pytest.approx(ratio, rel=0.12)


@pytest.mark.parametrize(("images", "side", "taps"), [(2, 112, 3), (16, 40, 3), (64, 14, 5)])
def test_functions_take_time_after_depthwise_layers(images: int, side: int, taps: int) -> None:
    def us(text: str) -> float:
        op = evt.conv2d(f"D = {text}", padding=taps // 2, groups=240, route="conv-depthwise-3x", config="depthwise_2x7")
        return op.estimate(((images, 240, side, side), (240, 1, taps, taps)), "h100", "bf16", "bf16").us

    light, silu, more = map(us, ("relu(acc + bias)", "silu(acc + bias)", "silu(silu(acc + bias))"))
    assert 1.02 * light < silu < more < 2 * light


@pytest.mark.parametrize(
    ("found", "bound"),
    [
        (of_product(8192, 8192, 8192, "acc"), "tensor cores"),
        (estimated((256, 256, 64, 56, 1, 1)), "memory"),
        (of_product(16, 256, 256, "acc"), "launch"),
        (of_product(16, 2048, 4096, "acc"), "waves"),
        (of_product(8192, 8192, 256, "mish(gelu(acc)) * tanh(acc)"), "epilogue instructions"),
    ],
)
def test_the_resource_that_bounds_a_kernel(found: Estimate, bound: str) -> None:
    assert found.bound == bound
    assert f"bound by {bound}" in str(found)
    assert found.us >= max(found.bounds.values())
    assert {"tensor cores", "memory", "L2", "shared memory", "epilogue instructions", "launch", "waves"} == {
        *found.bounds
    }


@pytest.mark.parametrize("groups", [4, 32, 192])
def test_groups_are_bound_by_their_own_channels(groups: int) -> None:
    """A resource of a convolution with groups is never busy for longer than in the convolution without them."""

    def of(number: int) -> Estimate:
        op = evt.conv2d("D = relu(acc)", padding=1, groups=number, route="conv-halo-groups-3x" if number > 1 else None)
        return op.estimate(((32, 768, 28, 28), (768, 768 // number, 3, 3)), "h100", "f16", "f16")

    grouped, whole = of(groups), of(1)
    assert grouped.us < 0.6 * whole.us
    for resource in ("L2", "shared memory"):
        assert grouped.bounds[resource] < 0.6 * whole.bounds[resource]


def test_instructions_are_those_of_the_functions() -> None:
    counts = [of_product(512, 512, 512, text).instructions for text in ("acc", "relu(acc)", "gelu(acc)", "mish(acc)")]
    assert counts == sorted(set(counts))
    assert of_product(512, 512, 512, "acc * exp(s[m])").instructions == 1  # a row's value is computed once


def test_every_target_has_cards() -> None:
    for name in TARGETS:
        found = evt.gemm("D = acc").estimate(((1024, 1024), (1024, 1024)), name, "f16", "f16")
        assert found.card is find_card(name)
        assert found.card.target == name
        assert 0 < found.us < 1000
    fitted = {card.name for card in CARDS.values() if card.is_fitted}
    assert fitted == {"H100", "H200"}
    assert "data sheet" in str(estimated((1, 64, 64, 56, 3, 1), "a100"))


@pytest.mark.parametrize(
    ("name", "card"),
    [
        ("NVIDIA H200", "H200"),
        ("h100 80GB HBM3", "H100"),
        ("NVIDIA H100 PCIe", "H100 PCIe"),
        ("sm_90a", "H100"),
        ("rtx4090", "RTX 4090"),
        ("NVIDIA GeForce RTX 3080", "A10"),
        ("A100-SXM4-80GB", "A100"),
    ],
)
def test_names_of_cards(name: str, card: str) -> None:
    assert find_card(name).name == card


def test_more_bandwidth_helps_what_memory_bounds() -> None:
    layer = (256, 64, 256, 56, 1, 1)
    assert estimated(layer, "h100").us > 1.2 * estimated(layer, "h200").us
    many = of_product(8192, 8192, 8192, "acc", "h100").us / of_product(8192, 8192, 8192, "acc", "h200").us
    assert many == pytest.approx(1, rel=0.01)


def test_every_kernel_is_estimated() -> None:
    op, shapes = evt.conv2d("D = relu(acc + bias)", padding=1, groups=96), ((8, 96, 56, 56), (96, 1, 3, 3))
    assert op.estimate(shapes, "h100", "f16", "f16").route == "conv-depthwise-3x"
    product = evt.linear("D = relu(acc + bias)").estimates(((512, 512), (512, 512)), "h100", "f16", "f16")
    assert {each.route for each in product} > {"stock-3x", "gemm-own-3x", "evt-2x"}
    assert [each.us for each in product] == sorted(each.us for each in product)


def test_mistakes() -> None:
    op = evt.gemm("D = acc")
    with pytest.raises(ArgumentError, match="E0604"):
        op.estimate(((0, 8), (8, 8)))
    with pytest.raises(ArgumentError, match="E0604"):
        op.estimate(((8, 9), (8, 8)))
    with pytest.raises(TargetError, match="E0501"):
        op.estimate(((8, 8), (8, 8)), "h900")


def test_explain_has_the_estimate() -> None:
    op, shapes = evt.gemm("D = relu(acc + bias)"), ((4096, 1024), (1024, 4096))
    found = op.explain("h200", "f16", "f16", shapes=shapes)
    assert found.estimate == op.estimate(shapes, "h200", "f16", "f16")
    assert found.to_json()["estimate"] == found.estimate.to_json()
    assert f"{found.estimate.us:.1f} us on H200" in str(found)
    assert f"bound by {found.estimate.bound}" in str(found)
    assert op.explain("h200").estimate is None


def run(*arguments: str) -> str:
    result = CliRunner().invoke(main, ["compare", *arguments])
    assert result.exit_code == 0, result.output
    return result.stdout


def test_compare_ranks_formulas() -> None:
    formulas = "D = gelu(acc + bias)", "D = acc", "D = dropout(acc, 0.1, seed, offset)"
    sizes = "--m", "6304", "--n", "3072", "--k", "768", "--arch", "h200"
    rows = json.loads(run(*formulas, *sizes, "--json"))["estimates"]
    assert [row["program"] for row in rows] == ["D = acc", "D = gelu(acc + bias)", formulas[2]]
    lines = run(*formulas, *sizes).splitlines()
    assert [line.split("  ")[0].strip() for line in lines[1:4]] == [row["program"] for row in rows]
    lengths = [line.count("█") for line in lines[1:4]]
    assert lengths == sorted(lengths)
    assert any("H200" in line for line in lines[-2:])


def test_compare_ranks_routes_and_configurations() -> None:
    given = "D = relu(acc + bias)", "--m", "256", "--n", "512", "--k", "4096", "--json"
    routes = [row["route"] for row in json.loads(run(*given, "--each", "route"))["estimates"]]
    assert len(routes) == len(set(routes)) > 2
    found = json.loads(run(*given, "--each", "config", "--most", "3"))
    assert len(found["estimates"]) == 3
    assert found["omitted"] > 0


def test_compare_needs_sizes_of_a_convolution() -> None:
    result = CliRunner().invoke(main, ["compare", "D = acc", "--op", "conv2d"])
    assert (result.exit_code, "--a-shape" in result.output) == (2, True)


def test_a_kernel_that_cannot_run_a_call_has_no_estimate() -> None:
    """Eight thread blocks split k, and k has one stage."""
    op = evt.linear("D = acc", route="own", config="own_cooperative_64x128x64_1x1x8")
    shapes = (8, 8), (8, 8)
    refused = r"E0804\]: k = 8: own_cooperative_64x128x64_1x1x8 has 8 thread blocks"
    with pytest.raises(evt.LaunchError, match=refused):
        op.estimate(shapes, "h100", "f16", "f16")
    with pytest.raises(evt.LaunchError, match=refused):
        op.explain("h100", "f16", "f16", shapes=shapes)
    known = {each.config for each in evt.linear("D = acc").estimates(shapes, "h100", "f16", "f16")}
    assert "own_pingpong_64x64x64" in known
    assert "own_cooperative_64x128x64_1x1x4" not in known


def test_both_operands_have_shapes() -> None:
    with pytest.raises(ArgumentError, match=r"E0607\](.|\n)*expected the shapes of A and B"):
        evt.linear("D = acc").estimate(((8, 8),), "h100")


@pytest.mark.parametrize("batches", [2, 16, 64])
def test_kernels_of_single_products_take_a_launch_for_each_batch(batches: int) -> None:
    """64 batches were estimated at the time of one: GPT-J's attention launched 512 kernels a step."""
    formula = "D = acc/8; D1 = max[n](acc)"
    single = evt.gemm(formula, route="gemm-own-3x").estimate(((512, 128), (128, 512)), "h200", "bf16", "bf16")
    shapes = (batches, 512, 128), (batches, 128, 512)
    own = evt.gemm(formula, route="gemm-own-3x").estimate(shapes, "h200", "bf16", "bf16")
    assert own.us == pytest.approx(batches * single.us)
    assert evt.gemm(formula).estimate(shapes, "h200", "bf16", "bf16").us < own.us
