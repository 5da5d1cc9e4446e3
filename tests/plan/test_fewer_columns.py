"""Blocks of 8 to 128 columns, and reductions and blocks of values of pairs."""

from __future__ import annotations

import pytest
import torch

import evt
from evt.plan.epilogue.computes import BlockReduce, FirstColumns
from evt.plan.epilogue.results import Combined
from evt.plan.epilogue.writes import BlockStore, Reduction

WIDTHS = (8, 16, 32, 64, 128)
M, N, K = 3, 256, 5


def operands() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(5)
    a = torch.randint(-3, 4, (2, M, K), generator=generator).float()
    b = torch.randint(-3, 4, (K, N), generator=generator).float()
    return a, b, a @ b


def pairs(x: torch.Tensor, distance: int) -> tuple[torch.Tensor, torch.Tensor]:
    apart = x.unflatten(-1, (-1, 2, distance))
    return apart[..., 0, :].flatten(-2), apart[..., 1, :].flatten(-2)


@pytest.mark.parametrize("width", WIDTHS)
def test_blocks(width) -> None:
    a, b, acc = operands()
    op = evt.gemm(f"out D, s: f32[m, n/{width}]; s = max[n%{width}](abs(acc)); D = acc/(s + 1)")
    found = op(a, b)
    amax = acc.abs().unflatten(-1, (-1, width)).amax(-1)
    assert torch.equal(found.s, amax)
    torch.testing.assert_close(found.D, acc / (amax.repeat_interleave(width, -1) + 1))


@pytest.mark.parametrize("distance", [1, 8, 32])
def test_reductions_of_pairs(distance) -> None:
    a, b, acc = operands()
    x = f"even(acc, {distance})*odd(acc, {distance})"
    op = evt.gemm(
        f"""
        out D: f32[m, n/2], rows: f32[m], columns: f32[n/2], amax, total, blocks: f32[m, n/128]
        D = {x}
        rows = sum[n](D)
        columns = sum[m](D)
        amax = max[m, n](abs(D))
        total = sum[l, m, n](D)
        blocks = sum[n%64](D)
        """
    )
    found = op(a, b)
    first, second = pairs(acc, distance)
    value = first * second
    assert torch.equal(found.D, value)
    assert torch.equal(found.rows, value.sum(-1))
    assert torch.equal(found.columns, value.sum(-2))
    assert torch.equal(found.amax, value.abs().amax((-2, -1)))
    assert torch.equal(found.total, value.sum())
    assert torch.equal(found.blocks, value.unflatten(-1, (-1, 64)).sum(-1))


def test_reductions_of_blocks_count_each_once() -> None:
    a, b, acc = operands()
    op = evt.gemm("out D, s: f32[m], c: f32[n/32]; x = max[n%32](acc); D = acc; s = sum[n](x); c = sum[m](x)")
    found, blocks = op(a, b), acc.unflatten(-1, (-1, 32)).amax(-1)
    assert torch.equal(found.s, blocks.sum(-1))
    assert torch.equal(found.c, blocks.sum(-2))


def test_pairs_meet_blocks_of_pairs_and_of_columns() -> None:
    a, b, acc = operands()
    op = evt.gemm("out D: f32[m, n/2], E: f32[m, n/2]; h = even(acc, 8); D = h - max[n%32](h); E = h + sum[n%16](acc)")
    found = op(a, b)
    half, _ = pairs(acc, 8)
    blocks = half.unflatten(-1, (-1, 32)).amax(-1).repeat_interleave(32, -1)
    assert torch.equal(found.D, half - blocks)
    assert torch.equal(found.E, half + acc.unflatten(-1, (-1, 16)).sum(-1).repeat_interleave(8, -1))


def test_undeclared_outputs_have_the_columns_that_are_left() -> None:
    op = evt.gemm("h = even(acc); D = h; s = max[m](h); b = max[n%32](h)")
    assert [output.modes for output in op.request.dag.outputs] == [("m", "n/2"), ("n/2",), ("m", "n/64")]


def test_an_output_of_other_columns_is_refused_in_words_that_do_not_contradict() -> None:
    assert evt.gemm("out D[m, n/2], amax[n/2]; D = even(acc); amax = max[m](D)").emit("sm90", "f16", "f16")
    with pytest.raises(evt.ProgramError, match=r"`amax` is \[n\] but .* \[n/2\]"):
        evt.gemm("out D[m, n/2], amax[n]; D = even(acc); amax = max[m](D)").emit("sm90", "f16", "f16")


# Kernels


def nodes(text: str, arch: str, kind: type, **options):
    return [node for node in evt.gemm(text, **options).plan(arch, "f16", "f16").steps if isinstance(node, kind)]


