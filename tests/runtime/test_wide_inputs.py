"""Truth values of a byte, integers of 64 bits, and seeds of 64 bits."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch

import evt
from evt.ir import Builder, Input, Load, Output, Store
from evt.ir.dtype import I64
from evt.ir.node import Acc, Apply
from evt.reference.philox import uniform_wide
from evt.runtime.tensor_checks import signed

A = torch.randint(-3, 4, (5, 8)).half()
B = torch.randint(-3, 4, (8, 6)).half()
ACC = A.float() @ B.float()
COMPARISONS = ("<", "<=", ">", ">=", "==", "!=")


def run(text: str, **inputs: Any) -> Any:
    return evt.gemm(text).reference(A, B, **inputs)


def emitted(text: str, arch: str) -> str:
    return evt.gemm(text).emit(arch, a="f16", b="f16")


def refused(text: str, **inputs: Any) -> str:
    with pytest.raises(evt.EvtError) as caught:
        run(text, **inputs)
    return str(caught.value)


# Truth values


def test_a_mask_is_a_condition() -> None:
    mask = torch.rand(5, 6) > 0.5
    assert run("in mask: bool[m, n]\nD = where(mask, acc, 0)", mask=mask).equal(torch.where(mask, ACC, 0).half())


def test_a_mask_in_arithmetic_is_0_or_1() -> None:
    mask, rows = torch.rand(5, 6) > 0.5, torch.rand(5) > 0.5
    found = run("in mask: bool[m, n], rows: bool[m]\nD = acc*mask + (mask == 1) + rows", mask=mask, rows=rows)
    assert found.equal((ACC * mask + mask + rows.unsqueeze(1)).half())


@pytest.mark.parametrize("given", [True, False, 1, 0, torch.tensor(True)])
def test_a_scalar_truth_value(given: Any) -> None:
    found = evt.gemm("in on: bool[]\nD = where(on, acc, 0)")(A, B, on=given)
    assert found.equal((ACC * int(given)).half())


def test_numbers_that_are_no_truth_values_are_refused() -> None:
    assert "from 0 to 1" in refused("in on: bool[]\nD = where(on, acc, 0)", on=2)
    assert "of type bool" in refused("D = alpha*acc", alpha=True)
    assert "torch.bool" in refused("in mask: bool[m, n]\nD = acc*mask", mask=torch.ones(5, 6, dtype=torch.uint8))


def test_outputs_of_truth_values() -> None:
    found = run("out D: f16[m, n], mask: bool[m, n], any: bool[m]\nD = acc\nmask = acc/3\nany = max[n](acc > 20)")
    assert found.mask.equal(ACC != 0)
    assert found.any.equal((ACC > 20).any(1))


def test_bits_and_bytes_are_two_types() -> None:
    assert run("out D: b1[m, n]\nD = acc > 0").shape == (5, 1)
    assert run("out D: bool[m, n]\nD = acc > 0").equal(ACC > 0)
    assert run("out D: u8[m, n]\nD = bool(acc)").equal((ACC != 0).byte())


@pytest.mark.parametrize("arch", ["sm80", "sm90", "sm100"])
def test_a_kernel_reads_and_writes_bytes(arch: str) -> None:
    text = emitted("in mask: bool[m, n]\nout D: bool[m, n]\nD = mask && acc > 0", arch)
    assert "std::uint8_t" in text
    assert "evt::round_to<uint8_t>" in text
    assert "Mask" not in text


def test_a_mask_that_has_a_default() -> None:
    assert run("in mask: bool[m, n] = 1\nD = where(mask, acc, 0)").equal(ACC.half())


# Integers of 64 bits


def test_an_i64_is_read_as_the_nearest_i32() -> None:
    text = "in t: i64[m]\nout D: i32[m, n]\nD = t + i32(0*acc)"
    found = run(text, t=torch.tensor([5, -7, 2**40, -(2**40), 2**31]))
    assert found[:, 0].tolist() == [5, -7, 2**31 - 1, -(2**31), 2**31 - 1]


def test_comparisons_with_an_i64_stay_right() -> None:
    labels = torch.tensor([0, 5, -100, 2**32 + 1, 3])
    found = run("in t: i64[m]\nD = where(iota(n) == t, acc, 0)", t=labels)
    assert found.equal(torch.where(torch.arange(6) == labels.unsqueeze(1), ACC, 0).half())


@pytest.mark.parametrize(
    ("sign", "compare"), [*zip(COMPARISONS, (torch.lt, torch.le, torch.gt, torch.ge, torch.eq, torch.ne), strict=True)]
)
def test_an_i64_compares_with_every_number_between_the_ends_of_i32(sign: str, compare: Any) -> None:
    drawn = random.Random(sign)
    wide = [2**62, -(2**62), 2**31, -(2**31), 2**31 - 1, 0, *(drawn.randint(-(2**33), 2**33) for _ in range(6))]
    least, most = -(2**31) + 1, 2**31 - 2
    for number in (least, most, 0, *(drawn.randint(least, most) for _ in range(6))):
        t = torch.tensor([*wide, number])
        op = evt.gemm(f"in t: i64[m], c: i32[]; out D: bool[m, n]; D = (t {sign} c) + 0*acc")
        found = op.reference(A[:1].repeat(len(t), 1), B, t=t, c=number)
        assert found.equal(compare(t, number)[:, None].expand(len(t), 6))


def test_scalars_of_64_bits() -> None:
    text = "in t: i64[]\nout D: i32[m, n]\nD = t + i32(0*acc)"
    assert run(text, t=torch.tensor(-(2**62))).eq(-(2**31)).all()
    assert run(text, t=2**63 - 1).eq(2**31 - 1).all()
    assert "whole number" in refused(text, t=2**63)
    assert "whole number" in refused(text, t=0.5)


def test_no_value_is_computed_in_i64() -> None:
    assert "declare it i32" in refused("out D: i64[m, n]\nD = acc")
    builder = Builder()
    builder.add(Store("D"), builder.add(Apply("add"), builder.add(Acc()), builder.add(Load("t"))))
    dag = builder.finish("gemm", (), [Input("t", I64, ("m",))], [Output("D", None, ("m", "n"))])
    with pytest.raises(evt.EvtError, match="no value is computed in i64"):
        evt.Program.from_dag(dag).emit("sm90", a="f16", b="f16")


@pytest.mark.parametrize("arch", ["sm80", "sm90", "sm100"])
def test_a_kernel_narrows_what_it_reads(arch: str) -> None:
    text = emitted("in t: i64[m], u: i64[m, n], s: i64[]\nD = acc + t*u*s", arch)
    assert "evt::narrow(in_t)" in text
    assert "int32_t narrow(int64_t x)" in text
    assert "int64_t value_of_in_s;" in text
    assert "evt::narrow" not in emitted("in t: i32[m]\nD = acc + t", arch)


# Seeds


def test_philox_has_the_published_numbers() -> None:
    """The known answers of Random123 for philox4x32-10, of counters and keys of all zeros and all ones."""
    zero, ones = torch.tensor(0), torch.tensor(-1)
    found = uniform_wide(zero, zero, (1, 1, 4), zero.device).flatten()
    assert (found * 2**24).long().tolist() == [word >> 8 for word in (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)]
    other = uniform_wide(ones, ones, (1, 1, 4), zero.device).flatten()
    assert other.unique().numel() == 4
    assert not other.equal(found)


def test_seeds_of_64_bits() -> None:
    text = "in seed: i64[], offset: i64[]\nD = acc*0 + rand(seed, offset)"
    seed, offset = 2**63 + 12345, 2**40 + 3
    numbers = run(text, seed=seed, offset=offset)
    assert numbers.equal(run(text, seed=torch.tensor(signed(seed)), offset=torch.tensor(offset)))
    for other in ({"seed": seed + 2**32, "offset": offset}, {"seed": seed, "offset": offset + 2**32}):
        assert not numbers.equal(run(text, **other))
    assert "whole number" in refused(text, seed=2**64, offset=0)


def test_a_seed_of_32_bits_keeps_its_numbers() -> None:
    narrow = run("in seed: i32[], offset: i32[]\nD = acc*0 + rand(seed, offset)", seed=7, offset=3)
    assert narrow.equal(run("D = acc*0 + rand(seed, offset)", seed=7, offset=3))
    wide = run("in seed: i64[]\nD = acc*0 + rand(seed, 3)", seed=7)
    assert not narrow.equal(wide)
    assert wide.equal(run("in seed: i64[], offset: i32[]\nD = acc*0 + rand(seed, offset)", seed=7, offset=3))


@pytest.mark.parametrize("arch", ["sm80", "sm90", "sm100"])
def test_a_kernel_reads_all_bits_of_a_seed(arch: str) -> None:
    text = emitted("in seed: i64[], offset: i32[]\nD = dropout(acc, 0.5, seed, offset)", arch)
    assert "WideRandom<" in text
    assert "int64_t value_of_in_seed;" in text
    assert "double value_of_in_offset;" in text
    assert "seed_ptr = {arguments.in_seed, true};" in text
    assert "offset_ptr = {arguments.in_offset, false};" in text
    assert "WideRandom" not in emitted("D = dropout(acc, 0.5, seed, 0)", arch)


# Launches


def test_numbers_of_64_bits_reach_the_kernel(launches: list[dict[str, Any]]) -> None:
    op = evt.gemm("in seed: i64[], offset: i64[] = 3, on: bool[]\nD = where(on, acc*rand(seed, offset), 0)")
    a, b = torch.zeros(16, 8).half(), torch.zeros(8, 24).half()
    for seed in (2**63 + 5, -7, 2**53 + 1):
        op(a, b, seed=seed, on=True)
        members = launches[-1]
        assert (members["value_of_in_seed"], members["in_seed"]) == (signed(seed), 0)
        assert (members["value_of_in_offset"], members["value_of_in_on"]) == (3, 1.0)
    for wrong in ({"seed": 2**64}, {"seed": 0.5}, {"seed": 1, "on": 2}, {"seed": True}):
        with pytest.raises(evt.ArgumentError):
            op(a, b, **{"on": 1, **wrong})
    pointer = torch.zeros((), dtype=torch.int64)
    op(a, b, seed=pointer, on=torch.tensor(True))
    assert launches[-1]["in_seed"] == pointer.data_ptr()
    assert len(launches) == 4
