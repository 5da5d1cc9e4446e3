"""torch.compile(backend="evt") on a CPU: the pass, its rules, refusals, reports."""

from __future__ import annotations

import importlib.metadata
import logging
import re
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._inductor.utils import run_and_get_code

import evt
from evt.compilation import KernelSource
from evt.diagnostics import Diagnostic
from evt.errors import BuildError, TargetError
from evt.fx import choose, kernels
from evt.fx import measure as measuring
from evt.fx.backend import FusePass, backend
from evt.fx.cost_model import Benefit
from evt.fx.records import RECORDS
from evt.measured import Store
from evt.plan import find_target
from tests.support.stub_device import plan_for_h200

from .compiling import ALWAYS, Net, close, compiled, inputs, seen_on_a_gpu

pytestmark = [
    pytest.mark.filterwarnings("ignore"),  # PyTorch's warning about a future removal
    pytest.mark.usefixtures("fresh_compiler"),
]


@pytest.fixture
def model() -> Net:
    torch.manual_seed(0)
    return Net().half().eval()


def test_the_backend_has_a_name() -> None:
    """An installation, editable or not, names it to PyTorch."""
    found = importlib.metadata.entry_points(group="torch_dynamo_backends")
    mine = [each for each in found if each.name == "evt"]
    if not mine:
        pytest.skip("evt is not installed, or was before it had a backend: pip install -e .")
    assert mine[0].value == "evt.fx.backend:backend"
    assert "evt" in torch._dynamo.list_backends()


def test_without_a_gpu_the_model_runs_and_the_report_says_why(model: Net) -> None:
    x = inputs()
    close(torch.compile(model, backend=backend)(x), model(x))
    found = evt.report(model)
    assert [row.fused for row in found.rows] == [False, False]
    assert all("E1016" in row.reason for row in found.rows)
    assert "0 of 2 products fused" in str(found)
    assert "kernels run on CUDA devices" in str(found)


@pytest.mark.parametrize(
    ("mode", "dynamic"), [(None, None), ("default", True), ("reduce-overhead", False), ("max-autotune", None)]
)
def test_fused_gives_what_eager_gives(model: Net, mode: str | None, dynamic: bool | None) -> None:
    function = compiled(model, mode=mode, dynamic=dynamic)
    for rows in (8, 5) if mode is None else (8,):
        close(function(inputs(rows)), model(inputs(rows)))
    assert all(row.fused for row in evt.report(model).rows)


@pytest.mark.parametrize("keywords", [{"mode": "lite"}, {"options": {**ALWAYS, "use_post_grad_passes": False}}])
def test_a_mode_without_passes_says_that_nothing_is_fused(model: Net, keywords: Any) -> None:
    if "use_post_grad_passes" not in torch._inductor.list_options():
        pytest.skip("PyTorch has no such option")
    with pytest.warns(evt.NoKernelWarning, match="evt fuses nothing"):
        close(compiled(model, **keywords)(inputs()), model(inputs()))
    assert not RECORDS


@pytest.mark.parametrize("dynamic", [False, True])
def test_inductors_code_calls_past_the_dispatcher(model: Net, dynamic: bool) -> None:
    got, (code, *_) = run_and_get_code(compiled(model, dynamic=dynamic), inputs())
    close(got, model(inputs()))
    assert len(re.findall(r"^ +evt_launch_\w+\[", code, re.MULTILINE)) == 2
    assert "torch.ops.evt.launch.default(" not in code
    assert code.count("import Site as evt_site") == 1


def test_dynamic_batches_are_compiled_once(model: Net) -> None:
    function = compiled(model, dynamic=True)
    for rows in (8, 3, 64, 33):
        close(function(inputs(rows)), model(inputs(rows)))
    assert len(RECORDS) == 1


def test_training_computes_gradients(model: Net) -> None:
    """The region is in the forward graph; autograd has its own around it."""
    mine = Net()
    with torch.enable_grad():
        x = torch.randn(8, 16)
        torch.backends.cuda.matmul.allow_tf32 = True
        try:
            compiled(mine)(x).sum().backward()
        finally:
            torch.backends.cuda.matmul.allow_tf32 = False
        got = mine.up.weight.grad.clone()
        mine.up.weight.grad = None
        mine(x).sum().backward()
    torch.testing.assert_close(got, mine.up.weight.grad)


def test_the_pass_beside_inductor(model: Net) -> None:
    """Among the options of torch.compile, torch 2.6 ignores it."""
    with torch._inductor.config.patch(post_grad_custom_pre_pass=FusePass("always", ("cpu",))):
        close(torch.compile(model)(inputs()), model(inputs()))
    assert len(evt.report().rows) == 2
    assert all(row.fused for row in evt.report().rows)


