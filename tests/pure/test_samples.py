"""The samples: accepted as they are, right by an independent evaluation, and emitted for their records' targets."""

from __future__ import annotations

import contextlib
import json
import re
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from record_calls import distances, make_call, variants
from records import MEANINGS, RECORD_OF, RECORDS, SAMPLES
from torch import Tensor

import evt
from evt.cli import main
from evt.plan import find_target

SIZES = {"l": 3, "m": 13, "n": 10, "k": 7}
WIDE = {"l": 3, "m": 13, "n": 128, "k": 16}  # columns that divide into pairs of blocks


@pytest.fixture(params=MEANINGS)
def name(request: pytest.FixtureRequest) -> str:
    chosen: str = request.param
    return chosen


@pytest.fixture
def program(name: str) -> evt.Program:
    return evt.load(SAMPLES / f"{name}.evt")


def every(results: Any) -> tuple[Tensor, ...]:
    return (results,) if isinstance(results, Tensor) else tuple(results)


def memory(x: Tensor) -> Tensor:
    """A tensor's bytes: torch.equal does not compare all types."""
    return x.contiguous().reshape(-1).view(torch.uint8)


def test_every_sample_is_here() -> None:
    found = sorted(path.stem for path in SAMPLES.iterdir())
    assert found == sorted(MEANINGS) == sorted(RECORD_OF)


def test_says_where_it_comes_from(name: str) -> None:
    text = (SAMPLES / f"{name}.evt").read_text()
    header = text.split("gemm(")[0]
    assert re.search(r"^#   source   (\S+/\S+: \S+|a public repository)", header, re.MULTILINE), header
    assert re.search(r"^#   formula  .*=", header, re.MULTILINE), header
    assert f"(record {RECORD_OF[name]})\n" in header, header
    assert max(map(len, text.splitlines())) <= 120


def test_says_its_types(name: str, program: evt.Program) -> None:
    assert len(program.dag.operands) == 2
    assert all(
        value.dtype is not None for value in (*program.dag.inputs, *program.dag.outputs) if value.name != "alpha"
    )


def test_is_short(name: str) -> None:
    lines = (SAMPLES / f"{name}.evt").read_text().splitlines()
    program = [line for line in lines if line.strip() and not line.lstrip().startswith("#")]
    if RECORDS[RECORD_OF[name]].tier == 1:
        assert len(program) <= 6


def test_is_accepted() -> None:
    result = CliRunner().invoke(main, ["check", *map(str, sorted(SAMPLES.iterdir()))])
    assert result.exit_code == 0, result.output


@pytest.mark.parametrize("sizes", [SIZES, WIDE], ids=["odd", "wide"])
def test_reference_is_the_formula(name: str, program: evt.Program, sizes: dict[str, int]) -> None:
    if sizes is SIZES and any("/" in mode for value in program.typed().types for mode in value.modes):
        pytest.skip("pairs and blocks need columns that divide")
    for variant in variants(program):
        call = make_call(name, program, sizes, variant)
        exact, near, same = (
            every(answer)
            for answer in (
                program.reference(call.a, call.b, float64=True, **call.inputs),
                program.reference(call.a, call.b, **call.inputs),
                program(call.a, call.b, **call.inputs),
            )
        )
        for wide, want in zip(exact, call.wanted, strict=True):
            torch.testing.assert_close(wide.to(want.dtype), want, rtol=1e-12, atol=1e-12)
        assert max(distances(name, program, near, call.wanted)) <= 1, variant
        for called, rounded in zip(same, near, strict=True):
            assert torch.equal(memory(called), memory(rounded))  # CPU tensors run the reference


def architectures(name: str) -> list[str]:
    """The record's targets, but for those that evt does not know, such as sm75."""
    found = []
    for arch in RECORDS[RECORD_OF[name]].archs.split():
        with contextlib.suppress(evt.TargetError):
            found.append(find_target(arch).name)
    assert found
    return found


def test_emits(name: str, program: evt.Program) -> None:
    for arch in architectures(name):
        text = program.emit(arch)
        assert 'extern "C"' in text
        assert "evt_run" in text
        schema = json.loads(program.plan(arch).schema)
        pointers = [field for field, kind in schema["fields"] if kind == "pointer" and field != "workspace"]
        assert len(pointers) == 2 + len(program.inputs) + len(program.outputs)


@pytest.mark.parametrize("family", ["2x", "3x"])
def test_emits_for_both_families(name: str, family: str) -> None:
    plan = evt.load(SAMPLES / f"{name}.evt", route=f"evt-{family}").plan("sm90")
    assert plan.family == family


def test_emit_command(name: str) -> None:
    for arch in architectures(name):
        result = CliRunner().invoke(main, ["emit", str(SAMPLES / f"{name}.evt"), "--arch", arch])
        assert result.exit_code == 0, result.output
        assert f"for {arch}" in result.stdout.splitlines()[0]
