"""The benchmark of networks' convolutions: their layers, cuDNN's fused convolutions, the best contender."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional

from evt.bench import CaseResult, VersionResult, convolution_case, describe_machine, suite, summarise
from evt.bench.answer import oracle
from evt.bench.case import Case, draw
from evt.bench.cudnn import cudnn_fused
from evt.bench.layers import NETWORKS
from evt.bench.report import BenchReport, notes
from evt.cli.bench import NETWORK_BATCHES
from evt.diagnostics import Source
from evt.eager.idiom import UnwrittenError
from evt.program import Program
from evt.workload import chosen
from tests.support.benchmarks import CPU, check

RESIDUAL = "D = relu(acc + bias + residual)"


@pytest.fixture
def cudnn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let PyTorch's operators for the CPU stand for cuDNN's."""

    def convolve(a: Any, b: Any, bias: Any, *shape: Any) -> Any:
        return {4: functional.conv2d, 5: functional.conv3d}[a.dim()](a, b, bias, *shape)

    def plain(a: Any, b: Any, bias: Any, *shape: Any) -> Any:
        return convolve(a, b, bias, *shape).relu()

    def added(a: Any, b: Any, z: Any, alpha: float, bias: Any, *shape: Any) -> Any:
        return (convolve(a, b, bias, *shape) + alpha * z).relu()

    monkeypatch.setattr(torch, "cudnn_convolution_relu", plain)
    monkeypatch.setattr(torch, "cudnn_convolution_add_relu", added)


