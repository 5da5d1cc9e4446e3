"""A check of the C++ compiler that AOTInductor takes: ``check_standard_library()``.

The code that AOTInductor generates matches a regular expression when a model is loaded. Some compilers link parts of a
C++ standard library into a shared library. Beside PyTorch, such code ends the process without a message.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path

from torch._inductor.cpp_builder import get_cpp_compiler

from evt.diagnostics import Diagnostic
from evt.errors import BuildError

#: Code that uses the facets of a locale, as `std::regex` of AOTInductor's runtime does.
_SOURCE = """\
#include <regex>
#include <string>
extern "C" int matches() {
  std::smatch found;
  std::string const text = "cuda:0";
  return std::regex_match(text, found, std::regex("(cpu|cuda)(:([0-9]+))?"));
}
"""
_PROGRAM = "import ctypes, sys, torch; sys.exit(ctypes.CDLL(sys.argv[1]).matches() != 1)"


def check_standard_library() -> None:
    """Raise BuildError (E0711) if shared libraries of AOTInductor's C++ compiler crash beside PyTorch.

    A compiler that does not compile at all raises nothing here: AOTInductor shows its output.
    """
    compiler = get_cpp_compiler()
    if notes := _failure(compiler):
        message = f"a shared library of {compiler} crashes in a process with PyTorch: the model could not be loaded"
        help = "name the system's compiler: CXX=/usr/bin/g++, and CUDAHOSTCXX for nvcc"
        raise BuildError(Diagnostic("E0711", message, help=help, notes=notes))


@cache
def _failure(compiler: str) -> tuple[str, ...]:
    """Return how a process with PyTorch and a library of the compiler ended, or nothing if it ended well."""
    with tempfile.TemporaryDirectory(prefix="evt-") as folder:
        source, library = Path(folder, "matches.cpp"), Path(folder, "matches.so")
        source.write_text(_SOURCE)
        command = [compiler, "-std=c++17", "-shared", "-fPIC", "-o", str(library), str(source)]
        try:
            subprocess.run(command, check=True, capture_output=True)
        except (OSError, subprocess.CalledProcessError):
            return ()
        done = subprocess.run([sys.executable, "-c", _PROGRAM, str(library)], capture_output=True, text=True)
    ending = f"a library with std::regex ended python with exit code {done.returncode}"
    return (ending, *done.stderr.strip().splitlines()[-3:]) if done.returncode else ()
