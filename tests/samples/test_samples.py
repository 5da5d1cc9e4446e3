"""The samples: accepted without change, right by an independent evaluation, and emitted for their records' targets."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from torch import Tensor
from torch.nn import functional

import evt
from evt.cli import main
from evt.plan import find_target
from evt.request import typed_graph
from tests.support.record_calls import distances, make_call, variants
from tests.support.records import MEANINGS, RECORD_OF, RECORDS, SAMPLES

SIZES = {"l": 3, "m": 13, "n": 10, "k": 7}
WIDE = {"l": 3, "m": 13, "n": 128, "k": 16}  # columns that divide into pairs of blocks
#: Samples that come from no record.
OF_NO_RECORD = (
    *("conv_relu_add", "deepseek_block_scales", "int4_weights", "int8_weights", "norm_applied", "norm_moments"),
    *("one_epilogue", "rope", "video_conv_silu"),
)
SCRIPTS = ("one_epilogue.py", "resnet_bottleneck.py")


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
    """Return a tensor's bytes: torch.equal does not compare all types."""
    return x.contiguous().reshape(-1).view(torch.uint8)


def test_every_sample_is_here() -> None:
    found = sorted(path.name for path in SAMPLES.iterdir() if path.is_file())
    others = ("norms.py", "vllm_scaled_mm.py", "vllm_fused_moe.py")
    assert found == sorted([*(f"{name}.evt" for name in (*MEANINGS, *OF_NO_RECORD)), *SCRIPTS, *others])
    assert sorted(MEANINGS) == sorted(RECORD_OF)


def test_says_where_it_comes_from(name: str) -> None:
    text = (SAMPLES / f"{name}.evt").read_text()
    header = text.split("gemm(")[0]
    assert re.search(r"^#   source   (\S+/\S+: \S+|a public repository)", header, re.MULTILINE), header
    assert re.search(r"^#   formula  .*=", header, re.MULTILINE), header
    assert f"(record {RECORD_OF[name]})\n" in header, header
    assert max(map(len, text.splitlines())) <= 120


def test_says_its_types(name: str, program: evt.Program) -> None:
    dag = program.request.dag
    assert len(dag.operands) == 2
    assert all(
        each.dtype is not None for values in (dag.inputs, dag.outputs) for each in values if each.name != "alpha"
    )


def test_is_short(name: str) -> None:
    lines = (SAMPLES / f"{name}.evt").read_text().splitlines()
    program = [line for line in lines if line.strip() and not line.lstrip().startswith("#")]
    if RECORDS[RECORD_OF[name]].tier == 1:
        assert len(program) <= 6


def test_is_accepted() -> None:
    result = CliRunner().invoke(main, ["check", *map(str, sorted(SAMPLES.glob("*.evt")))])
    assert result.exit_code == 0, result.output


@pytest.mark.parametrize("sizes", [SIZES, WIDE], ids=["odd", "wide"])
def test_reference_is_the_formula(name: str, program: evt.Program, sizes: dict[str, int]) -> None:
    if sizes is SIZES and any("/" in mode for value in typed_graph(program.request).types for mode in value.modes):
        pytest.skip("pairs and blocks need columns that divide")
    for variant in variants(program):
        call = make_call(name, program, sizes, variant)
        exact, near, same = (
            every(answer)
            for answer in (
                program.reference(call.a, call.b, float64=True, **call.inputs, **call.buffers),
                program.reference(call.a, call.b, **call.inputs, **call.buffers),
                program(call.a, call.b, **call.inputs, **call.buffers),
            )
        )
        for wide, want in zip(exact, call.wanted, strict=True):
            torch.testing.assert_close(wide.to(want.dtype), want, rtol=1e-12, atol=1e-12)
        assert max(distances(name, program, near, call.wanted)) <= 1, variant
        for called, rounded in zip(same, near, strict=True):
            assert torch.equal(memory(called), memory(rounded))  # CPU tensors run the reference


def architectures(name: str) -> list[str]:
    """Return the record's targets, except targets that evt does not know, such as sm75."""
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
        assert "_run(" in text
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


# Convolutions


