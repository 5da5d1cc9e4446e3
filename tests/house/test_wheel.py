"""The wheel: everything that is needed, nothing else, and it works in a clean environment without torch."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

import evt
from evt.diagnostics import CODES

ROOT = Path(__file__).parents[2]
PROGRAM = "D = relu(alpha*acc + beta*C) + residual"
#: pip's messages without a package index.
OFFLINE = r"NewConnectionError|ConnectTimeoutError|ProxyError|name resolution|Network is unreachable"


def run(*command: str | Path, cwd: Path) -> str:
    """Run outside the checkout, so that nothing is found beside the installed package."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
    done = subprocess.run(command, capture_output=True, encoding="utf-8", cwd=cwd, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("wheel")
    run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", out, ROOT, cwd=out)
    (built,) = out.iterdir()
    return built


@pytest.fixture(scope="module")
def clean(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the executables of a new environment with the wheel and its requirements."""
    root = tmp_path_factory.mktemp("clean") / "venv"
    venv.create(root, symlinks=True)
    pip = [sys.executable, "-m", "pip", "--python", str(root / "bin/python"), "install", "--no-compile", str(wheel)]
    done = subprocess.run(pip, capture_output=True, text=True, cwd=root)
    if done.returncode and re.search(OFFLINE, done.stderr):
        pytest.skip(f"needs a package index: {done.stderr.splitlines()[-1]}")
    assert done.returncode == 0, done.stderr
    return root / "bin"


def test_holds_what_is_needed(wheel: Path) -> None:
    assert wheel.name == f"evt_compiler-{evt.__version__}-py3-none-any.whl"
    names = set(zipfile.ZipFile(wheel).namelist())
    for folder, target in (("evt", "evt"), ("grammar", "evt/grammar"), ("codegen", "evt/codegen")):
        files = [path for path in (ROOT / folder).rglob("*") if path.is_file()]
        for path in files:
            if "__pycache__" not in path.parts:
                assert f"{target}/{path.relative_to(ROOT / folder).as_posix()}" in names
    pages = {f"evt/diagnostics/pages/{code}.md" for code in CODES}
    templates = {"evt/codegen/templates/gemm_2x.cu.jinja", "evt/codegen/templates/gemm_3x.cu.jinja"}
    headers = {"evt/codegen/include/evt/entry.hpp", "evt/codegen/include/evt/functions.hpp"}
    others = {"evt/grammar/evt.lark", "evt/py.typed", "evt/compilation/embed.cpp"}
    assert pages | templates | headers | others <= names


def test_holds_nothing_else(wheel: Path) -> None:
    info = f"evt_compiler-{evt.__version__}.dist-info"
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.split("/")[0] for name in names} == {"evt", info}
    kinds = {Path(name).suffix for name in names if name.startswith("evt/")}
    assert kinds <= {".py", ".typed", ".md", ".lark", ".jinja", ".hpp", ".cpp", ".json"}
    assert f"{info}/licenses/LICENSE" in names


def test_is_light(clean: Path, tmp_path: Path) -> None:
    code = "import evt, sys; assert not {'torch', 'lark', 'jinja2'} & set(sys.modules); print(evt.__file__)"
    assert str(clean.parent) in run(clean / "python", "-c", code, cwd=tmp_path)
    code = "import importlib.util as u; print([u.find_spec(name) for name in ('torch', 'cutlass_library')])"
    assert run(clean / "python", "-c", code, cwd=tmp_path) == "[None, None]\n"


@pytest.mark.parametrize("arch", ["sm80", "sm90"])
def test_emits_the_same_text(clean: Path, tmp_path: Path, arch: str) -> None:
    printed = run(clean / "evt", "emit", PROGRAM, "--arch", arch, "--dtype", "bf16", cwd=tmp_path)
    assert printed == evt.emit(PROGRAM, arch=arch, dtype="bf16")


def test_the_pages_are_found(clean: Path, tmp_path: Path) -> None:
    assert "E0203" in run(clean / "evt", "explain", "E0203", cwd=tmp_path)


def test_a_call_says_that_torch_is_missing(clean: Path, tmp_path: Path) -> None:
    code = "import evt; evt.gemm('D = acc')(None, None)"
    done = subprocess.run([clean / "python", "-c", code], capture_output=True, text=True, cwd=tmp_path)
    assert "No module named 'torch'" in done.stderr
