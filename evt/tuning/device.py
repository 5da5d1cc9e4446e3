"""The GPU that kernels are timed on: the one interface between tuning and a device. The module imports no torch."""

from __future__ import annotations

import getpass
import platform
import subprocess
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from evt.measured import fitted
from evt.plan import Target, cards, find_target
from evt.plan.cards import Card
from evt.runtime.driver import find_driver

if TYPE_CHECKING:
    from evt.tuning.clock import RoundTimer


class Model(Protocol):
    """A GPU as planning sees it."""

    @property
    def name(self) -> str:
        """The name of the model."""

    @property
    def driver(self) -> str:
        """The driver's version, or "" if it is unknown."""

    @property
    def target(self) -> Target:
        """The target of its kernels."""

    @property
    def multiprocessors(self) -> int:
        """The number of SMs."""


class Device(Model, Protocol):
    """A GPU. ``lock`` identifies it on this machine: processes time on it one after the other."""

    @property
    def lock(self) -> str:
        """The name of this piece."""

    def clock(self, *, warm: bool = False) -> RoundTimer:
        """Return a timer of rounds, with a cold or a warm L2 cache."""


@dataclass(frozen=True)
class GpuModel:
    """The model of a GPU of this machine, or of another one."""

    name: str
    driver: str
    target: Target
    multiprocessors: int


def gpus_here() -> list[GpuModel]:
    """Return the GPUs that this process may use, by the driver. Raise TargetError for an unknown one."""
    try:
        driver = find_driver()
        indices = range(driver.devices()[1])
        found = [(driver.name(each), driver.capability(each), driver.multiprocessors(each)) for each in indices]
    except (OSError, AttributeError):  # no driver, or one before CUDA 12
        return []
    return [
        GpuModel(name, driver_version(), find_target(f"sm{major}{minor}"), multiprocessors)
        for (_, name), (_, (major, minor)), (_, multiprocessors) in found
    ]


#: The file of Linux with the version of the driver; nvidia-smi takes up to a second.
_LOADED = Path("/sys/module/nvidia/version")


@lru_cache
def driver_version() -> str:
    """Return the version of NVIDIA's driver, "" if it is unknown."""
    with suppress(OSError):
        return _LOADED.read_text().strip()
    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        done: Any = subprocess.run(query, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    lines = done.stdout.split() if done.returncode == 0 else []
    return lines[0] if lines else ""


def card_of(gpu: Model) -> Card:
    """Return a GPU as the cost model sees it; the usual GPU of its target if the model is unknown."""
    return fitted(cards.card_of(gpu.name, gpu.target.name, gpu.multiprocessors))


def who() -> str:
    """Return the user and the machine that measure: ``user@host``."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container without the user
        user = "unknown"
    return f"{user}@{platform.node()}"
