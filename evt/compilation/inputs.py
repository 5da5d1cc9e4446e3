"""The inputs of a compilation besides its source: ``find_inputs(toolchain, digests) -> Inputs``.

Headers that people edit, CUTLASS's and evt's, count by their content. Compilers count by path, version, size and time
of change. Compilers report the other files that they read afterwards: :mod:`dependencies`.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from evt.compilation.environment import compiler_environment, deciding_variables, host, host_compilers
from evt.compilation.fingerprint import Digests
from evt.compilation.limits import require_files
from evt.compilation.toolchain import Toolchain

#: The programs that gcc calls, besides the programs in its own directories.
_BINUTILS = ("as", "ld")
#: The largest size of a script in bytes. A program up to this size may call another one, and counts by its content.
_SCRIPT = 1 << 16
_COMPILER = re.compile(r"(.*-)?(gcc|g\+\+|clang|clang\+\+|as|ld|ld\.\w+)(-[\d.]+)?")


@dataclass(frozen=True, slots=True)
class Inputs:
    """``digest`` of the inputs of the result; ``stamps`` also differ after changes that were undone."""

    digest: str
    stamps: tuple[str, ...]


def find_inputs(toolchain: Toolchain, digests: Digests) -> Inputs:
    """Return the inputs that a compilation with these tools would read now."""
    folders = (toolchain.evt_include, *toolchain.cutlass_folders)
    found = [digests.of(folder) for folder in folders if folder is not None]
    facts = {
        "headers": [digest for _, digest in found],
        "cutlass": toolchain.cutlass_version,
        "nvcc": (str(toolchain.nvcc), toolchain.nvcc_version, _program(toolchain.nvcc)),
        "compilers": [_compiler(path) for path in _host_programs(toolchain.nvcc)],
        "launchers": _compiler(toolchain.host_compiler) if toolchain.host_compiler else "nvcc",
        "environment": deciding_variables(),
        "host": host(),  # one home directory, several machines
    }
    text = json.dumps(facts, sort_keys=True)
    return Inputs(hashlib.sha256(text.encode()).hexdigest(), tuple(stamp for stamp, _ in found))


def _host_programs(nvcc: Path) -> list[Path]:
    """Return the compilers that nvcc calls, and the programs that these call. nvcc searches its own directory first."""
    beside = os.path.dirname(os.path.realpath(nvcc))
    places = os.pathsep.join([f"{beside}/../nvvm/bin", beside, os.environ.get("PATH", os.defpath)])
    found: list[str | None] = []
    for named in host_compilers():
        if named and not os.path.isdir(named):
            found.append(shutil.which(named, path=places))
        else:
            found += [shutil.which(name, path=named or places) for name in ("gcc", "g++")]
    found += [shutil.which(name, path=places) for name in _BINUTILS]
    return [Path(path) for path in found if path is not None]


def _compiler(path: Path) -> tuple[object, ...]:
    facts = _program(path)
    real, size = Path(str(facts[0])), int(str(facts[1]))
    known = size > _SCRIPT and _COMPILER.fullmatch(real.name)
    return str(path), facts, "" if known else _version(path, facts)


def _program(path: Path) -> tuple[object, ...]:
    """Return the identity of a program's file, and its content if it may be a script."""
    real = os.path.realpath(path)
    try:
        status = os.stat(real)
        small = status.st_size <= _SCRIPT
        content = hashlib.sha256(Path(real).read_bytes()).hexdigest() if small else ""
    except OSError as error:
        require_files(error)
        return real, 0, 0, ""
    return real, status.st_size, status.st_mtime_ns, content


@functools.cache
def _version(path: Path, facts: tuple[object, ...]) -> str:
    """Return the version that a script or a wrapper prints; asked once per process."""
    try:
        done = subprocess.run(
            [path, "--version"],
            env=compiler_environment(),
            capture_output=True,
            stdin=subprocess.DEVNULL,
            timeout=60,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        if isinstance(error, OSError):
            require_files(error)
        return type(error).__name__
    return done.stdout.decode(errors="replace")