def test_options_of_inductor_are_passed_on(model: Net) -> None:
    with pytest.raises(Exception, match="no_such_option"):
        compiled(model, {"no_such_option": 1})(inputs())
    with pytest.raises(Exception, match="there is no rule `fastest`"):
        compiled(model, {"evt.rule": "fastest"})(inputs())
    close(compiled(model, {**ALWAYS, "epilogue_fusion": False})(inputs()), model(inputs()))


# Rules


def test_what_loses_by_estimate_is_left_alone(model: Net) -> None:
    close(compiled(model, {"evt.devices": ("cpu",)})(inputs()), model(inputs()))
    wide = torch.nn.Sequential(torch.nn.Linear(1024, 4096), torch.nn.GELU()).half().eval()
    x = torch.randn(2048, 1024).half()
    assert torch.isfinite(compiled(wide, {"evt.devices": ("cpu",)})(x)).all()
    (row,) = evt.report(wide).rows
    assert row.fused
    assert "saves" in row.gain


@pytest.mark.parametrize(("times", "fused"), [((1.0, 2.0), True), ((2.0, 1.0), False)])
def test_what_loses_by_measurement_is_left_alone(
    model: Net, monkeypatch: pytest.MonkeyPatch, times: tuple[float, float], fused: bool
) -> None:
    monkeypatch.setattr(choose, "measured", lambda fused: Benefit(times[1], times[0], measured=True))
    close(compiled(model, {"evt.tune": True, "evt.devices": ("cpu",)})(inputs()), model(inputs()))
    rows = evt.report(model).rows
    assert [row.fused for row in rows] == [fused, fused]
    assert all(("measured: 1.0 us" if fused else "E1017") in (row.gain if fused else row.reason) for row in rows)


@pytest.mark.parametrize("dynamic", [False, True])
def test_both_are_timed_and_kept(model: Net, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, dynamic: bool) -> None:
    """The unfused region is compiled inside of the compilation; a second one finds the times."""
    rounds = []

    def clock(calls: Any) -> list[float]:
        rounds.append(len(calls))
        for call in calls:
            assert call() is not None
        return [1.0] * len(calls)

    store = Store(tmp_path)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda index: "H200")
    monkeypatch.setattr(measuring, "device_target", lambda index: find_target("sm90"))
    monkeypatch.setattr(choose, "measured", lambda fused: measuring.measured(fused, clock, store))
    options = {"evt.tune": True, "evt.devices": ("cpu",)}
    for _ in range(2):
        torch._dynamo.reset()
        close(compiled(model, options, dynamic=dynamic)(inputs()), model(inputs()))
        assert set(rounds) == {2}
        assert len(rounds) == 2 * (2 + measuring.ROUNDS)
    assert len(store) == 2
    assert all(row.benefit is not None and row.benefit.measured for row in evt.report(model).rows)


# Kernels


def test_kernels_are_built_side_by_side_before_the_graph_is_lowered(
    model: Net, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = seen_on_a_gpu(monkeypatch)
    close(compiled(model)(inputs()), model(inputs()))
    assert len(asked) == 1
    assert len(asked[0]) == len(set(asked[0])) == 2


def test_each_product_of_fixed_sizes_gets_one_kernel(model: Net, monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls of symbolic sizes choose among all kernels of their layer."""
    asked = seen_on_a_gpu(monkeypatch)
    run = compiled(model)
    for rows in (8, 64, 512):
        run(inputs(rows))
    fixed, symbolic = map(set, asked)
    assert len(fixed) == 2
    assert len(symbolic) > 2


class ConvNet(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = torch.nn.Conv2d(64, 64, 3, padding=1, bias=False), torch.nn.BatchNorm2d(64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.norm(self.conv(x)) + x)


def test_any_batch_takes_the_same_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch makes the graph of one image anew, with its nodes in another order."""
    asked = seen_on_a_gpu(monkeypatch)
    run = compiled(ConvNet().half().eval().to(memory_format=torch.channels_last), dynamic=True)
    for count in (4, 2, 1):
        run(torch.randn(count, 64, 14, 14).half().contiguous(memory_format=torch.channels_last))
    first, second = asked
    assert first
    assert set(second) == set(first)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"evt.rule": "sometimes"}, "E0607.*no rule `sometimes`"),
        ({"evt.devices": "cpu"}, "E0607.*`devices` is"),
        ({"evt.devices": ("cuda:0",)}, "E0607.*`devices` has cuda:0"),
        ({"evt.devices": ("gpu",)}, "E0607.*`devices` has gpu"),
        ({"evt.devices": [torch.device("cpu")]}, "E0607.*`devices` has"),
        ({"evt.tune": "no"}, "E0607.*`evt.tune` is"),
        ({"evt.rules": "always"}, "E0602.*no option `evt.rules`"),
        ({3: "always"}, "E0602.*no option of type int"),
    ],
)
def test_options_of_ours_are_checked(model: Net, options: Mapping[str, Any], words: str) -> None:
    with pytest.raises(Exception, match=words):  # PyTorch's own, around ours
        compiled(model, options)(inputs())


