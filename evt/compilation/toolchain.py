"""The compiler and the headers: their places and versions."""

from __future__ import annotations

import functools
import importlib.util
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from evt.compilation.environment import COMPILER, compiler_environment, has_flags
from evt.diagnostics import Diagnostic
from evt.errors import ArgumentError, BuildError
from evt.resources import directory

#: Launchers load their kernel with ``cudaLibraryLoadData``, which is new in this version of the runtime.
OLDEST_NVCC = (12, 8)
#: Architectures that need a newer nvcc than that.
_FIRST_NVCC = {"103": (12, 9), "121": (12, 9), "110": (13, 0), "88": (13, 0)}
OLDEST_CUTLASS = (4, 0)

#: The variable that names a way of builds, for comparisons. By default NVRTC compiles own kernels, and kernels of
#: CUTLASS are built from parts. The other ways have nvcc compile own kernels, and the last one all kernels from whole
#: files.
WAY = "EVT_BUILD_WAY"
NVRTC, PARTS, WHOLE = "nvrtc", "parts", "whole"
SYSTEM_CUDA = "/usr/local/cuda"
INSTALL_NVCC = "pip install nvidia-cuda-nvcc nvidia-cuda-cccl"
INSTALL_CUTLASS = "pip install nvidia-cutlass"


@dataclass(frozen=True, slots=True)
class Nvcc:
    path: Path
    version: str  #: such as ``13.0.88``
    include: tuple[Path, ...] = ()  # files that this nvcc does not find by itself (pip wheels)
    lib: tuple[Path, ...] = ()


@dataclass(frozen=True, slots=True)
class Cutlass:
    include: Path
    version: str  #: such as ``4.2.0``
    origin: str  # ``wheel``, or the path of a checkout, which may have been edited


@dataclass(frozen=True, slots=True)
class Toolchain:
    """Everything that a compilation reads apart from its source."""

    nvcc: Path
    nvcc_version: str
    cutlass_include: Path
    cutlass_version: str
    cutlass_origin: str = "wheel"
    cuda_include: tuple[Path, ...] = ()
    cuda_lib: tuple[Path, ...] = ()
    evt_include: Path | None = None
    host_compiler: Path | None = None  #: compiles launchers; None: nvcc does
    by_parts: bool = (
        False  #: whether kernels are linked from a skeleton and a formula; False: nvcc compiles whole files
    )

    @property
    def cutlass_folders(self) -> tuple[Path, Path]:
        """CUTLASS's headers, and its utilities, which its convolutions include."""
        return self.cutlass_include, self.cutlass_include.parent / "tools/util/include"

    @property
    def include_flags(self) -> tuple[str, ...]:
        own = (f"-I{self.evt_include}",) if self.evt_include else ()
        return (
            *own,
            *(word for path in (*self.cutlass_folders, *self.cuda_include) for word in ("-isystem", str(path))),
        )

    def linked(self) -> tuple[Toolchain, dict[str, Path]]:
        """Return these tools under plain names, and the links with these names that a directory needs.

        nvcc passes all paths to a shell, and splits lists at commas.
        """
        links = {"cutlass": self.cutlass_include.parent}
        links |= {f"include{index}": path for index, path in enumerate(self.cuda_include)}
        links |= {f"lib{index}": path for index, path in enumerate(self.cuda_lib)}
        links |= {"evt": self.evt_include} if self.evt_include else {}
        nvcc = self.nvcc
        if is_toolkit_nvcc(nvcc):
            links["cuda"], nvcc = nvcc.resolve().parents[1], Path("cuda/bin/nvcc")
        tools = replace(
            self,
            nvcc=nvcc,
            cutlass_include=Path("cutlass", self.cutlass_include.name),
            cuda_include=tuple(Path(name) for name in links if name.startswith("include")),
            cuda_lib=tuple(Path(name) for name in links if name.startswith("lib")),
            evt_include=Path("evt") if self.evt_include else None,
        )
        return tools, links


def way() -> str:
    """Return the way of builds that ``EVT_BUILD_WAY`` names. Raise ArgumentError (E0607) for an unknown way."""
    ways = (NVRTC, PARTS, WHOLE)
    value = os.environ.get(WAY) or NVRTC
    if value not in ways:
        message = f"`{WAY}` is {value!r}; expected {', '.join(map(repr, ways[:-1]))} or {ways[-1]!r}"
        raise ArgumentError(Diagnostic("E0607", message, help=f"unset {WAY}"))
    return value


def is_by_nvrtc() -> bool:
    """Return whether NVRTC compiles own kernels if it is found. Options for nvcc need nvcc. Raise ArgumentError."""
    return way() == NVRTC and not has_flags()


