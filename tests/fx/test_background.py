"""Kernels are built while Inductor compiles the rest of their graph, and the compilation waits for them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch._inductor.config as inductor

import evt
from evt.compilation import KernelSource
from evt.compilation.pool import current_cancellation
from evt.diagnostics import Diagnostic
from evt.errors import BuildError
from evt.fx import kernels
from evt.fx.backend import FusePass, backend
from evt.fx.records import RECORDS
from tests.support.fake_nvcc import make_room
from tests.support.stub_device import plan_for_h200

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.usefixtures("fresh_compiler")]

ALWAYS: Mapping[str, Any] = {"evt.rule": "always", "evt.devices": ("cpu",)}
#: The longest wait for another thread, in seconds.
_PATIENCE = 60


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = torch.nn.Linear(16, 32), torch.nn.Linear(32, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(torch.nn.functional.gelu(self.up(x)))


@pytest.fixture
def fresh_compiler() -> None:
    torch._dynamo.reset()
    RECORDS.clear()


@pytest.fixture
def model() -> Net:
    torch.manual_seed(0)
    return Net().half().eval()


@pytest.fixture
def x() -> torch.Tensor:
    return torch.randn(8, 16, generator=torch.Generator().manual_seed(8)).half()


def compiled(model: torch.nn.Module) -> Any:
    return torch.compile(model, backend=partial(backend, options=ALWAYS))


def building(monkeypatch: pytest.MonkeyPatch, build: Callable[..., None]) -> None:
    """Plan regions on the CPU as on an H200, and build with a stub."""

    def built(sources: Sequence[KernelSource], **keywords: Any) -> list[Path]:
        build(sources, **keywords)
        return [Path()] * len(sources)

    plan_for_h200(monkeypatch.setattr)
    monkeypatch.setattr(kernels, "build", built)


def builders() -> list[str]:
    return [each.name for each in threading.enumerate() if each.name.startswith("evt")]


def test_kernels_are_built_beside_inductor(model: Net, x: torch.Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
    """The build ends only after Inductor has gone on, and the call waits for the build."""
    gone_on, built = threading.Event(), list[KernelSource]()

    def build(sources: Sequence[KernelSource], **_: Any) -> None:
        assert gone_on.wait(_PATIENCE)
        built.extend(sources)

    building(monkeypatch, build)
    with torch.no_grad(), inductor.patch(post_grad_custom_post_pass=lambda graph: gone_on.set()):
        got = compiled(model)(x)
    torch.testing.assert_close(got, model(x), rtol=5e-3, atol=5e-3)
    assert len(set(built)) == len(built) > 0
    assert not builders()
    assert [row.fused for row in evt.report(model).rows] == [True, True]


@pytest.mark.parametrize("beside", [True, False])
def test_a_failing_kernel_leaves_its_region_to_inductor(
    beside: bool, model: Net, x: torch.Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other regions keep their kernels, and the report has each product once."""
    asked: list[KernelSource] = []

    def build(sources: Sequence[KernelSource], **_: Any) -> None:
        asked.extend(sources)
        if any("gelu" in each.text for each in sources):
            raise BuildError(Diagnostic("E0703", "nvcc refuses the source"))

    building(monkeypatch, build)
    run = compiled(model) if beside else torch.compile(model)
    alone = None if beside else FusePass(rule="always", devices=("cpu",))
    with torch.no_grad(), inductor.patch(post_grad_custom_pre_pass=alone):
        torch.testing.assert_close(run(x), model(x), rtol=5e-3, atol=5e-3)
    rows = evt.report(model).rows if beside else RECORDS[-1].rows
    reasons = [row.reason for row in rows]
    assert len(reasons) == 2
    assert "E1019" in reasons[0]
    assert "E0703: nvcc refuses the source" in reasons[0]
    assert reasons[1] == ""
    assert len(RECORDS) == 1


@pytest.mark.parametrize("kind", [RuntimeError, KeyboardInterrupt])
def test_an_error_of_inductor_ends_the_builds(
    kind: type[BaseException], model: Net, x: torch.Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = []

    def build(sources: Sequence[KernelSource], **_: Any) -> None:
        cancellation, stop = current_cancellation(), threading.Event()
        assert cancellation is not None
        with cancellation.watch(stop.set):
            ended.append(stop.wait(_PATIENCE))

    def refuse(graph: torch.fx.Graph) -> None:
        raise kind("no")

    building(monkeypatch, build)
    with torch.no_grad(), inductor.patch(post_grad_custom_post_pass=refuse), pytest.raises(BaseException, match="no"):
        compiled(model)(x)
    assert ended == [True]
    assert not builders()


def test_other_errors_of_a_build_are_raised(model: Net, x: torch.Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
    def build(sources: Sequence[KernelSource], **_: Any) -> None:
        raise OSError("the disk is gone")

    building(monkeypatch, build)
    with torch.no_grad(), pytest.raises(Exception, match="the disk is gone"):
        compiled(model)(x)
    assert not builders()


#: Two processes, one after the other, that compile a model as on an H200, by the nvcc and in the cache of arguments.
#: Each prints the number of emitted texts, and of the compilers that have started. They are forks of a process that has
#: imported PyTorch and compiled nothing.
_PROCESSES = """
import json, os, sys, warnings
from functools import partial
from pathlib import Path
import torch
import torch._inductor.compile_fx
import evt.emission
from evt.compilation import Cache, Toolchain, build
from evt.fx import kernels
from tests.fx.test_background import ALWAYS, Net
from tests.support.stub_device import plan_for_h200

warnings.simplefilter("ignore")
nvcc, root, log = map(Path, sys.argv[1:])
for _ in range(2):
    if child := os.fork():
        assert os.waitpid(child, 0)[1] == 0
        continue
    plan_for_h200(setattr)
    tools = Toolchain(nvcc, "13.0.88", Path("/opt/cutlass"), "4.2.0")
    kernels.build = partial(build, cache=Cache(root), toolchain=tools)
    model = torch.nn.Sequential(*(Net() for _ in range(2))).half().eval()
    with torch.no_grad():
        torch.compile(model, backend="evt", options=ALWAYS)(torch.ones(8, 16).half())
    emitted = evt.emission._emitted.cache_info().misses
    started = sum(line.startswith("start") for line in log.read_text().splitlines())
    print(json.dumps([emitted, started]))
    break
"""


@pytest.mark.slow
def test_a_second_process_builds_nothing(tmp_path: Path) -> None:
    """Both processes print the texts of distinct kernels only, though the model has four products."""
    room = make_room(tmp_path)
    command = [sys.executable, "-c", _PROCESSES, *map(str, (room.tools.nvcc, room.cache.root, room.file))]
    environment = {**os.environ, "EVT_BUILD_WAY": "parts"}  # nvcc compiles own kernels, too
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    (first, built), (second, after) = map(json.loads, done.stdout.splitlines())
    assert first == second == 2
    assert after == built > 0
    assert not room.left_over()
