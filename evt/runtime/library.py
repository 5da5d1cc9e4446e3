"""A built kernel in this process: the library's C functions, and their failures as diagnostics."""

from __future__ import annotations

import ctypes
import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from evt.compilation.own import is_cubin
from evt.diagnostics import Diagnostic
from evt.errors import InternalError, LaunchError
from evt.plan import Plan
from evt.runtime.launcher import FORMATS, Launcher


@dataclass(frozen=True)
class Library:
    """A loaded kernel: a library with a launcher, or a cubin that :mod:`evt.runtime.launcher` launches.

    ``run`` launches it, ``form`` is the struct format of its arguments, ``workspace`` returns the bytes of device
    memory that a call with these arguments needs; only the arguments' sizes matter.
    """

    path: Path
    run: Callable[[bytes, int, int], int]
    form: str
    workspace: Callable[[bytes], int]


@dataclass(frozen=True)
class _Functions:
    """The functions of a loaded library; ``schema`` is the JSON of its arguments."""

    run: Callable[[bytes, int, int], int]
    workspace: Callable[[bytes], int]
    schema: str


def load_library(path: Path, plan: Plan, name: str) -> Library:
    """Load the library or the cubin that evt built for a plan; ``name`` begins the names of its functions.

    Plans of equal text share the library. Raise LaunchError (E0803) when the loader refuses the library and
    InternalError when the plan has other arguments.
    """
    form = "".join(FORMATS[field.kind] for field in plan.fields)
    if is_cubin(path):
        launcher = _launcher(path, plan, name)
        return Library(path, launcher.run, form, launcher.workspace)
    found = _load(path, name)
    if json.loads(found.schema) != json.loads(plan.schema):
        raise InternalError(
            Diagnostic("E0902", f"the library {path} takes other arguments than its plan", help="run `evt cache clear`")
        )
    return Library(path, found.run, form, found.workspace)


@cache
def _launcher(path: Path, plan: Plan, name: str) -> Launcher:
    try:
        return Launcher(plan, path.read_bytes(), name)
    except ValueError as error:
        message = f"the cubin {path} has other parameters than its plan: {error}"
        raise InternalError(Diagnostic("E0902", message, help="run `evt cache clear`")) from error


@cache
def _load(path: Path, name: str) -> _Functions:
    try:
        handle = ctypes.CDLL(str(path))
        schema = handle[f"{name}_schema"]
        schema.restype = ctypes.c_char_p
        run = handle[f"{name}_run"]
        run.restype = ctypes.c_int
        run.argtypes = (ctypes.c_char_p, ctypes.c_size_t, ctypes.c_void_p)
        workspace = handle[f"{name}_workspace"]
        workspace.restype = ctypes.c_int64
        workspace.argtypes = (ctypes.c_char_p,)
        given, taken = (_constant(handle, f"{name}_{each}") for each in ("params", "taken"))
    except (OSError, AttributeError) as error:
        raise LaunchError(
            Diagnostic("E0803", f"the library {path} cannot be loaded: {error}", help="run `evt cache clear`")
        ) from error
    if given != taken:
        message = f"the launcher of {path} passes {given} bytes of parameters, and its kernel takes {taken}"
        raise LaunchError(Diagnostic("E0803", message, help="run `evt cache clear`, or set EVT_BUILD_WAY=whole"))
    return _Functions(run, workspace, schema().decode())


def _constant(handle: ctypes.CDLL, name: str) -> int | None:
    """Return a constant that libraries of a separate launcher and kernel have."""
    try:
        return ctypes.c_uint.in_dll(handle, name).value
    except ValueError:
        return None


def launch_failure(code: int) -> LaunchError:
    """Return the error for a non-zero result of a kernel's ``run``. ``evt::Failure`` has its kinds."""
    kind, detail = code >> 16, code & 0xFFFF
    match kind:
        case 2:
            return LaunchError(
                Diagnostic(
                    "E0804", f"the kernel refused the problem (status {detail})", notes=("nothing was launched",)
                )
            )
        case 3:
            return LaunchError(Diagnostic("E0801", f"no usable CUDA device: {_cuda_error(detail)}"))
        case 4:
            return LaunchError(
                Diagnostic(
                    "E0802",
                    f"the kernel cannot be loaded on this GPU: {_cuda_error(detail)}",
                    help="run `evt doctor`; the driver must be as new as the CUDA compiler",
                )
            )
        case 5:
            return LaunchError(
                Diagnostic(
                    "E0805",
                    "the CUDA driver has no cuTensorMapEncodeTiled, which TMA kernels need",
                    help="install a driver of CUDA 12.0 or newer, or use the route evt-2x",
                )
            )
        case 6:
            return LaunchError(Diagnostic("E0803", f"the kernel could not be launched: {_cuda_error(detail)}"))
    raise InternalError(Diagnostic("E0902", f"a kernel returned {code:#x}"))


def _cuda_error(code: int) -> str:
    import torch

    try:
        name = torch.cuda.CudaError(code)
    except (AttributeError, TypeError, RuntimeError):
        return f"CUDA error {code}"
    return f"{name} (CUDA error {code})"
