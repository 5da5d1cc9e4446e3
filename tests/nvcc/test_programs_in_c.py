"""Two emitted kernels and a program in C become one program, and the manual's program is right."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

import evt
from tests.support.linking import FIRST, SECOND, TWO_KERNELS, objects, program

pytestmark = [pytest.mark.nvcc, pytest.mark.slow, pytest.mark.xdist_group("programs in C")]

PAGE = Path(__file__).parents[2] / "docs/deployment.md"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("programs")


@pytest.fixture(scope="module")
def parts(folder: Path) -> list[Path]:
    """Compile the cheapest kernels, of CUTLASS 2.x."""
    plans = {name: evt.gemm(text).plan("sm80", "f16", "f16") for name, text in (("first", FIRST), ("second", SECOND))}
    return objects(plans, folder)


def without_gpu(made: Path, *words: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    return subprocess.run([made, *words], capture_output=True, encoding="utf-8", env=environment)


def test_two_kernels_in_one_program(parts: list[Path], folder: Path) -> None:
    done = without_gpu(program(TWO_KERNELS, parts, folder), "1", "1", "1", "")
    assert done.stdout.splitlines()[0] == "no error"
    assert done.stdout.splitlines()[1].startswith("wrong arguments: ")
    assert done.returncode == 1
    assert re.search(r"^first: \d+: there is no usable CUDA device: \w+", done.stderr)


@pytest.mark.skipif(shutil.which("nm") is None, reason="there is no nm")
def test_no_two_kernels_have_a_symbol_in_common(parts: list[Path]) -> None:
    """Symbols except the ones of CUDA's and CUTLASS's headers, which are the same in both."""
    defined = []
    for part in parts:
        text = subprocess.run(["nm", "--defined-only", part], capture_output=True, encoding="utf-8", check=True).stdout
        symbols = {line.split()[-1]: line.split()[-2] for line in text.splitlines()}
        assert all(part.stem in name for name, kind in symbols.items() if kind in "TDBRC"), symbols
        assert {f"{part.stem}_{name}" for name in ("run", "workspace", "error_string", "schema")} <= symbols.keys()
        defined.append({name for name, kind in symbols.items() if kind.isupper() or kind == "u"})
    assert not [name for name in defined[0] & defined[1] if "evt" in name]


def test_the_program_in_the_manual(parts: list[Path], folder: Path) -> None:
    text = PAGE.read_text(encoding="utf-8").split("```c\n")[1].split("```")[0]
    assert len([line for line in text.splitlines() if line]) <= 24
    source = folder / "main.c"
    source.write_text(text.replace("relu", "first"))
    done = without_gpu(program(source, parts[:1], folder))
    assert (done.returncode, done.stderr) == (1, "cudaMalloc failed\n")
