"""An extension's sources built where they are: ``build_extension(folder) -> the library``."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from evt.compilation.toolchain import find_cutlass, find_nvcc
from evt.diagnostics import Diagnostic
from evt.errors import BuildError

_LIBRARY = "operators.so"
#: The end of a compiler's output, which says what is wrong.
_SHOWN_LINES = 20


def build_extension(folder: Path) -> Path:
    """Build an extension of :func:`evt.export.torch_extension`, as its ``setup.py`` does; return the shared library.

    Raise BuildError where there is no nvcc (E0701) or no CUTLASS (E0702), and with the end of what the compilers said
    where they fail (E0703).
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
        help = "pip install setuptools, if that is missing; `evt doctor` says what else is"
        raise BuildError(Diagnostic("E0703", message, help=help, notes=tuple(lines)))
    return found[0]
