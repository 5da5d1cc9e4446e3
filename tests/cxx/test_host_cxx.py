"""evt's C++ that runs on the host: work on a main loop's tiles, stores of vectors and scalars, and launchers."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.cxx.cute import GXX, include_flags

INCLUDE = Path(__file__).parents[2] / "codegen/include"
EXAMPLE = INCLUDE.parent / "export/cmake"


pytestmark = [
    pytest.mark.cxx,
    pytest.mark.skipif(not GXX, reason="g++ is not on PATH"),
    pytest.mark.skipif(not include_flags(), reason="there are no CUTLASS or no CUDA headers"),
]


def compiled(name: str, folder: Path) -> Path:
    """Compile one of the programs beside this file."""
    program = folder / name
    # CUTLASS's device code is not g++'s: its headers have warnings and extensions.
    flags = ["-std=c++17", "-O1", "-w", "-fpermissive", f"-I{INCLUDE}", f"-I{EXAMPLE}", *include_flags()]
    made = subprocess.run(
        [GXX, *flags, "-o", str(program), str(Path(__file__).with_name(f"{name}.cpp"))],
        capture_output=True,
        text=True,
        env={**os.environ, "LC_ALL": "C"},
    )
    assert made.returncode == 0, made.stderr[:2000]
    return program


def test_every_element_is_worked_on_with_its_own_inputs(tmp_path: Path) -> None:
    """The registers of mma instructions of three widths, the ends of k, and padding, which stays zero."""
    done = subprocess.run([compiled("mainloop", tmp_path)], capture_output=True, text=True)
    assert (done.stdout, done.returncode) == ("0 failures\n", 0)


def test_vectors_and_scalars_are_stored_from_the_first_row_and_column(tmp_path: Path) -> None:
    """In 2.x kernels, for extents that are no multiples of a tile, with one vector for all batches or for each."""
    done = subprocess.run([compiled("vector_store", tmp_path)], capture_output=True, text=True)
    assert (done.stdout, done.returncode) == ("0 failures\n", 0)


def test_launchers_say_what_the_driver_lacks(tmp_path: Path) -> None:
    """Without a driver, with one that is too old, from several threads; no error of a call is lost."""
    done = subprocess.run([compiled("entry", tmp_path)], capture_output=True, text=True)
    assert (done.stdout, done.returncode) == ("0 failures\n", 0)


def test_exported_tests_read_floats_as_pytorch_does(tmp_path: Path) -> None:
    import torch

    done = subprocess.run([compiled("example", tmp_path)], capture_output=True, text=True)
    found = [[float.fromhex(word) for word in line.split()] for line in done.stdout.splitlines()]
    for dtype, numbers in zip(("float16", "bfloat16", "float8_e4m3fn", "float8_e5m2"), found, strict=True):
        storage = torch.int16 if len(numbers) == 2**16 else torch.uint8
        bits = torch.arange(len(numbers), dtype=torch.int32).to(storage)
        wanted = bits.view(getattr(torch, dtype)).double()
        torch.testing.assert_close(torch.tensor(numbers, dtype=torch.float64), wanted, rtol=0, atol=0, equal_nan=True)
