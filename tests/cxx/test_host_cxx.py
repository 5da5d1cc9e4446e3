"""evt's C++ that runs on the host: work on a main loop's tiles, stores of vectors and scalars, and launchers."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.cxx.gxx import INCLUDE, MARKS, build_program, check

EXAMPLE = INCLUDE.parent / "export/cmake"

pytestmark = MARKS


def test_every_element_is_worked_on_with_its_own_inputs(tmp_path: Path) -> None:
    """The registers of mma instructions of three widths, the ends of k, and padding, which stays zero."""
    check("mainloop", tmp_path)


def test_vectors_and_scalars_are_stored_from_the_first_row_and_column(tmp_path: Path) -> None:
    """In 2.x kernels, for extents that are no multiples of a tile, with one vector for all batches or for each."""
    check("vector_store", tmp_path)


def test_launchers_say_what_the_driver_lacks(tmp_path: Path) -> None:
    """Without a driver, with one that is too old, from several threads; no error of a call is lost."""
    check("entry", tmp_path)


def test_exported_tests_read_floats_as_pytorch_does(tmp_path: Path) -> None:
    import torch

    done = subprocess.run([build_program("example", tmp_path, EXAMPLE)], capture_output=True, text=True)
    found = [[float.fromhex(word) for word in line.split()] for line in done.stdout.splitlines()]
    for dtype, numbers in zip(("float16", "bfloat16", "float8_e4m3fn", "float8_e5m2"), found, strict=True):
        storage = torch.int16 if len(numbers) == 2**16 else torch.uint8
        bits = torch.arange(len(numbers), dtype=torch.int32).to(storage)
        wanted = bits.view(getattr(torch, dtype)).double()
        torch.testing.assert_close(torch.tensor(numbers, dtype=torch.float64), wanted, rtol=0, atol=0, equal_nan=True)
