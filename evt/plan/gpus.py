"""GPUs by name: ``find_gpu("RTX 4090") -> "sm89"``."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Mapping
from typing import Any

from evt.diagnostics import Diagnostic
from evt.errors import TargetError

#: The names of GPUs by target; the names in the manual's table come first.
GPUS: Mapping[str, tuple[str, ...]] = {
    "sm80": ("A100", "A800", "A30"),
    "sm86": (
        "A10",
        "RTX 3090",
        "A10G",
        "A40",
        "A16",
        "A2",
        "RTX 3080",
        "RTX 3070",
        "RTX 3060",
        "RTX A6000",
        "RTX A5000",
    ),
    "sm89": (
        "L4",
        "L40S",
        "RTX 4090",
        "L40",
        "L20",
        "RTX 4080",
        "RTX 4070",
        "RTX 4060",
        "RTX 6000 Ada",
        "RTX 5000 Ada",
    ),
    "sm90": ("H100", "H200", "GH200", "H800", "H20"),
    "sm100": ("B200", "GB200", "B100"),
    "sm103": ("B300", "GB300"),
    "sm120": ("RTX 5090", "RTX PRO 6000", "RTX 5080", "RTX 5070", "RTX 5060"),
}
#: GPUs that evt has no kernels for, with their architecture.
OTHERS: Mapping[str, str] = {
    **dict.fromkeys(("GB10", "DGX Spark"), "sm121"),
    **dict.fromkeys(("Jetson Thor", "Thor"), "sm110"),
    **dict.fromkeys(("Jetson Orin", "Orin"), "sm87"),
    **dict.fromkeys(("T4", "RTX 2080", "RTX 2070", "RTX 2060", "Titan RTX", "RTX 8000"), "sm75"),
    **dict.fromkeys(("V100", "Titan V"), "sm70"),
    **dict.fromkeys(("P100",), "sm60"),
    **dict.fromkeys(("P4", "P40", "GTX 1080"), "sm61"),
}
#: The GPU of this machine.
NATIVE = "native"
_MAJOR, _MINOR = 75, 76  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR and _MINOR


def plain(name: str) -> str:
    """Return a name without case, blanks, maker and series: ``NVIDIA GeForce RTX 4090`` and ``rtx4090`` are one."""
    return re.sub("nvidia|geforce|tesla|[ _-]", "", name.lower())


_TARGET_OF = {plain(name): target for target, names in GPUS.items() for name in names}
_OTHER = {plain(name): architecture for name, architecture in OTHERS.items()}
#: Suffixes of a GPU's name: its form, its memory, or a variant of its architecture.
_FORM = re.compile("(sxm[0-9]?|pcie|nvl|hbm[0-9]e?|ti|super|laptop|gpu|[0-9]+gb)+$")


def find_gpu(name: str) -> str | None:
    """Return the architecture of a GPU, ``sm90`` of ``H100`` or ``NVIDIA H100 80GB HBM3``; None if it is unknown."""
    words = re.split("[ _-]+", name.strip())
    for count in range(len(words), 0, -1):  # a suffix names the form or the memory
        joined = plain("".join(words[:count]))
        for each in (joined, _FORM.sub("", joined)):
            if found := _TARGET_OF.get(each) or _OTHER.get(each):
                return found
    return None


def native_target() -> str:
    """Return the architecture of this machine's first GPU, from the driver.

    Raise TargetError (E0501) if there is none.
    """
    cuda = _driver()
    device, major, minor = (ctypes.c_int() for _ in range(3))
    cuda.cuDeviceGet(ctypes.byref(device), 0)
    cuda.cuDeviceGetAttribute(ctypes.byref(major), _MAJOR, device)
    cuda.cuDeviceGetAttribute(ctypes.byref(minor), _MINOR, device)
    return f"sm{major.value}{minor.value}"


def native_name() -> str:
    """Return the name of this machine's first GPU. Raise TargetError (E0501) if there is none."""
    cuda = _driver()
    device, name = ctypes.c_int(), ctypes.create_string_buffer(256)
    cuda.cuDeviceGet(ctypes.byref(device), 0)
    cuda.cuDeviceGetName(name, len(name), device)
    return name.value.decode(errors="replace")


def _driver() -> Any:
    """Return the initialised driver of a machine with a GPU. Raise TargetError (E0501) on other machines."""
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
        error = cuda.cuInit(0)
    except OSError:
        error = -1
    count = ctypes.c_int()
    if error or cuda.cuDeviceGetCount(ctypes.byref(count)) or not count.value:
        raise TargetError(
            Diagnostic(
                "E0501",
                "the target is `native`, and this machine has no GPU",
                help="name one: `h100`, `a100`, `rtx4090`, or `sm90`",
            )
        )
    return cuda