def find_toolchain() -> Toolchain:
    """Return the tools to build with.

    Raise BuildError: E0701 without a usable nvcc, or if ``CXX`` names no program; E0702 without CUTLASS headers.
    """
    problems: list[Diagnostic] = []
    try:
        nvcc = find_nvcc()
    except BuildError as error:
        problems.extend(error.diagnostics)
    try:
        cutlass = find_cutlass()
    except BuildError as error:
        problems.extend(error.diagnostics)
    try:
        host_compiler = find_host_compiler()
    except BuildError as error:
        problems.extend(error.diagnostics)
    if problems:
        raise BuildError(problems)
    return Toolchain(
        nvcc=nvcc.path,
        nvcc_version=nvcc.version,
        cutlass_include=cutlass.include,
        cutlass_version=cutlass.version,
        cutlass_origin=cutlass.origin,
        cuda_include=nvcc.include,
        cuda_lib=nvcc.lib,
        evt_include=directory("codegen") / "include",
        host_compiler=host_compiler,
        by_parts=not has_flags() and way() != WHOLE,
    )


def require_target(gencode: str, nvcc_version: str) -> None:
    """Raise BuildError E0706 if this nvcc is too old to compile for ``gencode``."""
    needed = max(OLDEST_NVCC, _FIRST_NVCC.get(gencode.removeprefix("sm_").rstrip("af"), OLDEST_NVCC))
    if numbers(nvcc_version)[:2] < needed:
        wanted = ".".join(map(str, needed))
        message = f"nvcc {nvcc_version} is too old: {gencode} needs {wanted} or newer"
        raise BuildError(Diagnostic("E0706", message, help=f"{INSTALL_NVCC}, or set CUDACXX to a newer nvcc"))


def find_nvcc() -> Nvcc:
    """Return the first nvcc of ``CUDACXX``, PATH, ``CUDA_HOME``, ``CUDA_PATH``, /usr/local/cuda and the pip wheels.

    Raise BuildError E0701 if there is none, or if the first does not work.
    """
    for path in _nvcc_places():
        if path.is_file() and os.access(path, os.X_OK):
            version = _nvcc_version(path, path.stat().st_ctime_ns)
            include, lib = _wheel_paths(path)
            return Nvcc(path, version, include, lib)
    notes = ("searched: CUDACXX, PATH, CUDA_HOME, CUDA_PATH, /usr/local/cuda and the wheels of pip",)
    raise BuildError(Diagnostic("E0701", "no CUDA compiler (nvcc) was found", help=INSTALL_NVCC, notes=notes))


def find_host_compiler() -> Path | None:
    """Return the C++ compiler for launchers: ``CXX``, ``NVCC_CCBIN``, g++ or clang++.

    Return None if there is none, or if variables give nvcc options: then nvcc compiles launchers. A ``CXX`` of several
    words, such as ``ccache g++``, is skipped. Raise BuildError E0701 if ``CXX`` names no program.
    """
    if has_flags():
        return None
    asked = os.environ.get("CXX", "")
    if (words := asked.split()) and not _program(asked) and not _program(words[0]):
        message = f"CXX is {asked!r}, which is not a program"
        raise BuildError(Diagnostic("E0701", message, help="set CXX to the path of a C++ compiler, or unset it"))
    names = [asked, os.environ.get(COMPILER), "g++", "clang++"]
    return next((path for name in names if name and (path := _program(name))), None)


def find_cutlass() -> Cutlass:
    """Return the headers of ``CUTLASS_PATH`` (a checkout), or of the ``nvidia-cutlass`` wheel, which is not imported.

    Raise BuildError E0702 if there are no headers, or if they are too old.
    """
    if checkout := os.environ.get("CUTLASS_PATH"):
        origin = os.path.abspath(checkout)
        include = Path(origin, "include")
        missing = f"CUTLASS_PATH is {checkout!r}, which has no include/cutlass/cutlass.h"
        mend = "set CUTLASS_PATH to a checkout of CUTLASS, or unset it to use the wheel"
    else:
        spec = importlib.util.find_spec("cutlass_library")
        package = Path(spec.origin).parent if spec and spec.origin else Path("/nonexistent")
        origin, include = "wheel", package / "source/include"
        missing, mend = "no CUTLASS headers were found", INSTALL_CUTLASS
    try:
        (include / "cutlass/cutlass.h").stat()
        text = (include / "cutlass/version.h").read_text(errors="replace")
    except OSError:
        notes = ("or set CUTLASS_PATH to a checkout of https://github.com/NVIDIA/cutlass",)
        raise BuildError(Diagnostic("E0702", missing, help=mend, notes=notes)) from None
    version = ".".join(re.findall(r"#define CUTLASS_(?:MAJOR|MINOR|PATCH)\s+(\d+)", text))
    if numbers(version) < OLDEST_CUTLASS:
        oldest = ".".join(map(str, OLDEST_CUTLASS))
        message = f"CUTLASS {version} in {include} is too old: evt needs {oldest} or newer"
        raise BuildError(Diagnostic("E0702", message, help=mend))
    return Cutlass(include, version, origin)


