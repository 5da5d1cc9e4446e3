"""The machine of a measurement."""

from __future__ import annotations

import os
import platform
from typing import Any

import torch

from evt.compilation.toolchain import find_cutlass, find_nvcc
from evt.diagnostics import Diagnostic
from evt.errors import BuildError, LaunchError
from evt.tuning.device import driver_version
from evt.version import __version__


def require_gpu() -> torch.device:
    """Return the current CUDA device. Raise LaunchError (E0801) without one: nothing else is timed instead."""
    why = ""
    if torch.version.cuda is None:
        why = f"this PyTorch ({torch.__version__}) is built without CUDA"
    elif not torch.cuda.is_available():
        why = "PyTorch finds no CUDA device"
    if why:
        raise LaunchError(
            Diagnostic(
                "E0801",
                f"no CUDA GPU to measure on: {why}",
                help="`evt doctor` prints the missing parts; `evt run` computes on the CPU",
            )
        )
    return torch.device("cuda", torch.cuda.current_device())


def describe_machine(device: torch.device | None = None) -> dict[str, Any]:
    """Return a description of the machine, GPU, driver and versions, ready for JSON; unknown facts are None."""
    gpu: dict[str, Any] | None = None
    if device is not None:
        properties = torch.cuda.get_device_properties(device)
        gpu = {
            "name": properties.name,
            "capability": f"{properties.major}.{properties.minor}",
            "multiprocessors": properties.multi_processor_count,
            "memory_bytes": properties.total_memory,
            "driver": driver_version() or None,
        }
    return {
        "system": platform.platform(),
        "processor": _processor(),
        "cores": os.cpu_count(),
        "gpu": gpu,
        "versions": {
            "evt": __version__,
            "python": platform.python_version(),
            "torch": str(torch.__version__),
            "torch_cuda": torch.version.cuda,
            "triton": _triton(),
            "nvcc": _found(lambda: find_nvcc().version),
            "cutlass": _found(lambda: find_cutlass().version),
        },
    }


def _found(look: Any) -> str | None:
    try:
        return str(look())
    except BuildError:
        return None


def _triton() -> str | None:
    from importlib import metadata

    try:
        return metadata.version("triton")
    except metadata.PackageNotFoundError:
        return None


def _processor() -> str | None:
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
            for line in file:
                if line.startswith("model name"):
                    return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or None
