"""The state of this machine: available tools, missing ones, and the commands that install them."""

from __future__ import annotations

import ctypes
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from evt.compilation.cache import Cache
from evt.compilation.jit import Missing
from evt.compilation.toolchain import (
    INSTALL_NVCC,
    OLDEST_NVCC,
    find_cutlass,
    find_host_compiler,
    find_nvcc,
    find_toolchain,
    is_by_nvrtc,
)
from evt.errors import BuildError

_OLDEST_PYTHON = (3, 10)
_DISK_BYTES = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Check:
    """One line of ``evt doctor``. Only running kernels needs a check that is not ``required``."""

    name: str
    ok: bool
    found: str
    remedy: str = ""
    required: bool = True


def diagnose() -> list[Check]:
    """Check everything that evt uses; never raise for a missing part."""
    checks = [_python(), _nvcc(), _host_compiler(), _cutlass(), _way(), _own(), *_cache(), _torch()]
    return [*checks, *_driver()]


def _python() -> Check:
    ok = sys.version_info >= _OLDEST_PYTHON
    found = f"{platform.python_version()} ({sys.executable})"
    return Check("Python", ok, found, "" if ok else "install Python 3.12")


def _nvcc() -> Check:
    def look() -> tuple[str, str]:
        nvcc = find_nvcc()
        old = tuple(map(int, nvcc.version.split(".")[:2])) < OLDEST_NVCC
        return (
            f"{nvcc.version} ({nvcc.path})",
            INSTALL_NVCC if old else "",
        )

    return _checked("nvcc", look)


def _cutlass() -> Check:
    def look() -> tuple[str, str]:
        cutlass = find_cutlass()
        return f"{cutlass.version} ({cutlass.include})", ""

    return _checked("CUTLASS headers", look)


def _host_compiler() -> Check:
    try:
        wanted = os.environ.get("NVCC_CCBIN") or str(find_host_compiler() or "g++")
    except BuildError as error:
        problem = error.diagnostics[0]
        return Check("C++ compiler", False, problem.message, problem.help)
    compiler = shutil.which(wanted)
    if compiler is None and Path(wanted).is_dir():
        compiler = shutil.which("g++", path=wanted)
    if compiler is None:
        return Check("C++ compiler", False, f"{wanted}: not found", "apt install g++")
    try:
        done = subprocess.run([compiler, "--version"], capture_output=True, text=True, errors="replace", timeout=60)
    except (OSError, subprocess.TimeoutExpired) as error:
        return Check("C++ compiler", False, f"{compiler}: {error}", "apt install --reinstall g++")
    version = (done.stdout.splitlines() or ["?"])[0]
    ok = done.returncode == 0
    return Check("C++ compiler", ok, f"{version} ({compiler})", "" if ok else "apt install --reinstall g++")


def _way() -> Check:
    """Return the check of the tools for a quick second formula: a skeleton and a formula, else nvcc for whole files."""
    from evt.compilation.recipe import find_jit

    name, slow = "NVRTC, nvJitLink", "nvcc compiles each formula's whole file"
    try:
        toolchain = find_toolchain()
    except BuildError as error:
        return Check(name, True, f"not needed without nvcc and CUTLASS: {error.diagnostics[0].message}", required=False)
    if not toolchain.by_parts:
        return Check(name, True, f"not used: variables make {slow}", required=False)
    jit = find_jit(toolchain)
    if isinstance(jit, Missing):
        return Check(name, False, f"{slow}: {jit.reason}", jit.help, required=False)
    nvrtc, linker = (".".join(map(str, each.version)) for each in (jit.nvrtc, jit.linker))
    return Check(name, True, f"{nvrtc}, {linker}: a new formula on a known skeleton takes a second", required=False)


def _own() -> Check:
    """Return the check of the tools for own kernels: NVRTC alone, else nvcc for whole files."""
    from evt.compilation.own import find_way

    name, by_nvcc = "own kernels", "nvcc compiles them"
    if not is_by_nvrtc():
        return Check(name, True, f"{by_nvcc}: variables ask for it", required=False)
    found = find_way()
    if isinstance(found, Missing):
        return Check(name, False, f"{by_nvcc}: {found.reason}", found.help, required=False)
    version = ".".join(map(str, found.version))
    return Check(name, True, f"NVRTC {version} compiles them in a second, without nvcc and CUTLASS", required=False)


def _cache() -> list[Check]:
    def look() -> tuple[str, str]:
        cache = Cache()
        cache.prepare()
        entries = cache.entries()
        return f"{cache.root}, {len(entries)} kernels, {sum(e.size_bytes for e in entries) / 1e6:.0f} MB", ""

    def look_for_space() -> tuple[str, str]:
        root = Cache().root
        free = shutil.disk_usage(root).free
        return f"{free / 1e9:.1f} GB at {root}", "" if free >= _DISK_BYTES else "evt cache clear"

    directory = _checked("cache directory", look)
    return [directory, _checked("free disk", look_for_space)] if directory.ok else [directory]


def _torch() -> Check:
    from importlib import metadata

    try:
        return Check("PyTorch", True, metadata.version("torch"), required=False)
    except metadata.PackageNotFoundError:
        return Check("PyTorch", False, "not installed", "pip install torch", required=False)


def _driver() -> list[Check]:
    """Return the check of libcuda. A machine without a GPU has no libcuda, and evt uses the reference."""
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError:
        remedy = "install the NVIDIA driver (without one, evt computes with the reference on the CPU)"
        return [Check("NVIDIA driver", False, "no libcuda.so.1", remedy, required=False)]
    if error := cuda.cuInit(0):
        found = f"cuInit says error {error}"
        return [Check("NVIDIA driver", False, found, "nvidia-smi", required=False)]
    number, name = ctypes.c_int(), ctypes.create_string_buffer(256)
    cuda.cuDriverGetVersion(ctypes.byref(number))
    supports = (number.value // 1000, number.value % 1000 // 10)
    checks = [_driver_version(supports)]
    cuda.cuDeviceGetCount(ctypes.byref(number))
    for index in range(number.value):
        device, major, minor = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
        cuda.cuDeviceGet(ctypes.byref(device), index)
        cuda.cuDeviceGetName(name, len(name), device)
        cuda.cuDeviceGetAttribute(ctypes.byref(major), 75, device)
        cuda.cuDeviceGetAttribute(ctypes.byref(minor), 76, device)
        arch = f"sm_{major.value}{minor.value}"
        found = f"{name.value.decode(errors='replace')} ({arch})"
        ok = major.value >= 8
        remedy = "" if ok else "use a GPU of sm_80 or newer"
        checks.append(Check(f"GPU {index}", ok, found, remedy, required=False))
    return checks


def _driver_version(supports: tuple[int, int]) -> Check:
    """Check that the driver supports nvcc's major version, as kernels need."""
    found = f"supports CUDA {supports[0]}.{supports[1]}"
    try:
        major = int(find_nvcc().version.split(".")[0])
    except BuildError:
        major = 0
    remedy = f"update the driver to one that supports CUDA {major}" if major > supports[0] else ""
    return Check("NVIDIA driver", not remedy, found, remedy, required=False)


def _checked(name: str, look: Callable[[], tuple[str, str]]) -> Check:
    """Return a check from the result of ``look`` and its remedy, or from the error that it raises."""
    try:
        found, remedy = look()
    except BuildError as error:
        problem = error.diagnostics[0]
        return Check(name, False, problem.message, problem.help)
    return Check(name, not remedy, found, remedy)
