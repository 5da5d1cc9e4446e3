"""The benchmark: its suites, its arithmetic, its data and its reports."""

from __future__ import annotations

import json
import math
import os
import re
import stat
from pathlib import Path

import pytest
import torch

from evt.bench import (
    SUITES,
    Case,
    CaseResult,
    EpilogueResult,
    HostResult,
    VersionResult,
    describe_machine,
    suite,
    summarise,
    to_json,
    write_json,
)
from evt.bench.answer import oracle
from evt.bench.case import draw
from evt.bench.report import BenchReport, notes
from evt.bench.run import measure
from evt.bench.tensors import poison, random_tensor
from evt.diagnostics import Source
from evt.errors import ArgumentError
from evt.ir.dtype import B1, BOOL, BY_NAME, STORAGE, U8, DType
from evt.program import Program
from evt.reference.compare import as_numbers, as_steps
from evt.version import JSON_SCHEMA
from tests.support.benchmarks import CPU, check, clock, make, result

# The suite


def test_suite() -> None:
    assert SUITES == ("gemm", "epilogue", "llm", "fp8", "resnet", "unet", "detector", "depthwise")
    cases = suite("gemm")
    issue = [(case.m, case.n, case.k, case.bar) for case in cases[:3]]
    assert issue == [(6304, 3072, 768, 0.70), (16384, 1024, 1024, 0.70), (4096, 14336, 4096, 1.0)]
    assert len({case.name for case in cases}) == 6
    assert all(str(case.dag.operands[0].dtype) == "bf16" for case in cases)
    with pytest.raises(KeyError):
        suite("nothing")


def test_suite_formulas_are_right() -> None:
    for case in {case.name: case for case in suite("gemm")}.values():
        small = Case(case.name, case.program, 24, 16, 32, dtype="f32")
        check(small, 2e-6)


def test_suite_of_epilogues() -> None:
    cases = suite("epilogue")
    by_size: dict[tuple[int, ...], list[Case]] = {}
    for case in cases:
        by_size.setdefault((case.m, case.n, case.k), []).append(case)
    assert list(by_size) == [(4096, 4096, 4096), (16384, 1024, 1024)]
    for group in by_size.values():
        assert group[0].program.request.source.text == "D = acc"
        assert len({case.name for case in group}) == len(group) == 11
    assert all(str(case.dag.operands[0].dtype) == "bf16" for case in cases)
    for case in cases[:11]:
        if case.name != "dropout":
            check(Case(case.name, case.program, 24, 16, 32, dtype="f32"), 2e-6)


@pytest.mark.parametrize(("name", "dtype", "count"), [("llm", "bf16", 6), ("fp8", "e4m3", 8)])
def test_suites_of_projections(name: str, dtype: str, count: int) -> None:
    """Llama's projections of 1 to 8192 tokens, with the epilogue that follows each, or with scales."""
    cases = suite(name)
    assert len({case.name for case in cases}) == len(cases) == 7 * count
    assert {case.m for case in cases} == {1, 16, 64, 256, 1024, 4096, 8192}
    assert {str(operand.dtype) for case in cases for operand in case.dag.operands} == {dtype}
    assert {(case.n, case.k) for case in cases if "8B down" in case.name} == {(4096, 14336)}
    halved = [case.shape(case.dag.outputs[0].modes) for case in cases if "gate up, 16 " in case.name]
    assert halved == ([(16, 14336), (16, 3584)] if name == "llm" else [(16, 28672), (16, 7168)])
    for case in {case.program: case for case in cases}.values():
        check(Case(case.name, case.program, 24, 32, 64, dtype="f32"), 2e-2 if name == "fp8" else 2e-6)


# The arithmetic


def test_summary() -> None:
    summary = summarise([4.0, 1.0, 3.0, 2.0, 100.0])
    assert (summary.median, summary.low, summary.high, summary.samples) == (3.0, 2.0, 4.0, 5)
    assert summary.spread == pytest.approx(2 / 3)
    assert summarise([2.0]).spread == 0.0


