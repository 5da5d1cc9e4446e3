"""Kernels with work on their operands through the real nvcc: of a product of matrices and of a convolution."""

from __future__ import annotations

import ctypes
import json
from collections.abc import Callable
from pathlib import Path

import pytest

import evt
from evt.build import BuildEvent, KernelSource, build
from evt.emission import emit
from evt.plan import Plan

pytestmark = [pytest.mark.nvcc, pytest.mark.slow]

PLANS: dict[str, Callable[[], Plan]] = {
    "both operands": lambda: evt.gemm(
        "in t: f32[k]; A = relu(s[k]*(A - mu[m]) + alpha*t); B = B*u[n]; D = relu(acc + bias)"
    ).plan("sm80", "bf16"),
    "a padded convolution": lambda: evt.conv2d("A = relu(s[k]*A + t[k]); D = relu(acc + bias) + C", padding=1).plan(
        "sm80", "f16"
    ),
}


@pytest.fixture(scope="module")
def plans() -> dict[str, Plan]:
    return {name: make() for name, make in PLANS.items()}


@pytest.fixture(scope="module")
def said() -> list[str]:
    """What nvcc printed."""
    return []


@pytest.fixture(scope="module")
def libraries(plans: dict[str, Plan], said: list[str]) -> dict[str, Path]:
    def listen(event: BuildEvent) -> None:
        if event.kind == "end" and event.text:
            said.append(event.text)

    sources = [KernelSource(emit(each), each.target.gencode) for each in plans.values()]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NVCC_APPEND_FLAGS", "-Xcompiler -Wall,-Wextra")
        return dict(zip(plans, build(sources, jobs=1, on_event=listen), strict=True))


@pytest.mark.parametrize("name", PLANS)
def test_compiles_without_a_warning_and_says_what_it_takes(
    libraries: dict[str, Path], plans: dict[str, Plan], said: list[str], name: str
) -> None:
    assert said == []
    library = ctypes.CDLL(str(libraries[name]))
    library.evt_schema.restype = ctypes.c_char_p
    assert json.loads(library.evt_schema()) == json.loads(plans[name].schema)
