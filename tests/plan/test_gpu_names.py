"""Targets by the names of GPUs, of architectures, and of this machine's own."""

from __future__ import annotations

import ctypes
import json
import re
from pathlib import Path

import pytest

import evt
from evt.plan import TARGETS, find_target
from evt.plan.gpus import GPUS
from tests.support.command_line import run

REQUIREMENTS = (Path(__file__).parents[2] / "docs/requirements.md").read_text()


@pytest.mark.parametrize(
    ("name", "target"),
    [
        *[("sm90", "sm90"), ("SM_90A", "sm90"), ("90", "sm90"), ("9.0", "sm90"), ("compute_100a", "sm100")],
        *[("h100", "sm90"), ("H100-SXM", "sm90"), ("NVIDIA H100 80GB HBM3", "sm90"), ("h200", "sm90")],
        *[("a100", "sm80"), ("NVIDIA A100-SXM4-80GB", "sm80"), ("NVIDIA A10G", "sm86"), ("a10", "sm86")],
        *[("rtx4090", "sm89"), ("RTX 4090", "sm89"), ("NVIDIA GeForce RTX 4070 Ti", "sm89"), ("l40s", "sm89")],
        *[("b200", "sm100"), ("GB300", "sm103"), ("rtx5090", "sm120"), ("rtx-pro-6000", "sm120")],
        ("NVIDIA RTX PRO 6000 Blackwell Workstation Edition", "sm120"),
    ],
)
def test_names(name: str, target: str) -> None:
    assert find_target(name).name == target


def test_every_gpu_is_found_and_every_target_has_one() -> None:
    assert list(GPUS) == list(TARGETS)
    assert [name for target, names in GPUS.items() for name in names if find_target(name).name != target] == []


def test_the_manual_has_the_gpus_of_each_target() -> None:
    rows = re.findall(r"^\| ((?:`sm\d+` ?)+)\| ([^|]+) \|", REQUIREMENTS, flags=re.M)
    found: dict[str, tuple[str, ...]] = {}
    for targets, gpus in rows:
        groups = [tuple(group.split(", ")) for group in gpus.split("; ")]
        names = re.findall(r"sm\d+", targets)
        found |= dict(zip(names, groups, strict=True))
    assert found == {target: names[: len(found[target])] for target, names in GPUS.items()}


@pytest.mark.parametrize(
    ("name", "message", "help_text"),
    [
        ("hopper", "there is no target `hopper`", "H100"),
        ("rtx40900", "there is no target `rtx40900`", "did you mean `RTX 4090`?"),
        ("sm9", "there is no target `sm9`", "did you mean `sm90`?"),
        ("sm70", "evt has no target `sm70`", "choose one of these"),
        ("V100", "`V100` is sm70, and evt has kernels for sm80, ", "choose one of these"),
        ("orin", "`orin` is sm87", "choose one of these"),
        ("", "there is no target ``", "native"),
    ],
)
def test_what_is_no_target(name: str, message: str, help_text: str) -> None:
    with pytest.raises(evt.TargetError) as caught:
        evt.gemm("D = acc").emit(name)
    (each,) = caught.value.diagnostics
    assert each.code == "E0501"
    assert each.message.startswith(message)
    assert help_text in each.help


class Driver:
    """A libcuda with one GPU of compute capability 8.9, or with none."""

    def __init__(self, count: int) -> None:
        self.count = count

    def cuInit(self, flags: int) -> int:  # noqa: N802
        return 0

    def cuDeviceGetCount(self, count: object) -> int:  # noqa: N802
        count._obj.value = self.count  # type: ignore[attr-defined]
        return 0

    def cuDeviceGet(self, device: object, index: int) -> int:  # noqa: N802
        return 0

    def cuDeviceGetAttribute(self, value: object, attribute: int, device: object) -> int:  # noqa: N802
        value._obj.value = {75: 8, 76: 9}[attribute]  # type: ignore[attr-defined]
        return 0


def test_native_is_the_gpu_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda name: Driver(1))
    assert find_target("native").name == find_target("Native").name == "sm89"


@pytest.mark.parametrize("libraries", [0, 1])
def test_native_needs_a_gpu(monkeypatch: pytest.MonkeyPatch, libraries: int) -> None:
    def load(name: str) -> Driver:
        if not libraries:
            raise OSError(name)
        return Driver(0)

    monkeypatch.setattr(ctypes, "CDLL", load)
    with pytest.raises(evt.TargetError, match="this machine has no GPU"):
        evt.gemm("D = acc").emit("native")


def test_python_and_the_command_line_take_them() -> None:
    op = evt.gemm("D = relu(acc + bias)")
    assert op.emit("h100") == op.emit("sm90")
    assert op.plan("RTX 4090").target.name == "sm89"
    assert op.explain("a100").details() == op.explain("sm80").details()
    assert run("emit", "D = relu(acc + bias)", "--arch", "H100").output == run("emit", "D = relu(acc + bias)").output
    assert run("check", "D = acc", "--arch", "l40s").exit_code == 0


def test_doctor_lists_them() -> None:
    lines = run("doctor").output.splitlines()
    assert f"  sm90   {', '.join(GPUS['sm90'])}" in lines
    assert json.loads(run("doctor", "--json").output)["targets"]["sm80"] == list(GPUS["sm80"])


@pytest.mark.parametrize(
    ("code", "said"),
    [("E0200", "E0201, E0202, E0203"), ("e0299", "E0205, E0206, E0207"), ("E9999", "E01 to E04 are about the program")],
)
def test_a_code_that_there_is_not(code: str, said: str) -> None:
    answer = run("explain", code)
    assert answer.exit_code == 2
    assert f"There is no diagnostic {code.upper()}." in answer.output
    assert said in answer.output
    assert len(answer.output) < 400
