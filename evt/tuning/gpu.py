"""A CUDA device of this process, on which tuning times kernels."""

from __future__ import annotations

import torch

from evt.plan import Target
from evt.runtime.kernels import device_target
from evt.tuning.clock import GpuClock, RoundTimer
from evt.tuning.device import driver_version


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