def _nvcc_places() -> Iterator[Path]:
    """Yield the candidates for nvcc. Raise BuildError E0701 if ``CUDACXX`` names no program: it is not skipped."""
    if named := os.environ.get("CUDACXX"):
        if not (program := _program(named)):
            message = f"CUDACXX is {named!r}, which is not a program"
            raise BuildError(Diagnostic("E0701", message, help="set CUDACXX to the path of nvcc, or unset it"))
        yield program
    if program := _program("nvcc"):
        yield program
    for home in (os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), SYSTEM_CUDA):
        if home:
            yield Path(os.path.abspath(home), "bin/nvcc")
    wheels = importlib.util.find_spec("nvidia")
    for site in (wheels.submodule_search_locations or ()) if wheels else ():
        yield from sorted(Path(site).glob("cu[0-9]*/bin/nvcc"), reverse=True)
        yield Path(site, "cuda_nvcc/bin/nvcc")


def _program(name: str) -> Path | None:
    found = shutil.which(name)
    return Path(os.path.abspath(found)) if found else None


def _wheel_paths(nvcc: Path) -> tuple[tuple[Path, ...], tuple[Path, ...]]:
    """Return include and library directories for an nvcc from pip, whose parts come in several wheels."""
    home = nvcc.resolve().parents[1]
    if home.parent.name != "nvidia":
        return (), ()
    homes = [home, *sorted(home.parent.glob("cuda_*"))] if home.name == "cuda_nvcc" else [home]
    include = [path for at in homes for path in (at / "include/cccl", at / "include") if path.is_dir()]
    for header, wheel in (
        ("cuda_runtime.h", "nvidia-cuda-runtime"),
        ("cuda/std/utility", "nvidia-cuda-cccl"),
    ):
        if not any((path / header).is_file() for path in include):
            message = f"{nvcc} comes from pip without its header {header}"
            mend = f"pip install {wheel}{'-cu12' if home.name == 'cuda_nvcc' else ''}"
            raise BuildError(Diagnostic("E0701", message, help=mend))
    return tuple(include), tuple(path for at in homes if (path := at / "lib").is_dir())


@functools.cache
def _nvcc_version(nvcc: Path, changed: int) -> str:
    """Return the version that ``nvcc --version`` prints, asked once per process. Raise BuildError E0701."""
    output = _ask(nvcc, "--version")
    if found := re.search(r"release [\d.]+, V(\d+(?:\.\d+)+)", output):
        return found[1]
    notes = tuple(output.strip().splitlines()[:3])
    message = f"{nvcc} does not print its version"
    raise BuildError(Diagnostic("E0701", message, help="set CUDACXX to a working nvcc", notes=notes))


def is_toolkit_nvcc(nvcc: Path) -> bool:
    """Return whether this is the compiler itself, in its toolkit, and not a script or other wrapper."""
    real = nvcc.resolve()
    try:
        with real.open("rb") as file:
            return file.read(4) == b"\x7fELF" and (real.parent.name, real.name) == ("bin", "nvcc")
    except OSError:
        return False


def toolkit_home(nvcc: Path) -> Path | None:
    """Return the root of nvcc's toolkit, also if a script calls nvcc; None if it is unknown."""
    if is_toolkit_nvcc(nvcc):
        return nvcc.resolve().parents[1]
    named = re.search(r"^#\$ _HERE_=(.+)$", _ask(nvcc, "--dryrun", "-fatbin", "x.cubin"), re.MULTILINE)
    return Path(named[1]).parent if named else None


def _ask(nvcc: Path, *options: str) -> str:
    """Return nvcc's output, or the reason that it does not run."""
    try:
        done = subprocess.run(
            [nvcc, *options],
            env=compiler_environment(),
            capture_output=True,
            text=True,
            errors="replace",
            stdin=subprocess.DEVNULL,
            timeout=60,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return done.stdout + done.stderr


def numbers(version: str) -> tuple[int, ...]:
    """Return the parts of a version."""
    return tuple(int(part) for part in re.findall(r"\d+", version))
