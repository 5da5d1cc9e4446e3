"""Fused models as packages of AOTInductor: their operators built by g++ with stubs for kernels, loaded and run."""

from __future__ import annotations

import ctypes
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch._inductor import graph as inductor_graph

import evt
import evt.export.building
import evt.fx.package
import evt.fx.standard_library
from evt.errors import ArgumentError, BuildError, NoKernelWarning
from evt.export.building import build_extension
from tests.cxx.cute import GXX, include_flags
from tests.cxx.export_stubs import Stubbed, compiled
from tests.support.packages import Layers, run_in_cxx

pytestmark = [
    pytest.mark.cxx,
    pytest.mark.skipif(not GXX, reason="g++ is not on PATH"),
    pytest.mark.skipif(not include_flags(), reason="there are no CUTLASS or no CUDA headers"),
    pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning", "ignore::UserWarning"),
]

#: Every region is taken, on the CPU.
ALWAYS = {"evt.rule": "always", "evt.devices": ("cpu",)}


def f16(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))).half()


@pytest.fixture
def fields(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[tuple[str, str]]]:
    """Let operators be built with stubs for kernels; return the arguments of the kernels that are built."""
    found: dict[str, list[tuple[str, str]]] = {}

    def build(folder: Path) -> Path:
        files = {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*") if path.is_file()}
        (folder / "build").mkdir()
        library, fields = compiled(files, folder / "build", 90, stable=False)
        found.update(fields)
        return library

    monkeypatch.setattr(evt.fx.package, "build_extension", build)
    return found


def tensor_at(address: float, shape: tuple[int, ...], strides: tuple[int, ...]) -> torch.Tensor:
    elements = 1 + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
    memory = (ctypes.c_char * (2 * elements)).from_address(int(address))
    return torch.frombuffer(memory, dtype=torch.float16).as_strided(shape, strides)


def compute(stubs: Stubbed) -> int:
    """Compute the launch of one of the layers, told by its columns."""
    given = {name: int(value) for name, value in stubs.arguments.items()}
    m, n, k = (given[name] for name in "mnk")
    a = tensor_at(given["A"], (m, k), (given["stride_m_of_A"], 1))
    b = tensor_at(given["B"], (k, n), (1, given["stride_n_of_B"]))
    bias = tensor_at(given["in_x0"], (n,), (1,))
    found = (a.float() @ b.float() + bias.float()).half()
    outputs = [name for name in given if name.startswith("out_")]
    results = [found.relu()]
    if "in_x1" in given:
        found = found + tensor_at(given["in_x1"], (m, n), (given["stride_m_of_in_x1"], 1))
        results = [found.sigmoid(), found]  # D, then D1
    for name, result in zip(outputs, results, strict=True):
        tensor_at(given[name], (m, n), (given[f"stride_m_of_{name}"], 1)).copy_(result)
    return 0


@pytest.mark.slow
def test_a_package_runs_in_python_and_in_cxx(
    fields: dict[str, list[tuple[str, str]]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A model is packaged for any number of rows, and run beside eager; then by a program of C++."""
    model = Layers().half()
    shapes = ({0: torch.export.Dim("m", min=2, max=4096)},)
    implicit: list[str] = []
    make = inductor_graph.make_fallback
    monkeypatch.setattr(
        inductor_graph,
        "make_fallback",
        lambda operator, *rest, **named: implicit.append(str(operator)) or make(operator, *rest, **named),
    )
    made = evt.package(model, (f16(64, 16),), tmp_path / "model", dynamic_shapes=shapes, options=ALWAYS)
    assert [each for each in implicit if each.startswith("evt_")] == []
    assert made.library == tmp_path / "model/operators.so"
    assert sorted(path.name for path in (tmp_path / "model").iterdir()) == ["model.pt2", "operators.so", "sources"]
    assert not (tmp_path / "model/sources/build").exists()
    again = shutil.copy(made.library, tmp_path / "again.so")  # as another model with the same products has it
    torch.ops.load_library(again)
    assert [row.formula.splitlines()[-1] for row in made.report.rows] == ["D = relu(acc + x0)", "D1 = v1"]
    stubs = Stubbed(ctypes.CDLL(str(made.library)), fields)
    computing = ctypes.CFUNCTYPE(ctypes.c_int)(lambda: compute(stubs))
    ctypes.c_void_p.in_dll(stubs.library, "stub_compute").value = ctypes.cast(computing, ctypes.c_void_p).value
    loaded = torch._inductor.aoti_load_package(str(made.model))
    for rows in (7, 128):
        x = f16(rows, 16)
        for got, want in zip(loaded(x), model(x), strict=True):
            assert (got.float() - want.float()).abs().max() < 2e-2
    assert run_in_cxx(made, tmp_path, 11, 16).startswith("11 x 16 ")


def test_a_failed_build_leaves_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def fail(folder: Path) -> Path:
        assert (folder / "setup.py").exists()
        (folder / "setup.py").write_text("print('one')\nraise SystemExit('no CUDA compiler (nvcc) was found')\n")
        return build_extension(folder)

    monkeypatch.setattr(evt.export.building, "find_nvcc", lambda: SimpleNamespace(path="nvcc"))
    monkeypatch.setattr(evt.fx.package, "build_extension", fail)
    with pytest.raises(BuildError) as error:
        evt.package(Layers().half(), (f16(64, 16),), tmp_path / "model", options=ALWAYS)
    (problem,) = error.value.diagnostics
    assert (problem.code, problem.notes) == ("E0703", ("one", "no CUDA compiler (nvcc) was found"))
    assert not list(tmp_path.iterdir())


def test_a_compiler_whose_libraries_crash_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    crashes = tmp_path / "crashes.cpp"
    crashes.write_text('#include <cstdlib>\nextern "C" int matches() { std::abort(); }\n')
    compiler = tmp_path / "g++"
    compiler.write_text(f'#!/bin/sh\nexec {GXX} "$1" "$2" "$3" "$4" "$5" {crashes}\n')
    compiler.chmod(0o755)
    monkeypatch.setattr(evt.fx.standard_library, "get_cpp_compiler", lambda: str(compiler))
    with pytest.raises(BuildError) as error:
        evt.package(Layers().half(), (f16(64, 16),), tmp_path / "model", options=ALWAYS)
    (problem,) = error.value.diagnostics
    assert problem.code == "E0711"
    assert str(compiler) in problem.message
    assert "exit code -6" in problem.notes[0]
    assert not (tmp_path / "model").exists()


@pytest.mark.parametrize(
    ("given", "code", "message"),
    [
        ({"module": torch.relu}, "E0607", "`module` is"),
        ({"example_inputs": f16(8, 16)}, "E0607", "`example_inputs` is"),
        ({"example_inputs": (f16(8, 17),)}, "E1020", "torch.export cannot capture the Layers"),
        ({"options": {"evt.rule": "never"}}, "E0607", "there is no rule `never`"),
        ({"options": {"evt.rules": "always"}}, "E0602", "there is no option `evt.rules`"),
        ({"options": {"no_such_option": 1}}, "E0602", "neither evt nor Inductor has an option `no_such_option`"),
        ({"options": ["evt.rule"]}, "E0607", "`options` is"),
        ({"folder": 7}, "E0607", "`folder` is of type int; expected a path"),
        ({"folder": "a\0b"}, "E0607", "`folder` has a NUL character"),
    ],
)
def test_mistakes(given: dict[str, Any], code: str, message: str, tmp_path: Path) -> None:
    call = {"module": Layers().half(), "example_inputs": (f16(8, 16),), "folder": tmp_path / "model", **given}
    with pytest.raises(ArgumentError, match=message) as error:
        evt.package(**call)
    assert error.value.diagnostics[0].code == code
    assert not list(tmp_path.iterdir())


def test_a_folder_with_content_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "precious").write_text("kept")
    monkeypatch.chdir(tmp_path)
    for place in (".", "..", "/", "~", Path.home()):
        with pytest.raises(OSError, match=r"working directory, home and the root are never replaced|not empty"):
            evt.package(Layers().half(), (f16(8, 16),), Path(place).expanduser(), replace=True)
    with pytest.raises(FileExistsError, match="not empty"):
        evt.package(Layers().half(), (f16(8, 16),), tmp_path)
    with pytest.raises(NotADirectoryError):
        evt.package(Layers().half(), (f16(8, 16),), tmp_path / "precious", replace=True)
    with pytest.raises(FileNotFoundError, match=r"there is no such directory: .*nowhere'"):
        evt.package(Layers().half(), (f16(8, 16),), tmp_path / "nowhere/model")
    assert [path.name for path in tmp_path.iterdir()] == ["precious"]


@pytest.mark.slow
def test_what_is_not_fused_is_said(tmp_path: Path) -> None:
    """Columns that vary, and groups, are left to PyTorch, and the package needs no library then."""

    class Others(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = torch.nn.Conv1d(16, 32, 3, groups=2)

        def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return torch.relu(x @ y), torch.relu(self.conv(x[None, :16]))

    columns = torch.export.Dim("n", min=2, max=4096)
    with pytest.warns(NoKernelWarning, match="no product of the model is fused"):
        made = evt.package(
            Others().half(),
            (f16(16, 16), f16(16, 24)),
            tmp_path / "model",
            dynamic_shapes=(None, {1: columns}),
            options=ALWAYS,
        )
    assert made.library is None
    assert [path.name for path in (tmp_path / "model").iterdir()] == ["model.pt2"]
    (product, conv) = made.report.rows
    assert product.reason.startswith("E1018")
    assert "its columns or its contraction are a symbol" in product.reason
    assert "groups" in conv.reason
    loaded = torch._inductor.aoti_load_package(str(made.model))
    assert loaded(f16(16, 16), f16(16, 40))[0].shape == (16, 40)
