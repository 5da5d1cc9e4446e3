"""Emitted kernels through the real nvcc: a representative few, of every family, as whole libraries.

They are compiled with the warnings of the host compiler on. CUTLASS comes by ``-isystem``, so what is said is
said about our text.
"""

from __future__ import annotations

import ctypes
import json
import re
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from evt.build import BuildEvent, KernelSource, build
from evt.emission import emit
from evt.ir import TypedDag
from evt.plan import Layout, Plan, Signature, find_target, natural_signature, plan
from evt.program import Program, gemm
from evt.spec import optimised_graph

pytestmark = pytest.mark.nvcc

RELU_RESIDUAL = "D = relu(alpha*acc + beta*C) + residual"
#: Every way of a tile: the source C, auxiliary loads and stores; a vector or scalar.
TILES = """\
in scale: f32[m?], bias
out D, E
E = alpha*acc + beta*C
D = relu(E*scale) + residual + bias
"""
#: ``z`` is shared: two outputs and a column-major D, with every broadcast.
SHARED = """\
in alpha, rows: f32[m], bias: bf16[n], mask: bf16[m, n]
out D: bf16[n, m], gate: bf16[m, n], twice: f32[m, n]
z = alpha*acc + rows + bias
gate = sigmoid(z)
twice = gate*mask
D = z*gate + twice*z
"""


def aligned_to_one(signature: Signature, general: str) -> Signature:
    """The signature of tensors that start and stride anywhere; ``general`` has no mode with stride 1."""

    def loosen(name: str, layout: Layout) -> Layout:
        return replace(layout, alignment=1, contiguous=None if name == general else layout.contiguous)

    return Signature(
        loosen("A", signature.a),
        loosen("B", signature.b),
        tuple((name, loosen(name, layout)) for name, layout in signature.tensors),
    )


def strided() -> Plan:
    program = gemm("D = gelu(acc + bias) * gate + other[n, m]")
    dag: TypedDag = optimised_graph(program.spec, "f16")
    signature = aligned_to_one(natural_signature(dag), "gate")
    return plan(dag, signature, find_target("sm89"))


def planned(program: Program, arch: str, dtype: str, *, fused: bool = True) -> Plan:
    return program.plan(arch, dtype, dtype, fused=fused)


PLANS: dict[str, Callable[[], Plan]] = {
    "sm90-f16": lambda: planned(gemm(RELU_RESIDUAL), "sm90", "f16"),
    "sm90-bf16-shared": lambda: planned(gemm(SHARED, config="cooperative_128x128x64"), "sm90", "bf16", fused=False),
    "sm90-f32": lambda: planned(gemm("D = silu(acc * scale[m] + bias)"), "sm90", "f32"),
    "sm100-f16": lambda: planned(gemm(TILES), "sm100", "f16"),
    "sm120-e4m3": lambda: planned(gemm(TILES), "sm120", "e4m3"),
    "sm80-f16": lambda: planned(gemm(RELU_RESIDUAL), "sm80", "f16"),
    "sm89-f16-strided": strided,
    "sm80-bf16-transposed": lambda: planned(gemm(SHARED.replace("bf16[n]", "bf16[l, n]")), "sm80", "bf16"),
}


@pytest.fixture(scope="module")
def plans() -> dict[str, Plan]:
    return {name: make() for name, make in PLANS.items()}


@pytest.fixture(scope="module")
def said() -> dict[str, str]:
    """What nvcc printed, by plan and stage."""
    return {}


@pytest.fixture(scope="module")
def libraries(plans: dict[str, Plan], said: dict[str, str]) -> dict[str, Path]:
    names = list(plans)

    def listen(event: BuildEvent) -> None:
        if event.kind == "end" and event.text:
            said[f"{names[event.index]} {event.stage}"] = event.text
        if event.kind in ("end", "built"):
            print(f"{names[event.index]} {event.stage or 'all'}: {event.seconds:.0f} s")

    sources = [KernelSource(emit(each), each.target.gencode) for each in plans.values()]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NVCC_APPEND_FLAGS", "-Xcompiler -Wall,-Wextra")
        return dict(zip(names, build(sources, jobs=2, on_event=listen), strict=True))


@pytest.fixture(params=PLANS)
def name(request: pytest.FixtureRequest) -> str:
    chosen: str = request.param
    return chosen


def test_the_few_are_representative(plans: dict[str, Plan]) -> None:
    assert {each.family for each in plans.values()} == {"2x", "3x", "sm100", "sm120"}
    assert {each.tree for each in plans.values()} == {True, False}
    assert {each.config.schedule for each in plans.values()} == {"pingpong", "cooperative", "one_sm", "multistage"}
    assert {each.target.name for each in plans.values()} == {"sm80", "sm89", "sm90", "sm100", "sm120"}
    kinds = {node.kind for each in plans.values() for node in each.nodes}
    assert {"acc", "source", "scalar", "row", "column", "tile", "tile_strided", "compute", "store"} <= kinds


def test_compiles_without_a_warning(libraries: dict[str, Path], said: dict[str, str], name: str) -> None:
    assert libraries[name].is_file()
    assert {step: text for step, text in said.items() if step.startswith(f"{name} ")} == {}


def test_needs_no_driver_to_load(libraries: dict[str, Path], name: str) -> None:
    command = ["nm", "-D", "--undefined-only", str(libraries[name])]
    undefined = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert re.findall(r"\bcu[A-Z]\w*", undefined) == []
    command = ["readelf", "-d", str(libraries[name])]
    assert "libcuda" not in subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_says_what_it_takes(libraries: dict[str, Path], plans: dict[str, Plan], name: str) -> None:
    library = ctypes.CDLL(str(libraries[name]))
    library.evt_schema.restype = ctypes.c_char_p
    schema = json.loads(library.evt_schema())
    assert schema == json.loads(plans[name].schema)
    assert schema["fields"] == [[field.name, field.kind] for field in plans[name].fields]


def test_refuses_arguments_of_another_size(libraries: dict[str, Path], plans: dict[str, Plan], name: str) -> None:
    library = ctypes.CDLL(str(libraries[name]))
    library.evt_run.argtypes = (ctypes.c_char_p, ctypes.c_size_t, ctypes.c_void_p)
    size = 8 * len(plans[name].fields)
    for wrong in (0, size - 8, size + 8):
        assert library.evt_run(bytes(size + 8), wrong, None) == 1 << 16  # evt::Failure::arguments
    assert library.evt_run(None, size, None) == 1 << 16