@pytest.mark.parametrize("arch", ["sm80", "sm90", "sm100"])
def test_sums_of_fewer_columns_count_each_once_and_maxima_need_not(arch) -> None:
    text = "out D[m, n/2], s, t, b[m, n/64]; D = even(acc, 8); s = sum[n](D); t = sum[m, n](D); b = sum[n%32](D)"
    (once,) = nodes(text, arch, FirstColumns)
    assert (once.width, once.distance) == (16, 8)
    assert [node.width for node in nodes(text, arch, BlockReduce)] == [64]
    assert [node.width for node in nodes(text, arch, BlockStore)] == [64]
    maxima = "out D[m, n/2], s, b[m, n/64]; D = even(acc, 8); s = max[n](D); b = max[n%32](D)"
    assert nodes(maxima, arch, FirstColumns) == []
    columns = "out D[m, n/2], c: f32[n/2]; D = even(acc, 8); c = sum[m](D)"
    assert nodes(columns, arch, FirstColumns) == []
    (result,) = evt.gemm(columns).plan(arch, "f16", "f16").results
    assert result.operands == (Combined(result.operands[0].reduction, 16, 8),)
    assert result.divisor == 2
    text = evt.gemm(columns).emit(arch, "f16", "f16")
    assert "arguments.n / 2" in text
    assert "evt::Combined<0, evt::Sum, float, 16, 8>" in text


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize(("arch", "dtype"), [("sm80", "f16"), ("sm90", "f16"), ("sm90", "e4m3"), ("sm100", "f16")])
def test_a_configuration_takes_a_block_together(width, arch, dtype) -> None:
    op = evt.gemm(f"out D: e4m3[m, n], s: f32[m, n/{width}]; s = max[n%{width}](abs(acc)); D = acc/s")
    made = op.plan(arch, dtype, dtype)
    assert made.config.visits(width)
    if made.config.epilogue_tile[1]:
        assert made.config.epilogue_tile[1] <= made.config.tile[1]
    else:
        assert 256 * 8 // made.epilogue_dtype.bits >= width
        assert made.elements_per_access * 32 >= width


def test_wide_blocks_of_convolutions_and_groups() -> None:
    text = "out D: e4m3[m, n], s: f32[m, n/128]; s = max[n%128](abs(acc)); D = acc/s"
    made = evt.conv2d(text, padding=1).plan("sm90", "f16", "f16", shapes=((2, 64, 9, 9), (128, 64, 3, 3)))
    assert made.route == "conv-evt-3x"
    assert made.config.epilogue_tile == (128, 128)
    assert evt.conv2d(text, padding=1, route="conv-evt-2x").emit("sm80", "f16", "f16")
    assert evt.grouped_gemm(text).plan("sm90", "e4m3", "e4m3").config.epilogue_tile[1] == 128


def test_what_no_kernel_takes_together_is_refused_by_what_one_does() -> None:
    wide = "in h: f16[m, n/2]; out D[m, n/2]; D = even(acc)/max[n%128](even(acc))"
    with pytest.raises(evt.TargetError, match="256 columns are taken together, and at most 128"):
        evt.gemm(wide.partition("; ")[2]).emit("sm90", "f16", "f16")
    block = "D = acc/max[n%128](abs(acc))"
    with pytest.raises(evt.TargetError, match="128 columns are taken together, and at most 64"):
        evt.gemm(f"out D: f32[m, n]; {block}").emit("sm80", "i8", "i8")
    with pytest.raises(evt.TargetError, match="take 128 columns together, and the epilogue at most 64"):
        evt.gemm(block).emit("sm80", "f64", "f64")


def test_a_tensor_of_half_as_many_columns_is_paired_as_what_it_meets() -> None:
    text = "in g: f16[m, n/2]; out D[m, n/2], s, c: f32[n/2]; D = even(acc, 16)*g; s = sum[n](g); c = sum[m](g)"
    plan = evt.gemm(text).plan("sm90", "f16", "f16")
    assert {node.distance for node in plan.steps if hasattr(node, "distance")} == {16}
    combined = [each for result in plan.results for each in result.operands if each.width > 1]
    assert [(each.width, each.distance) for each in combined] == [(32, 16)]


def test_steps_of_fewer_columns_are_shared() -> None:
    text = "out D[m, n/2], s, t: f32[m]; D = even(acc); s = sum[n](D); t = mean[n](D)"
    program = evt.gemm(text).plan("sm90", "f16", "f16").epilogue
    assert len(program.of(FirstColumns)) == len(program.of(Reduction)) == 1
