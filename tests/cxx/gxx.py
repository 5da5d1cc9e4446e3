"""The kernels' headers on the host: ``build(source, result)`` compiles a program or a library by g++."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from evt.emission import translate
from evt.emission.headers import GENERATED
from tests.cxx.cute import GXX, include_flags

INCLUDE = Path(__file__).parents[2] / "codegen/include"
#: Headers that stand in for CUDA's, for CUTLASS's and for the instructions of a GPU.
HOST = Path(__file__).with_name("host")
#: The marks of tests that compile these headers.
MARKS = [
    pytest.mark.cxx,
    pytest.mark.skipif(not GXX, reason="g++ is not on PATH"),
    pytest.mark.skipif(not include_flags(), reason="there are no CUTLASS or no CUDA headers"),
]


def build(source: Path, result: Path, *folders: Path, flags: tuple[str, ...] = ()) -> Path:
    """Compile a source to a program, or to a library ``.so``. Headers of ``folders`` precede the kernels' headers."""
    kind = ("-shared", "-fPIC") if result.suffix == ".so" else ()
    included = [f"-I{folder}" for folder in (*folders, INCLUDE, _generated(result.parent))]
    # CUTLASS's device code has warnings and extensions for g++, and calls of CUDA in functions that nothing calls.
    words = ["-std=c++17", "-Og", "-w", "-fpermissive", "-ffunction-sections", "-Wl,--gc-sections", *flags, *kind]
    words += [*included, *include_flags()]
    command = [GXX, *words, "-o", str(result), str(source)]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "LC_ALL": "C"})
    errors = [line for line in done.stderr.splitlines() if "error" in line]
    assert done.returncode == 0, "\n".join(errors or [done.stderr])[:2000]
    return result


def _generated(folder: Path) -> Path:
    """Write the headers that are generated from the planner's modules, and return the folder."""
    for header, (modules, namespace) in GENERATED.items():
        (folder / "evt" / header).parent.mkdir(parents=True, exist_ok=True)
        (folder / "evt" / header).write_text(f"#pragma once\n{translate.header(modules, namespace)}\n")
    return folder


def build_program(name: str, folder: Path, *folders: Path, flags: tuple[str, ...] = ()) -> Path:
    """Build a program of this folder."""
    return build(Path(__file__).with_name(f"{name}.cpp"), folder / name, *folders, flags=flags)


def check(name: str, folder: Path, *folders: Path, flags: tuple[str, ...] = ()) -> None:
    """Build and run a program of this folder, which counts its failures."""
    done = subprocess.run([build_program(name, folder, *folders, flags=flags)], capture_output=True, text=True)
    assert (done.stdout, done.stderr, done.returncode) == ("0 failures\n", "", 0)
