"""Grouped products on the command line."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from click.testing import CliRunner

import evt
from evt.cli import main
from evt.grouped import GroupedProgram
from evt.runtime.call import Caller

FORMULA = "D = relu(alpha*acc + bias) + C"
OP = ("--op", "grouped_gemm")
SIZES = ("--m", "24,0,7", "--n", "16", "--k", "8,16,8")


def cli(*words: str) -> Any:
    return CliRunner().invoke(main, words, prog_name="evt")


def ok(*words: str) -> str:
    result = cli(*words)
    assert result.exit_code == 0, result.output
    return str(result.stdout)


def test_emit_and_show() -> None:
    text = ok("emit", FORMULA, *OP, "--dtype", "bf16")
    assert text == evt.grouped_gemm(FORMULA).emit("sm90", "bf16", "bf16")
    assert "PtrArray" in text
    assert ok("emit", FORMULA, *OP, "--route", "loop", "--arch", "sm80") == evt.gemm(FORMULA).emit("sm80")
    assert "route: evt-3x-grouped" in ok("show", FORMULA, *OP, "--stage", "plan")
    assert ok("show", FORMULA, *OP) == ok("show", FORMULA)
    assert ok("graph", FORMULA, *OP) == ok("graph", FORMULA)


def test_sizes_of_groups_align_all() -> None:
    """The kernel has the least alignment of all groups; TMA takes no less than 16 bytes."""
    assert ok("emit", FORMULA, *OP, *SIZES) == ok("emit", FORMULA, *OP)
    result = cli("emit", FORMULA, *OP, "--m", "24,7", "--n", "16,12", "--k", "8")
    assert result.exit_code == 1
    assert "aligned to 8 bytes" in result.stderr
    assert cli("check", FORMULA, *OP, "--arch", "sm90", *SIZES).exit_code == 0
    assert cli("check", FORMULA, *OP, "--arch", "sm80").exit_code == 1
    assert cli("check", FORMULA, *OP, "--arch", "sm80", "--route", "loop").exit_code == 0


@pytest.mark.usefixtures("_no_gpu")
@pytest.mark.parametrize("route", [(), ("--route", "loop")])
def test_run(route: tuple[str, ...]) -> None:
    found = json.loads(ok("run", FORMULA, *OP, *SIZES, *route, "--json"))
    assert (found["ok"], found["operation"], found["device"]) == (True, "grouped_gemm", "cpu")
    assert found["sizes"] == {"m": [24, 0, 7], "n": [16, 16, 16], "k": [8, 16, 8]}
    assert found["a_shape"] == [[24, 8], [0, 16], [7, 8]]
    assert [each["name"] for each in found["outputs"]] == ["D[0]", "D[1]", "D[2]"]
    assert sorted(found["scalars"]) == ["alpha[0]", "alpha[1]", "alpha[2]"]
    text = ok("run", FORMULA, *OP, *SIZES, *route)
    assert "grouped_gemm by the reference" in text
    assert "m=24,0,7 n=16 k=8,16,8, A f16, B f16" in text


@pytest.mark.usefixtures("_no_gpu")
def test_run_of_groups_without_sums() -> None:
    text = ok("run", "D = acc + bias", *OP, "--m", "1,2,3", "--n", "8,16,8", "--k", "0,0,5")
    assert text.count("  ok\n") == 3


def test_run_without_sizes() -> None:
    found = json.loads(ok("run", "out D, r: f32[m]; D = acc; r = sum[n](D)", *OP, "--k", "32", "--json"))
    assert found["ok"] is True
    assert len(found["sizes"]["m"]) > 2
    assert set(found["sizes"]["k"]) == {32}


@pytest.mark.usefixtures("_no_gpu")
@pytest.mark.parametrize("group", [0, 2])
def test_run_finds_a_wrong_group(monkeypatch: pytest.MonkeyPatch, group: int) -> None:
    right = GroupedProgram.__call__

    def call(self: GroupedProgram, *operands: Any, out: dict[str, list[torch.Tensor]], **inputs: Any) -> None:
        right(self, *operands, out=out, **inputs)
        out["D"][group][3, 5] += 1

    monkeypatch.setattr(GroupedProgram, "__call__", call)
    result = cli("run", FORMULA, *OP, *SIZES, "--json")
    assert result.exit_code == 1
    assert [each["name"] for each in json.loads(result.stdout)["outputs"] if not each["ok"]] == [f"D[{group}]"]


def test_usage() -> None:
    for words, said in (
        ((*OP, "--m", "1,2", "--n", "3,4,5", "--k", "6"), "There are 2 of --m and 3 of --n"),
        (("--m", "1,2", "--n", "3", "--k", "6"), "give --op grouped_gemm"),
        ((*OP, "--l", "2"), "--l is for gemm"),
        ((*OP, "--a-shape", "2,3"), "are for convolutions"),
        ((*OP, "--m", "1,-2"), "-2 is not in the range 0<=x"),
        ((*OP, "--m", "1,,2"), "is not a valid integer"),
        (("--m", "0"), "0 is not in the range 1<=x"),
    ):
        result = cli("emit", FORMULA, *words, *(() if "--n" in words else ("--n", "8", "--k", "8")))
        assert result.exit_code == 2, (words, result.output)
        assert said in result.stderr
    result = cli("emit", FORMULA, *OP, "--stride", "2")
    assert (result.exit_code, "E0602" in result.stderr) == (1, True)
    assert "E0501" in cli("emit", FORMULA, *OP, "--route", "evt-2x").stderr
    assert "E0501" in cli("emit", "conv2d(A: f16, B: f16); D = acc", *OP).stderr
    assert cli("bench", FORMULA, *OP).exit_code == 2


def test_a_loop_calls_the_program_of_one_group() -> None:
    caller = evt.grouped_gemm(FORMULA, route="loop")._caller
    assert isinstance(caller._loop, Caller)
    assert caller._loop.request == evt.gemm(FORMULA).request
