"""The GPU that kernels are timed on: the one interface between tuning and a device."""

from __future__ import annotations

import getpass
import platform
import subprocess
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol

import torch

from evt.measured import fitted
from evt.plan import Target, cards
from evt.plan.cards import Card
from evt.runtime.kernels import device_target
from evt.tuning.clock import GpuClock, RoundTimer


class Device(Protocol):
    """A GPU. ``lock`` identifies it on this machine: processes time on it one after the other."""

    @property
    def name(self) -> str:
        """The name of the model."""

    @property
    def lock(self) -> str:
        """The name of this piece."""

    @property
    def driver(self) -> str:
        """The driver's version, or "" if it is unknown."""

    @property
    def target(self) -> Target:
        """The target of its kernels."""

    @property
    def multiprocessors(self) -> int:
        """The number of SMs."""

    def clock(self, *, warm: bool = False) -> RoundTimer:
        """Return a timer of rounds, with a cold or a warm L2 cache."""


class Gpu:
    """A CUDA device of this process."""

    def __init__(self, index: int) -> None:
        self.index = index
        self.name: str = torch.cuda.get_device_name(index)

    @property
    def lock(self) -> str:
        """The UUID of the device."""
        return str(getattr(torch.cuda.get_device_properties(self.index), "uuid", self.index))

    @property
    def driver(self) -> str:
        """The driver's version."""
        return driver_version()

    @property
    def target(self) -> Target:
        """The target of the device's kernels."""
        return device_target(self.index)

    @property
    def multiprocessors(self) -> int:
        """The number of SMs."""
        count: int = torch.cuda.get_device_properties(self.index).multi_processor_count
        return count

    def clock(self, *, warm: bool = False) -> RoundTimer:
        """Return a timer of rounds."""
        return GpuClock(torch.device("cuda", self.index), warm=warm)


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


def card_of(device: Device) -> Card:
    """Return the device as the cost model sees it; the usual GPU of its target if the model is unknown."""
    return fitted(cards.card_of(device.name, device.target.name, device.multiprocessors))


def who() -> str:
    """Return the user and the machine that measure: ``user@host``."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container without the user
        user = "unknown"
    return f"{user}@{platform.node()}"
