"""NVIDIA's run-time compiler and linker: ``find_nvrtc()`` and ``find_nvjitlink()``, over ``cuda.bindings``.

The libraries come with the CUDA builds of PyTorch, with a toolkit, or from the wheels ``nvidia-cuda-nvrtc`` and
``nvidia-nvjitlink``. They compile within this process and release the GIL.
"""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

#: The package that finds and calls both libraries; the extra ``torch`` of evt-compiler installs it.
_BINDINGS = "cuda-bindings"

Output = Literal["cubin", "ptx", "ltoir"]


@dataclass(frozen=True, slots=True)
class Missing:
    """The reason that a library cannot be used, and the command that installs it."""

    reason: str
    help: str


class JitError(Exception):
    """A text or a link that NVRTC or nvJitLink refuses; ``log`` has their messages."""

    def __init__(self, tool: str, result: str, log: str) -> None:
        super().__init__(f"{tool}: {result}")
        self.tool, self.log = tool, log


@dataclass(frozen=True, slots=True)
class Nvrtc:
    """NVRTC of a version, such as (13, 0). ``identity`` names its file, for cache keys."""

    version: tuple[int, int]
    identity: str

    def compile(
        self,
        text: str,
        options: Sequence[str],
        *,
        output: Output = "cubin",
        headers: Mapping[str, str] | None = None,
        name: str = "kernel.cu",
    ) -> bytes:
        """Compile C++ text. ``headers`` are texts by the names that ``#include`` gives. Raise JitError."""
        from cuda.bindings import nvrtc

        given = headers or {}
        names, texts = [each.encode() for each in given], [each.encode() for each in given.values()]
        program = _checked(nvrtc.nvrtcCreateProgram(text.encode(), name.encode(), len(given), texts, names))
        try:
            words = [option.encode() for option in options]
            (result,) = nvrtc.nvrtcCompileProgram(program, len(words), words)
            if result != nvrtc.nvrtcResult.NVRTC_SUCCESS:
                log = bytes(_checked(nvrtc.nvrtcGetProgramLogSize(program)))
                _checked(nvrtc.nvrtcGetProgramLog(program, log))
                raise JitError("nvrtc", result.name, log.rstrip(b"\0").decode(errors="replace"))
            size, get = {
                "cubin": (nvrtc.nvrtcGetCUBINSize, nvrtc.nvrtcGetCUBIN),
                "ptx": (nvrtc.nvrtcGetPTXSize, nvrtc.nvrtcGetPTX),
                "ltoir": (nvrtc.nvrtcGetLTOIRSize, nvrtc.nvrtcGetLTOIR),
            }[output]
            made = bytes(_checked(size(program)))
            _checked(get(program, made))
            return made
        finally:
            nvrtc.nvrtcDestroyProgram(program)


@dataclass(frozen=True, slots=True)
class NvJitLink:
    """The nvJitLink of a version, such as (13, 0). ``identity`` names its file, for cache keys."""

    version: tuple[int, int]
    identity: str

    def link(self, inputs: Sequence[tuple[str, bytes]], options: Sequence[str]) -> bytes:
        """Link LTO-IR, (name, content) each, to a cubin. Raise JitError."""
        from cuda.bindings import nvjitlink

        with _logged(0):
            handle = nvjitlink.create(len(options), list(options))
        try:
            with _logged(handle):
                for name, content in inputs:
                    nvjitlink.add_data(handle, nvjitlink.InputType.LTOIR, content, len(content), name)
                nvjitlink.complete(handle)
                made = bytearray(nvjitlink.get_linked_cubin_size(handle))
                nvjitlink.get_linked_cubin(handle, made)
            return bytes(made)
        finally:
            nvjitlink.destroy(handle)


@functools.cache
def find_nvrtc() -> Nvrtc | Missing:
    """Return NVRTC, loaded into this process, or the reason that it is missing."""
    found = _load("nvrtc", "nvidia-cuda-nvrtc")
    if isinstance(found, Missing):
        return found
    from cuda.bindings import nvrtc

    _, major, minor = map(int, nvrtc.nvrtcVersion())
    return Nvrtc((major, minor), _identity("nvrtc", (major, minor), found))


@functools.cache
def find_nvjitlink() -> NvJitLink | Missing:
    """Return nvJitLink, loaded into this process, or the reason that it is missing."""
    found = _load("nvJitLink", "nvidia-nvjitlink")
    if isinstance(found, Missing):
        return found
    from cuda.bindings import nvjitlink

    try:
        major, minor = map(int, nvjitlink.version())
    except Exception as error:  # versions before 12.3 lack the function
        return Missing(f"nvJitLink of {found} is too old: {error}", "pip install --upgrade nvidia-nvjitlink")
    return NvJitLink((major, minor), _identity("nvjitlink", (major, minor), found))


def _load(library: str, wheel: str) -> Path | Missing:
    """Load a library as ``cuda.bindings`` does, and return its file."""
    try:
        import cuda.bindings.nvjitlink
        import cuda.bindings.nvrtc  # noqa: F401
        from cuda.pathfinder import load_nvidia_dynamic_lib
    except (ImportError, RuntimeError) as error:
        return Missing(f"the package {_BINDINGS} cannot be imported: {error}", f"pip install {_BINDINGS}")
    try:
        return Path(load_nvidia_dynamic_lib(library).abs_path or library)
    except RuntimeError as error:
        first = str(error).strip().splitlines()[0]
        why = "" if "No such file" in first else f": {first}"
        return Missing(f"{library} was not found{why}", f"pip install {wheel}, or a CUDA build of PyTorch")


def _identity(name: str, version: tuple[int, int], path: Path) -> str:
    """Return a text that differs between releases of one version, by their sizes, but not between machines."""
    try:
        size = os.stat(path).st_size
    except OSError:  # a library whose path the loader does not tell
        size = 0
    return f"{name} {version[0]}.{version[1]} of {size} bytes"


def _checked(returned: tuple[Any, ...]) -> Any:
    """Return the value of a call of NVRTC. Raise JitError where the call itself fails."""
    result, *values = returned
    if result.value:
        raise JitError("nvrtc", result.name, "")
    return values[0] if values else None


@contextlib.contextmanager
def _logged(handle: int) -> Iterator[None]:
    """Turn an error of nvJitLink into a JitError; a handle that is not 0 has a log."""
    from cuda.bindings import nvjitlink

    try:
        yield
    except nvjitlink.nvJitLinkError as error:
        log = bytearray(nvjitlink.get_error_log_size(handle) if handle else 0)
        if log:
            nvjitlink.get_error_log(handle, log)
        raise JitError("nvjitlink", str(error), log.rstrip(b"\0").decode(errors="replace")) from error
