"""A sample of random programs through the real nvcc, the device code alone: ``--compiled 40`` compiles more."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from functools import cache
from itertools import count
from pathlib import Path

import pytest

from evt.compilation import KernelSource, find_toolchain
from evt.compilation.recipe import compile_passes
from evt.errors import EvtError
from evt.plan import find_target
from tests.programs.checks import TARGETS, make, operand_types
from tests.programs.generator import generate

pytestmark = pytest.mark.nvcc


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    compiled = metafunc.config.getoption("compiled")
    few = [pytest.param(index, marks=pytest.mark.slow) for index in range(3)]
    metafunc.parametrize("index", range(compiled) if compiled else few)


@cache
def seeds(first: int) -> Iterator[int]:
    """Return the seeds that no test has taken."""
    return count(first)


def test_a_random_program_compiles(index: int, pytestconfig: pytest.Config, tmp_path: Path) -> None:
    arch = TARGETS[3 * index % len(TARGETS)]  # every target in turn, the families mixed
    for seed in seeds(pytestconfig.getoption("first")):
        program = generate(seed)
        try:
            text = make(program).emit(arch, *operand_types(program))
        except EvtError:
            continue
        break
    device, _ = compile_passes(KernelSource(text, find_target(arch).gencode), find_toolchain())
    (tmp_path / "kernel.cu").write_text(text)
    done = subprocess.run(device.argv, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{arch}\n{program}\n{done.stderr[-3000:]}"
    assert (tmp_path / "kernel.cubin").stat().st_size > 1000