def test_ratios() -> None:
    measured = result(evt=0.5, evt_again=0.51, compile=1.0, mm=0.4)
    assert measured.ratio("evt", "compile") == 0.5
    assert measured.ratio("evt", "mm") == pytest.approx(1.25)
    assert measured.ratio("max-autotune", "compile") is None
    assert measured.ratio("evt", "eager") is None
    assert measured.noise == pytest.approx(0.02)
    assert measured.within_bar is True
    assert measured.tflops == pytest.approx(4.0)  # 2e9 operations in 0.5 ms
    assert measured.gbytes_per_s == pytest.approx(12.0)  # 6 MB in 0.5 ms
    assert result(evt=0.8, compile=1.0).within_bar is False
    assert result(evt=0.8).within_bar is None
    assert result(compile=0.8).tflops is None


def test_notes_name_the_bytes_and_the_bar() -> None:
    text = "\n".join(notes(result(evt=0.8, evt_again=0.8, compile=1.0)))
    assert "A 2.0 MB + B 2.0 MB + D 2.0 MB = 6.0 MB" in text
    assert "0.800, missed" in text


def test_oracle_finds_data_with_an_answer() -> None:
    assert (oracle(make("D = log(C) + acc"), CPU).data.tensors["C"] > 0).all()
    assert (oracle(make("D = C + acc"), CPU).data.tensors["C"] < 0).any()
    with pytest.raises(ArgumentError, match="NaN"):
        oracle(make("D = acc * sqrt(-1 - C * C)"), CPU)


# Epilogues side by side


def epilogues() -> EpilogueResult:
    cases = suite("epilogue")[:3]
    rows = [
        VersionResult(name, summarise([time]), 0.0)
        for name, time in (("bare store", 1.0), ("evt again", 1.01), ("bias", 1.2))
    ]
    sizes = {"bare store": {"A": 10, "D": 10_000_000}, "bias": {"A": 10, "D": 10_000_000, "bias": 100_000_000}}
    failed = VersionResult("bias+gelu", failure="E0503: no route")
    return EpilogueResult(cases, (*rows, failed), sizes, summarise([0.5]), 500_000_000)


def test_the_bound_of_an_epilogue() -> None:
    found = epilogues()
    assert found.gbytes_per_s == pytest.approx(1000)  # 0.5 GB in 0.5 ms
    assert found.extra_bytes("bias") == 100_000_000
    assert found.bound("bias") == pytest.approx(1.1)  # 0.1 GB at 1000 GB/s are 0.1 ms
    assert found.over_bound("bias") == pytest.approx(1.2 / 1.1)
    assert found.over_bound("bare store") == pytest.approx(1.0)
    assert found.ratio("bias") == pytest.approx(1.2)
    assert found.noise == pytest.approx(0.01)
    for name in ("bias+gelu", "nothing"):
        assert found.ratio(name) is found.bound(name) is found.over_bound(name) is None


def test_epilogues_are_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "bench.json"
    report = BenchReport(describe_machine(), {}, path)
    report.add_epilogues(epilogues())
    text = capsys.readouterr().out
    assert "epilogues of gemm bf16, m=4096, n=4096, k=4096" in text
    assert re.search(r"\nbias +1\.2000 +0\.0% +1\.200 +100\.0 MB +1\.1000 +1\.091 +0\.0e\+00", text)
    assert re.search(r"\nbare store again +1\.0100 ", text)
    assert "failed: E0503: no route" in text
    assert "at the 1000 GB/s of a copy" in text
    assert not report.complete
    assert report.wrong == []
    (only,) = json.loads(path.read_text())["epilogues"]
    assert (only["m"], only["dtype"], only["bare"]) == (4096, "bf16", "bare store")
    bias = only["epilogues"]["bias"]
    assert bias["program"] == "D = acc + bias"
    assert bias["ratio_to_bound"] == pytest.approx(1.2 / 1.1)
    assert only["epilogues"]["bias+gelu"]["time"] is None


# Data of every type


@pytest.mark.parametrize("dtype", STORAGE, ids=str)
def test_random_tensors_and_poison(dtype: DType) -> None:
    generator = torch.Generator().manual_seed(0)
    drawn = random_tensor((6, 20), dtype, generator)
    assert drawn.dtype == getattr(torch, dtype.torch)
    assert tuple(drawn.shape) == ((6, 3) if dtype == B1 else (6, 20))
    numbers = as_numbers(drawn, dtype, 20)
    assert tuple(numbers.shape) == (6, 20)
    assert len(numbers.unique()) == 2 if dtype in (B1, BOOL) else len(numbers.unique()) > 5
    assert dtype in (B1, BOOL, U8) or bool((numbers < 0).any())
    poison(drawn)
    if dtype.is_float:
        assert drawn.isnan().all()
    else:
        assert set(drawn.contiguous().view(torch.uint8).unique().tolist()) <= {0xA5, 0x7F}
    if dtype != B1:
        assert (random_tensor((6, 20), dtype, generator, positive=True).double() > 0).all()


