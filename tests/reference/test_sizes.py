"""``size(n)``: the extents of modes, in formulas of epilogues and of operands, in the reference and in kernels."""

from __future__ import annotations

import pytest
import torch

import evt
from evt.reference import evaluate, operand_values
from tests.programs import typed

SIZES = "out D: i32[m, n]; D = acc*0 + size(m)*1000000 + size(n)*10000 + size(k)*100 + size(l)"


def operands(*lead: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.ones(*lead, 5, 3, dtype=torch.int8), torch.ones(3, 7, dtype=torch.int8)


def test_sizes_are_the_extents_and_integers_among_integers() -> None:
    assert set(evt.gemm(SIZES)(*operands()).flatten().tolist()) == {5070301}
    assert set(evt.gemm(SIZES)(*operands(2, 3)).flatten().tolist()) == {5070306}
    assert evt.gemm("D = acc/size(k)")(torch.ones(4, 3), torch.ones(3, 2)).unique().tolist() == [1.0]


def test_rows_of_linear_are_counted_over_all_dimensions() -> None:
    op = evt.linear("out D: f32[m, n]; D = acc*0 + size(m)*100 + size(k)")
    assert op(torch.ones(2, 4, 3), torch.ones(5, 3)).unique().tolist() == [803.0]


@pytest.mark.parametrize(
    ("operation", "a", "b", "keywords", "sizes"),
    [
        ("conv2d", (2, 8, 5, 6), (12, 4, 3, 2), {"padding": 1, "groups": 2}, (2 * 5 * 7, 12, 4 * 3 * 2)),
        ("conv1d", (2, 8, 5), (12, 8, 3), {}, (2 * 3, 12, 8 * 3)),
        ("conv2d_dgrad", (2, 12, 3, 4), (12, 8, 3, 3), {}, (2 * 5 * 6, 8, 12 * 9)),
        ("conv2d_wgrad", (2, 12, 3, 4), (2, 8, 5, 6), {"kernel_size": 3}, (12, 8 * 9, 2 * 3 * 4)),
    ],
)
def test_sizes_of_a_convolution_are_those_of_its_implicit_product(operation, a, b, keywords, sizes) -> None:
    make = getattr(evt, operation)
    for mode, size in zip("mnk", sizes, strict=True):
        op = make(f"out D: f32[m, n]; D = acc*0 + size({mode})", **keywords)
        assert op(torch.ones(a), torch.ones(b)).unique().tolist() == [float(size)], mode


def test_a_formula_of_an_operand_reads_sizes() -> None:
    a, b = torch.randn(4, 6), torch.randn(6, 3)
    op = evt.gemm("A = A/size(k) + size(n); D = acc")
    torch.testing.assert_close(op(a, b), (a / 6 + 3) @ b, rtol=1e-2, atol=1e-2)
    assert "evt::mainloop::Single<int32_t>" in op.emit("sm80", "f16", "f16")
    x, weight = torch.randn(1, 4, 6, 6), torch.randn(5, 4, 3, 3)
    expected = torch.nn.functional.conv2d(x / 36, weight)
    torch.testing.assert_close(evt.conv2d("A = A/size(k); D = acc")(x, weight), expected, rtol=1e-2, atol=1e-2)


def test_what_is_evaluated_alone_has_only_the_sizes_that_are_given() -> None:
    acc = torch.ones(4, 8)
    assert evaluate(typed("D = acc/size(k)", "f32"), acc, {}, k=2)["D"].unique().tolist() == [0.5]
    with pytest.raises(ValueError, match=r"reads size\(k\), which is not given"):
        evaluate(typed("D = acc/size(k)", "f32"), acc, {})
    with pytest.raises(ValueError, match=r"reads size\(n\), which is not given"):
        operand_values(typed("A = A/size(n); D = acc", "f32"), "A", acc, {})


@pytest.mark.parametrize("arch", ["sm80", "sm90", "sm100"])
def test_a_kernel_reads_the_sizes_of_the_call(arch) -> None:
    text = evt.gemm("D = relu(acc/size(k)) + size(l)").emit(arch, "f16", "f16")
    assert "scalars[0] = static_cast<int32_t>(arguments.k);" in text
    assert "scalars[0] = static_cast<int32_t>(arguments.l);" in text
    convolved = evt.conv2d("D = acc/size(k)", padding=1).emit(arch, "f16", "f16")
    assert "static_cast<int32_t>(arguments.contraction)" in convolved


def test_the_sizes_of_a_group_are_its_own() -> None:
    op = evt.grouped_gemm("D = acc/size(k) + size(l)")
    text = op.emit("sm90", "f16", "f16")
    assert "evt::epilogue::GroupSize>" in text
    assert "extents = row<std::int64_t>(arguments, row_k);" in text
    a = [torch.ones(2, 4, dtype=torch.float16), torch.ones(3, 8, dtype=torch.float16)]
    b = [torch.ones(4, 5, dtype=torch.float16), torch.ones(8, 6, dtype=torch.float16)]
    assert [each.unique().tolist() for each in op(a, b)] == [[2.0], [2.0]]


@pytest.mark.parametrize("text", ["D = acc/size(x)", "D = acc/size(acc)", "D = acc/size()", "D = acc/size(m, n)"])
def test_a_size_is_of_a_mode(text) -> None:
    with pytest.raises(evt.ProgramError, match=r"`size` takes a mode") as caught:
        evt.gemm(text)
    assert "write `size(m)`, `size(n)`, `size(k)` or `size(l)`" in str(caught.value)


def test_size_is_no_name() -> None:
    with pytest.raises(evt.ProgramError, match="E0108"):
        evt.gemm("in size: f32[]; D = acc*size")


def test_eager_pytorch_takes_a_size_for_a_number() -> None:
    op = evt.gemm("D = acc + size(n)", numerics="eager")
    a, b = torch.ones(2, 4, dtype=torch.float16), torch.ones(4, 2049, dtype=torch.float16)
    assert torch.equal(op(a, b), a @ b + 2049)


def test_the_stock_epilogues_have_no_sizes() -> None:
    with pytest.raises(evt.TargetError, match="E050"):
        evt.gemm("D = size(k)*acc", route="stock").emit("sm80", "f16", "f16")
