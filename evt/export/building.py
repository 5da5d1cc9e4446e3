"""The build of an extension in its folder: ``build_extension(folder) -> the library``."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from evt.compilation.toolchain import find_cutlass, find_nvcc
from evt.diagnostics import Diagnostic
from evt.errors import BuildError

_LIBRARY = "operators.so"
#: The number of characters at the end of a compiler's output that an error shows.
_SHOWN_LINES = 20


def build_extension(folder: Path) -> Path:
    """Build an extension of :func:`evt.export.torch_extension`, as its ``setup.py`` does; return the shared library.

    Raise BuildError: E0701 without nvcc, E0702 without CUTLASS, and E0703 with the end of the compilers' output if they
    fail.
    """
    find_cutlass()
    environment = {**os.environ, "CUDACXX": str(find_nvcc().path)}
    built = folder / "build"
    command = [
        sys.executable,
        "setup.py",
        "-q",
        "build_ext",
        "--build-lib",
        str(built),
        "--build-temp",
        str(built / "work"),
    ]
    try:
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, errors="replace")
    except OSError as error:
        raise BuildError(Diagnostic("E0703", f"{command[0]} cannot be started: {error.strerror}")) from error
    found = list(built.glob(f"*/{_LIBRARY}"))
    if done.returncode or not found:
        lines = (done.stdout + done.stderr).strip().splitlines()[-_SHOWN_LINES:]
        message = f"setup.py of the operators failed with exit code {done.returncode}"
        help = "pip install setuptools, if it is missing; `evt doctor` prints other missing parts"
        raise BuildError(Diagnostic("E0703", message, help=help, notes=tuple(lines)))
    return found[0]