def test_convolution_with_relu_and_residual_is_its_formula() -> None:
    op = evt.load(SAMPLES / "conv_relu_add.evt", stride=2, padding=1)
    assert op.request.operation == "conv2d"
    x, w, bias = torch.randn(2, 5, 9, 8).half(), torch.randn(6, 5, 3, 3).half(), torch.randn(6).half()
    residual = torch.randn(2, 6, 5, 4).half()
    exact = torch.relu(functional.conv2d(x.double(), w.double(), bias.double(), 2, 1)) + residual.double()
    inputs = {"bias": bias, "residual": residual}
    torch.testing.assert_close(op.reference(x, w, float64=True, **inputs), exact, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(op(x, w, **inputs), exact.half(), rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize("arch", ["sm80", "sm89"])
def test_convolution_with_relu_and_residual_has_both_routes(arch: str) -> None:
    path = str(SAMPLES / "conv_relu_add.evt")
    for route, kernel in (("stock", "DefaultConv2dFpropWithBroadcast<"), ("evt", "DefaultConv2dFprop<")):
        words = ["emit", path, "--arch", arch, "--padding", "1", "--route", route]
        result = CliRunner().invoke(main, words)
        assert result.exit_code == 0, result.output
        assert kernel in result.stdout
    shown = CliRunner().invoke(main, ["explain", "--verbose", path, "--arch", arch, "--padding", "1"]).stdout
    assert "-> conv-stock-2x: " in shown
    assert re.search(r"   conv-evt-2x: .*\n +it also applies, with lower priority", shown)


@pytest.mark.parametrize("arch", ["sm80", "sm90", "sm100"])
@pytest.mark.parametrize(
    "operation", ["gemm", "linear", *(f"conv{rank}d{of}" for rank in (1, 2, 3) for of in ("", "_dgrad", "_wgrad"))]
)
def test_one_epilogue_is_for_every_operation(operation: str, arch: str) -> None:
    size = {"kernel_size": 3} if operation.endswith("wgrad") else {}
    op = evt.load(SAMPLES / "one_epilogue.evt", operation, **size)
    assert op.request.operation == operation
    assert f"for {arch}" in op.emit(arch).splitlines()[0]


def run(script: str) -> str:
    """Return the output of a script that runs without a GPU."""
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "PYTHONWARNINGS": "error"}
    command = [sys.executable, str(SAMPLES / script)]
    done = subprocess.run(command, capture_output=True, encoding="utf-8", env=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_norm_between_two_products() -> None:
    ours, eager = (float(number) for number in re.findall(r"relative error (\S+)", run("norms.py")))
    assert ours < eager < 4e-3


@pytest.mark.parametrize("name", SCRIPTS)
def test_scripts_run_without_a_gpu(name: str) -> None:
    output = run(name)
    assert "on sm90: own_sm90" in output
    errors = [float(number) for number in re.findall(r"relative \w+ (\S+)", output)]
    assert len(errors) == 2
    assert max(errors) < 5e-3


def test_weights_of_8_bits() -> None:
    weight, x, bias = torch.randn(48, 256), torch.randn(9, 256).bfloat16(), torch.randn(48).bfloat16()
    s = (weight.unflatten(1, (2, 128)).abs().amax(2) / 127).bfloat16()
    scales = s.repeat_interleave(128, 1)
    rounded = (weight / scales).round().clamp(-127, 127).to(torch.int8)
    found = evt.load(SAMPLES / "int8_weights.evt")(x, rounded, s=s, bias=bias)
    want = functional.gelu(x.double() @ (rounded * scales.double()).T + bias)
    assert found.dtype == torch.bfloat16
    torch.testing.assert_close(found.double(), want, rtol=0.01, atol=0.01)


def test_weights_of_4_bits() -> None:
    weight, x, bias = torch.randn(48, 256), torch.randn(9, 256).bfloat16(), torch.randn(48).bfloat16()
    groups = weight.unflatten(1, (2, 128))
    s = ((groups.amax(2) - groups.amin(2)) / 15).bfloat16()
    z = (-8 - groups.amin(2) / s).round().clamp(-128, 127)
    codes = ((groups / s[:, :, None]).round() + z[:, :, None]).clamp(-8, 7).flatten(1)
    inputs = {"s": s, "z": z.to(torch.int8), "bias": bias}
    found = evt.load(SAMPLES / "int4_weights.evt")(x, evt.prepare(evt.pack_int4(codes)), **inputs)
    dequantised = (codes - z.repeat_interleave(128, 1)) * s.repeat_interleave(128, 1)
    want = functional.gelu(x.double() @ dequantised.double().T + bias)
    torch.testing.assert_close(found.double(), want, rtol=0.01, atol=0.01)


def test_a_causal_convolution_of_a_video() -> None:
    x, weight = torch.randn(1, 8, 3, 6, 5).bfloat16(), torch.randn(16, 8, 3, 3, 3).bfloat16() / 16
    bias, residual = torch.randn(16).bfloat16(), torch.randn(1, 16, 3, 6, 5).bfloat16()
    op = evt.load(SAMPLES / "video_conv_silu.evt", padding=((2, 0), 1, 1))
    found = op(x, weight, bias=bias, residual=residual)
    padded = functional.pad(x.double(), (1, 1, 1, 1, 2, 0))
    want = functional.silu(functional.conv3d(padded, weight.double(), bias.double())) + residual.double()
    torch.testing.assert_close(found.double(), want, rtol=0.01, atol=0.02)