def test_operands_of_8_bits_are_contiguous_along_k() -> None:
    data = draw(make("D = acc", dtype="i8"), CPU)
    assert data.A.stride() == (28, 1)
    assert data.B.stride() == (1, 28)
    assert draw(make("D = acc", dtype="bf16"), CPU).B.stride() == (20, 1)


def test_steps_are_neighbours() -> None:
    for name in ("e4m3", "e5m2"):
        dtype = BY_NAME[name]
        bits, kind = torch.arange(256, dtype=torch.int32).to(torch.uint8), getattr(torch, dtype.torch)
        codes = bits.view(kind)
        finite = bits[codes.float().isfinite()].view(kind)
        order = finite.float().argsort()
        steps = as_steps(finite, dtype, 0)[order]
        assert ((steps[1:] - steps[:-1]) <= 1).all()
        assert (as_steps(codes, dtype, 0)[codes.float().isnan()] == 1000).all()


# The report


def test_json_is_whole(tmp_path: Path) -> None:
    case = make("D = acc + bias", dtype="bf16")
    measured = measure(case, ("eager", "mm"), clock, CPU, rounds=3)
    host = HostResult(case, {"evt": summarise([3.0]), "mm out=": summarise([2.0])})
    path = tmp_path / "bench.json"
    write_json(path, to_json([measured], describe_machine(), host=host, settings={"rounds": 3}))
    document = json.loads(path.read_text())
    (only,) = document["cases"]
    assert only["program"] == "D = acc + bias"
    assert (only["m"], only["n"], only["k"], only["l"], only["dtype"]) == (12, 20, 28, 1, "bf16")
    assert only["versions"]["mm"]["time"]["samples"] == 3
    assert only["versions"]["evt"]["ratio_to_mm"] > 0
    assert only["versions"]["evt"]["ratio_to_compile"] is None
    assert only["bytes"]["bias"] == 40
    assert document["host"]["ratios_to_mm_out"]["evt"] == 1.5
    assert document["machine"]["versions"]["torch"] == torch.__version__
    assert {"evt", "nvcc", "cutlass", "triton"} <= set(document["machine"]["versions"])
    assert os.listdir(tmp_path) == ["bench.json"]


def test_json_is_written_as_a_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "bench.json"
    write_json(path, {"a": math.nan, "b": [1.5, math.inf]})
    before = path.read_text()
    assert json.loads(before) == {"schema": JSON_SCHEMA, "a": None, "b": [1.5, None]}
    mask = os.umask(0)
    os.umask(mask)
    assert stat.S_IMODE(path.stat().st_mode) == 0o666 & ~mask

    def broken(handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", broken)
    with pytest.raises(OSError, match="No space"):
        write_json(path, {"a": 1})
    assert path.read_text() == before
    assert os.listdir(tmp_path) == ["bench.json"]


def test_report_prints_and_saves_as_it_goes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "bench.json"
    report = BenchReport(describe_machine(), {"rounds": 1}, path)
    report.add(result(evt=0.5, evt_again=0.5, compile=1.0))
    assert len(json.loads(path.read_text())["cases"]) == 1
    report.add(result(evt=0.5))
    report.add_host(
        HostResult(make("D = acc"), {"mm": summarise([2.0]), "mm out=": summarise([2.0]), "evt": summarise([3.0])})
    )
    document = json.loads(path.read_text())
    assert len(document["cases"]) == 2
    assert document["host"]["calls"]["evt"]["median_us"] == 3.0
    text = capsys.readouterr().out
    assert re.search(r"evt +0\.5000 +0\.0% +0\.500", text)
    assert "failed: no triton" in text
    assert re.search(r"evt +3\.00 +0\.0% +1\.50", text)


def test_a_failure_is_printed_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    case = Case("D = acc + b[n]", Program(Source("D = acc + b[n]")), 8, 8, 8)
    report = BenchReport(describe_machine(), {})
    report.add(CaseResult(case, (VersionResult("compile", failure="[red]is no colour[/red] here"),), {}))
    text = capsys.readouterr().out
    assert "D = acc + b[n]" in text
    assert "failed: [red]is no colour[/red] here" in text
