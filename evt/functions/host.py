"""The C++ of a registered function on the host: ``compiled(source, cxx, count) -> run``, for probes and tests."""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from evt import resources

#: The values of a function at points, which are given as one sequence of values for each parameter.
Run = Callable[[Sequence[Sequence[float]]], list[float]]

#: CUDA functions that C++ lacks, as one-line expressions.
_CUDA = """
inline float rsqrtf(float x) { return 1.0f / sqrtf(x); }
inline float rcbrtf(float x) { return 1.0f / cbrtf(x); }
inline float __saturatef(float x) { return fminf(fmaxf(x, 0.0f), 1.0f); }
inline float __fdividef(float x, float y) { return x / y; }
inline float fdividef(float x, float y) { return x / y; }
inline float __expf(float x) { return expf(x); }
inline float __logf(float x) { return logf(x); }
inline float __sinf(float x) { return sinf(x); }
inline float __cosf(float x) { return cosf(x); }
inline float __tanf(float x) { return tanf(x); }
inline float __powf(float x, float y) { return powf(x, y); }
"""


#: The header of a function that calls no function of evt; evt's functions take longer to compile.
_PLAIN = "#include <math.h>\n#include <cstdint>\n#define EVT_HOST_DEVICE inline\n"


#: An error of g++ or clang about a name that is not declared, such as a device-only function.
_UNDECLARED = re.compile(r"not declared|undeclared|not been declared|not a member|no member named|not name a type")


class NotForHostError(Exception):
    """An error for C++ that does not compile for the host: it is wrong, or calls device-only functions.

    ``mistake`` is the compiler's first error if no error is about an undeclared name; such C++ compiles nowhere.
    """

    @property
    def mistake(self) -> str:
        """The first error of C++ that is wrong on the device, too; otherwise ""."""
        errors = re.findall(r"error: (.*)", str(self))
        return errors[0] if errors and not any(map(_UNDECLARED.search, errors)) else ""


def compiler() -> str | None:
    """Return the path of the C++ compiler in ``CXX``, or of g++; None if there is none."""
    return shutil.which(os.environ.get("CXX", "g++"))


def compiled(source: str, cxx: str, count: int) -> Run:
    """Compile a function of ``count`` parameters for the host, from its definition and its call as in a row.

    Raise RuntimeError without a compiler, and NotForHostError.
    """
    found = compiler()
    if found is None:
        raise RuntimeError("there is no C++ compiler: set CXX, or install g++")
    loop = f"for (int i = 0; i < n; ++i) y[i] = {cxx.format(*(f'x[{slot} * n + i]' for slot in range(count)))};"
    own = "::" in source.replace("evt::user", "")  # it may call evt's functions
    header = resources.text("codegen", "include/evt/functions.hpp") if own else _PLAIN
    code = f'{header}{_CUDA}\n{source}\nextern "C" void run(float const* x, float* y, int n) {{ {loop} }}\n'
    with tempfile.TemporaryDirectory() as folder:
        file, library = Path(folder, "function.cpp"), Path(folder, "function.so")
        file.write_text(code, encoding="utf-8")
        command = [found, "-std=c++17", "-O0", "-ffp-contract=off", "-shared", "-fPIC", str(file), "-o", str(library)]
        english = {**os.environ, "LC_ALL": "C"}
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=english)
        if done.returncode:
            raise NotForHostError(done.stderr)
        function = ctypes.CDLL(str(library)).run

    def run(points: Sequence[Sequence[float]]) -> list[float]:
        size = len(points[0])
        given = (ctypes.c_float * (count * size))(*(value for each in points for value in each))
        result = (ctypes.c_float * size)()
        function(given, result, ctypes.c_int(size))
        return list(result)

    return run
