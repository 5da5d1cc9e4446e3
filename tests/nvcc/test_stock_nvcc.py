"""Stock epilogues through the real nvcc: one kernel of each generation, and a convolution, as whole libraries."""

from __future__ import annotations

import ctypes
import json
from pathlib import Path

import pytest

from evt.build import BuildEvent, KernelSource, build
from evt.diagnostics import Source
from evt.emission import emit
from evt.plan import Plan
from evt.program import Program

pytestmark = [pytest.mark.nvcc, pytest.mark.slow]

#: (formula, operation, geometry, target).
KERNELS = {
    "gemm-2x": ("D = relu(alpha*acc + bias)*C + residual", "gemm", {}, "sm80"),
    "gemm-3x": ("out D, Z; Z = alpha*acc + bias + 0.5*C; D = clamp(Z, 0, 6)", "gemm", {}, "sm90"),
    "conv-2x": ("D = relu(acc + bias) + residual", "conv2d", {"padding": 1}, "sm89"),
}


@pytest.fixture(scope="module")
def plans() -> dict[str, Plan]:
    return {
        name: Program(Source(formula), operation, route="stock", **geometry).plan(arch, "f16", "f16")
        for name, (formula, operation, geometry, arch) in KERNELS.items()
    }


@pytest.fixture(scope="module")
def built(plans: dict[str, Plan]) -> tuple[dict[str, Path], dict[str, str]]:
    """The libraries, and what nvcc printed."""
    names, said = list(plans), dict.fromkeys(plans, "")

    def listen(event: BuildEvent) -> None:
        if event.kind == "end":
            said[names[event.index]] += event.text

    sources = [KernelSource(emit(each), each.target.gencode) for each in plans.values()]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NVCC_APPEND_FLAGS", "-Xcompiler -Wall,-Wextra -Xptxas -warn-spills")
        return dict(zip(names, build(sources, jobs=2, on_event=listen), strict=True)), said


@pytest.mark.parametrize("name", KERNELS)
def test_compiles_without_a_warning_or_a_spill(built: tuple[dict[str, Path], dict[str, str]], name: str) -> None:
    libraries, said = built
    assert libraries[name].is_file()
    assert said[name] == ""


@pytest.mark.parametrize("name", KERNELS)
def test_says_what_it_takes(built: tuple[dict[str, Path], dict[str, str]], plans: dict[str, Plan], name: str) -> None:
    library = ctypes.CDLL(str(built[0][name]))
    library.evt_schema.restype = ctypes.c_char_p
    assert json.loads(library.evt_schema()) == json.loads(plans[name].schema)
