"""Loading a library: the launcher's parameters have the size that the kernel takes."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

import evt
from evt.plan import Plan
from evt.runtime.library import load_library
from tests.support.plans import make

pytestmark = pytest.mark.cxx


def library(folder: Path, plan: Plan, constants: str) -> Path:
    source, made = folder / "library.cpp", folder / "library.so"
    schema = '"' + plan.schema.replace('"', '\\"') + '"'
    source.write_text(
        f'extern "C" int k_run() {{ return 0; }}\nextern "C" long k_workspace() {{ return 0; }}\n'
        f'extern "C" char const* k_schema() {{ return {schema}; }}\n{constants}\n'
    )
    subprocess.run(["g++", "-shared", "-fPIC", source, "-o", made], check=True)
    return made


def constants(given: int, taken: int) -> str:
    declared = "extern unsigned const k_params, k_taken;"
    return f'extern "C" {{ {declared} unsigned const k_params = {given}, k_taken = {taken}; }}'


@pytest.mark.parametrize("text", ["", constants(48, 48)])
def test_equal_sizes(tmp_path: Path, text: str) -> None:
    plan = make("D = acc")
    assert load_library(library(tmp_path, plan, text), plan, "k").run(b"", 0, 0) == 0


def test_different_sizes_are_refused(tmp_path: Path) -> None:
    plan = make("D = acc")
    with pytest.raises(evt.LaunchError, match="passes 48 bytes of parameters, and its kernel takes 56"):
        load_library(library(tmp_path, plan, constants(48, 56)), plan, "k")
