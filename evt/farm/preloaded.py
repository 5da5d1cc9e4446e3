"""Imports for the first task of a worker, made while the worker starts: see :mod:`evt.farm.workers`."""

from __future__ import annotations

import atexit
import os
from typing import Any

import torch

import evt.farm.machine
import evt.tuning.tune  # noqa: F401
from evt.tuning.device import driver_version


def dask_setup(worker: Any) -> None:
    """Make the CUDA context, which takes a second: Dask calls this function."""
    if torch.cuda.is_available():
        torch.zeros(1, device="cuda")
        driver_version()
    atexit.register(os._exit, 0)  # Python would unload torch, which takes seconds; a worker has nothing to lose