def case_of(text: str, operation: str = "conv2d", shape: tuple[int, ...] = (2, 8, 5, 6), **geometry: Any) -> Case:
    rank = len(shape) - 2
    taken = {"padding": 1, "stride": 2, **geometry}
    filters = (4, *((shape[1] // taken.get("groups", 1), *[3] * rank)))
    return convolution_case("case", Program(Source(text), operation, **taken), (shape, filters), dtype="f32")


def test_networks() -> None:
    assert {name: network.images for name, network in NETWORKS.items()} == NETWORK_BATCHES
    assert [len(network.layers) for network in NETWORKS.values()] == [23, 12, 11, 16]
    names = [str(layer) for layer in NETWORKS["resnet"].layers]
    assert names[:6] == [
        "7x7/2 3->64 @224",
        "1x1 64->64 @56",
        "3x3 64->64 @56",
        "1x1 64->256 @56",  # the shortcut too
        "1x1 256->64 @56",
        "1x1 256->128 @56",
    ]
    assert names[6:11] == [
        "3x3/2 128->128 @56",
        "3x3 128->128 @28",
        "1x1 128->512 @28",
        "1x1/2 256->512 @56",
        "1x1 512->128 @28",
    ]
    assert names[-1] == "1x1 2048->512 @7"
    assert str(NETWORKS["depthwise"].layers[1]) == "3x3/2 96 depthwise @112"


@pytest.mark.parametrize("network", NETWORKS)
def test_suites_of_networks(network: str) -> None:
    cases, layers = suite(network), NETWORKS[network].layers
    assert len({case.name for case in cases}) == len(cases) == 3 * len(layers)
    assert {str(case.dag.operands[0].dtype) for case in cases} == {"f16"}
    geometries = {(layer.taps, layer.stride, layer.groups) for layer in layers}
    assert len({id(case.program) for case in cases}) <= 3 * len(geometries)
    for case, layer in zip(cases[::3], layers, strict=True):
        assert case.problem is not None
        sides = [-(-layer.side // layer.stride)] * 2
        assert list(case.problem.results) == sides
        assert case.m == NETWORKS[network].images * sides[0] * sides[1]
        assert (case.n, case.k) == (layer.filters, layer.channels // layer.groups * layer.taps**2)
    few = suite(network, "bf16", 3)
    assert {case.shapes[0][0] for case in few if case.shapes is not None} == {3}
    assert str(few[0].dag.operands[0].dtype) == "bf16"


@pytest.mark.parametrize(("network", "layer"), [("detector", "3x3 256->256 @20"), ("depthwise", "5x5/2 672 depthwise")])
def test_formulas_of_networks_are_right(network: str, layer: str) -> None:
    small = [case for case in suite(network, "f32", 1) if case.name.startswith(layer)]
    assert len(small) == 3
    for case in small:
        check(case, 2e-5)


def test_cases_are_chosen_by_words() -> None:
    names = ("3x3 64->64 @56", "1x1 64->256 @56", "3x3/2 128->128 @56")
    assert chosen(names, None) == chosen(names, "") == names
    assert chosen(names, "3x3/,->256") == chosen(names, " 3x3/  ->256, ") == names[1:]
    assert chosen(names, "5x5") == ()


@pytest.mark.usefixtures("cudnn")
@pytest.mark.parametrize(
    ("text", "given"),
    [
        (RESIDUAL, {}),
        ("D = relu(z + (b + acc))", {"bias": "in b: f32[n]\n", "dilation": 2}),
        ("D = relu(acc + bias)", {}),
        ("D = relu(acc)", {"groups": 2}),
        ("D = relu(acc + residual)", {}),
        ("D = relu(acc + bias) + residual", {}),
        ("D = residual + relu(first + acc)", {}),
        (RESIDUAL, {"operation": "conv3d", "shape": (2, 3, 4, 5, 6), "stride": (1, 2, 3)}),
    ],
)
def test_cudnn_computes_the_formula(text: str, given: dict[str, Any]) -> None:
    options = dict(given)
    case = case_of(options.pop("bias", "") + text, **options)
    answer = oracle(case, CPU)
    data = answer.data
    got = cudnn_fused(case)(data.A, data.B, *data.tensors.values())
    assert answer.error((got,)) < 1e-5


@pytest.mark.usefixtures("cudnn")
@pytest.mark.parametrize(
    "text",
    [
        "D = gelu(acc + bias)",
        "D = acc + bias",
        "D = relu(2*acc + bias)",
        "D = relu(acc + acc + bias)",
        "D = relu(acc + bias + bias)",
        "D = relu(acc + x + y)",
        "D = relu(acc + bias) + x + y",
        "D = relu(acc) + relu(acc + bias)",
        "D = relu(acc + bias) + bias",
        "in s: f32[m]; D = relu(acc + s)",
        "in bias: f16[n]; D = relu(acc + bias)",
        "out D: f16; D = relu(acc)",
        "out D, E; E = acc; D = relu(E)",
    ],
)
def test_cudnn_has_no_other_formula(text: str) -> None:
    with pytest.raises(UnwrittenError, match=re.escape("cuDNN fuses relu(acc + bias) and")):
        cudnn_fused(case_of(text))


def test_cudnn_has_no_other_geometry() -> None:
    with pytest.raises(UnwrittenError, match="both sides alike"):
        cudnn_fused(case_of(RESIDUAL, padding=((0, 1), (1, 1))))
    with pytest.raises(UnwrittenError, match="conv2d and conv3d"):
        cudnn_fused(case_of(RESIDUAL, "conv1d", (2, 8, 9)))
    with pytest.raises(UnwrittenError, match="conv2d and conv3d"):
        cudnn_fused(Case("case", Program(Source("D = relu(acc)")), 8, 8, 8, dtype="f32"))


def result(case: Case, **times: float) -> CaseResult:
    rows = tuple(VersionResult(name.replace("_", " "), summarise([time]), 1e-4) for name, time in times.items())
    return CaseResult(case, rows, {"A": 100, "D": 100}, kernel=("conv-halo-3x", "halo_232x64"))


def test_contender() -> None:
    case = case_of(RESIDUAL)
    assert result(case, evt=0.2, evt_again=0.1, eager=0.5, cudnn=0.3, compile=0.4, conv=0.25).contender == "cudnn"
    assert result(case, evt=0.2, evt_again=0.2, conv=0.1).contender is None
    unmeasured = CaseResult(
        case,
        (VersionResult("evt"), VersionResult("eager", failure="no"), VersionResult("compile", summarise([1.0]))),
        {},
    )
    assert unmeasured.contender == "compile"


def test_networks_are_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cases = suite("resnet")
    path = tmp_path / "bench.json"
    report = BenchReport(describe_machine(), {}, path)
    report.add_summary()
    assert "geometric" not in capsys.readouterr().out
    report.add(result(cases[6], evt=0.2, evt_again=0.202, eager=0.5, compile=0.25, cudnn=0.16, conv=0.1))
    report.add(result(cases[7], evt=0.2, eager=0.4))
    report.add(CaseResult(cases[8], (VersionResult("evt", failure="E0503: no route"),), {}))
    capsys.readouterr()
    report.add_summary()
    text = capsys.readouterr().out
    assert re.search(r"case +evt ms +eager ms +compile ms +cudnn ms +conv ms +evt / best +best +kernel", text)
    name = re.escape("3x3 64->64 @56 relu(acc + bias + residual)")
    times = r" +0\.2000 +0\.5000 +0\.2500 +0\.1600 +0\.1000 +1\.250 +cudnn +"
    assert re.search(name + times + "conv-halo-3x halo_232x64", text)
    name = re.escape("3x3 64->64 @56 relu(acc + bias) + residual")
    assert re.search(name + r" +0\.2000 +0\.4000 +- +- +- +0\.500 +eager +conv-halo-3x", text)
    assert "failed: E0503: no route" in text
    assert "evt / best contender: geometric mean 0.791 over 2 cases, at most 1.250" in text
    assert "kernel: conv-halo-3x halo_232x64" in notes(report.results[0])
    first, _, last = json.loads(path.read_text())["cases"]
    assert first["kernel"] == {"route": "conv-halo-3x", "config": "halo_232x64"}
    assert (first["a_shape"], first["b_shape"]) == ([256, 64, 56, 56], [64, 64, 3, 3])
    assert (first["stride"], first["padding"], first["groups"]) == ([1, 1], [[1, 1], [1, 1]], 1)
    assert (first["versions"]["evt"]["ratio_to_conv"], first["contender"]) == (2.0, "cudnn")
    assert (last["kernel"], last["contender"]) == (None, None)
    assert not report.complete


def test_data_of_a_network_is_channels_last() -> None:
    case = suite("detector", images=1)[3]
    data = draw(case, CPU)
    for tensor in (data.A, data.B, *data.outputs.values(), data.tensors["residual"]):
        assert tensor.is_contiguous(memory_format=torch.channels_last)
