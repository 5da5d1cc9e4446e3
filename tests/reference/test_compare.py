"""The distance of results: the norm, NaN, and the tolerance of each type."""

from __future__ import annotations

import math

import pytest
import torch

from evt.ir.dtype import B1, BF16, E4M3, E5M2, F16, F32, F64, I8, I32, STORAGE, TF32, DType
from evt.reference.compare import distance, error, limit, relative_error, tolerance, unit
from evt.reference.rounding import pack_bits, round_to


def test_relative_error() -> None:
    right = torch.tensor([3.0, 4.0], dtype=torch.float64)
    assert relative_error(torch.tensor([3.0, 4.5]), right) == pytest.approx(0.1)
    assert relative_error(torch.tensor([3.0, math.nan]), right) == math.inf
    assert relative_error(torch.zeros(2), torch.zeros(2)) == 0.0
    assert relative_error(torch.ones(2), torch.zeros(2)) == math.inf


def test_nan_is_like_nan_and_an_infinity_like_itself() -> None:
    right = torch.tensor([3.0, 4.0, math.nan, math.inf])
    assert relative_error(right, right) == 0.0
    assert relative_error(torch.tensor([3.5, 4.0, math.nan, math.inf]), right) == 0.1
    assert relative_error(torch.tensor([3.0, 4.0, 1.0, math.inf]), right) == math.inf
    assert relative_error(torch.tensor([3.0, 4.0, math.nan, -math.inf]), right) == math.inf


def test_what_no_number_of_the_type_stands_for_is_compared_with_what_rounding_gives() -> None:
    exact = torch.tensor([3.0, 4.0, torch.nan, 1e6, torch.inf], dtype=torch.float64)
    rounded = exact.to(torch.float16)
    assert relative_error(rounded, exact, rounded) == 0.0
    assert relative_error(rounded, exact) == math.inf
    out = rounded.clone()
    out[0] = 3.5
    assert relative_error(out, exact, rounded) == 0.1
    out[2] = 0
    assert relative_error(out, exact, rounded) == math.inf


def test_bits_are_counted() -> None:
    mask = torch.rand(4, 20, generator=torch.Generator().manual_seed(1)) > 0.5
    flipped = mask.clone()
    flipped[2, 7] ^= True
    out, right = pack_bits(flipped), pack_bits(mask)
    assert error(out, right, B1, 20) == pytest.approx(1 / 80)
    assert error(out, right, B1) == pytest.approx(1 / 96)
    assert error(out[:, :2], right, B1) == math.inf
    assert distance(out, right, B1) > 1 > distance(right, right, B1)
    assert error(out[:0], right[:0], B1) == 0.0


@pytest.mark.parametrize("dtype", [F16, BF16, E4M3, E5M2], ids=str)
def test_rounding_is_within_the_tolerance_and_not_far_below(dtype: DType) -> None:
    values = torch.randn(100_000, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    once = round_to(dtype, values).double()
    assert 0.4 < distance(once, values, dtype) < 1
    assert float(((once - values) / values).abs()[values.abs() > 0.1].max()) <= unit(dtype)
    twice = round_to(dtype, round_to(dtype, values / 3).double() * 3).double()
    assert distance(twice, values, dtype, inside=dtype) < 1
    assert distance(values * (1 + 2 * unit(dtype)), values, dtype) > 1


def test_integers_may_be_off_by_one_here_and_there() -> None:
    right = torch.arange(1000, dtype=torch.int32)
    out = right.clone()
    out[:5] += 1
    assert distance(out, right, I32) == 0.5
    out[0] += 1
    assert distance(out, right, I32) == math.inf
    assert distance(right[:5], right, I32) == math.inf


def test_tensor_cores_add_to_it() -> None:
    assert tolerance(F32) < tolerance(F32, operand=TF32) < limit([F32], [TF32])
    assert tolerance(BF16, operand=I8) == tolerance(BF16) < tolerance(BF16, operand=E4M3)
    assert tolerance(F16) < tolerance(F16, inside=F16) < 2 * tolerance(F16)


@pytest.mark.parametrize("dtype", STORAGE, ids=str)
def test_a_formula_of_which_nothing_is_known_is_allowed_more(dtype: DType) -> None:
    assert 0 < limit([dtype]) < 1
    assert dtype == F64 or not (dtype.is_float or dtype == B1) or limit([dtype]) >= tolerance(dtype)
    assert limit([dtype, E5M2]) == limit([E5M2])
    assert limit([dtype], [E4M3]) >= limit([dtype], [F16]) >= limit([dtype])


@pytest.mark.filterwarnings("error")
def test_outputs_under_autograd_are_compared() -> None:
    out = torch.ones(3, requires_grad=True) * 2
    assert relative_error(out, torch.full((3,), 2.0)) == 0
    assert relative_error(torch.full((3,), 2.0), out) == 0