def test_a_region_without_a_kernel_is_left_alone(model: Net, monkeypatch: pytest.MonkeyPatch) -> None:
    seen_on_a_gpu(monkeypatch)

    def refuse(*_: Any) -> Any:
        raise TargetError(Diagnostic("E0503", "no route computes it"))

    monkeypatch.setattr(kernels, "plan_kernels", refuse)
    close(compiled(model)(inputs()), model(inputs()))
    assert all("E1018" in row.reason and "E0503" in row.reason for row in evt.report(model).rows)


def test_without_nvcc_the_model_runs_and_the_report_says_why(model: Net, monkeypatch: pytest.MonkeyPatch) -> None:
    seen_on_a_gpu(monkeypatch)

    def refuse(*_: Any, **__: Any) -> Any:
        raise BuildError(Diagnostic("E0701", "nvcc was not found"))

    monkeypatch.setattr(kernels, "build", refuse)
    close(compiled(model)(inputs()), model(inputs()))
    assert all("E1019" in row.reason and "E0701: nvcc was not found" in row.reason for row in evt.report(model).rows)
    with pytest.raises(BuildError):
        evt.prebuild(model, (inputs(),), options=ALWAYS)


def test_a_process_that_never_compiles_refuses_a_missing_kernel(
    model: Net, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    plan_for_h200(monkeypatch.setattr)
    monkeypatch.setattr(kernels, "build", evt.compilation.build)
    monkeypatch.setenv("EVT_CACHE_DIR", str(tmp_path))
    tmp_path.chmod(0o700)
    monkeypatch.setattr(evt, "compile", "never")
    with pytest.raises(Exception, match="E0709"):  # PyTorch's own, around ours
        compiled(model)(inputs())
    with pytest.raises(BuildError, match="E0709"):
        evt.prebuild(model, (inputs(),), options=ALWAYS)


def test_the_progress_is_logged(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    def build(sources: list[KernelSource], on_event: Callable[..., None]) -> list[Path]:
        for index, _ in enumerate(sources):
            on_event(evt.compilation.BuildEvent("start", "key", index))
            on_event(evt.compilation.BuildEvent("built", "key", index))
        return [Path()] * len(sources)

    monkeypatch.setattr(kernels, "build", build)
    with caplog.at_level(logging.INFO, "evt"):
        kernels.build_all([KernelSource(each, "sm_90a") for each in "aba"])
    assert "2 of 2 kernels ready" in caplog.text


# Reports


def test_reports_are_of_models(model: Net) -> None:
    other = Net().half().eval()
    first, second = compiled(model), compiled(other)
    first(inputs())
    second(inputs())
    first(torch.cat([inputs(), inputs()]))  # compiled again, for any number of rows
    assert [len(evt.report(each).rows) for each in (model, other)] == [4, 2]
    assert evt.report(first) == evt.report(model)
    assert len(evt.report().rows) == 6
    assert "no graph" in str(evt.report(Net()))


def test_equal_models_share_graphs_and_rows(model: Net) -> None:
    """Dynamo compiles one graph for both; a model that was never called has no rows."""
    shared = partial(backend, options=ALWAYS)
    others = [Net().half().eval() for _ in range(2)]
    for each in (model, others[0], model):
        close(torch.compile(each, backend=shared)(inputs()), each(inputs()))
    assert [len(evt.report(each).rows) for each in (model, *others)] == [2, 2, 0]
    assert len(evt.report().rows) == 2


def test_records_end_with_their_models() -> None:
    def run() -> None:
        compiled(Net().half().eval())(inputs())
        torch._dynamo.reset()

    for _ in range(3):
        run()
    assert len(RECORDS) <= 2


def test_a_report_as_html(model: Net) -> None:
    compiled(model)(inputs())
    text = evt.report(model)._repr_html_()
    assert text.count("<tr>") == 3
    assert "out D: f16[m, n]" in text
