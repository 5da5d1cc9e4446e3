"""The workers of Dask: ``with local_gpus(count) as client``, ``with connected(address) as client``.

Workers start while the client plans and builds: it imports no torch.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

#: The Dask resource of workers with a GPU.
RESOURCE = "GPU"
#: The time to wait for a scheduler, in seconds.
PATIENCE = 10
#: The address of clusters of one machine: no other machine can reach it.
_LOCAL = "127.0.0.1"
#: The environment variable with the GPUs that a process may use.
_VISIBLE = "CUDA_VISIBLE_DEVICES"
#: The module that workers of this machine import while they start.
_PRELOADED = "evt.farm.preloaded"


@contextmanager
def connected(address: str) -> Iterator[Any]:
    """Yield a client of the scheduler at an address. Raise OSError if there is none."""
    from distributed import Client

    with Client(address, timeout=PATIENCE) as client:
        yield client


@contextmanager
def local_gpus(count: int) -> Iterator[Any]:
    """Yield a client of a cluster of processes on this machine, one for each of ``count`` GPUs, while they start."""
    from distributed import Client, Nanny, Scheduler, SpecCluster

    at = {"host": _LOCAL, "dashboard_address": f"{_LOCAL}:0"}
    usual = {"nthreads": 1, "memory_limit": 0, "resources": {RESOURCE: 1}, "preload": [_PRELOADED], **at}

    class Gpus(SpecCluster):  # type: ignore[misc, unused-ignore]
        """A cluster that does not wait for its workers; they have a GPU each."""

        def new_worker_spec(self) -> dict[int, dict[str, Any]]:
            number = len(self.worker_spec)
            options = {**usual, "env": {_VISIBLE: _visible_gpus(count)[number]}}
            return {number: {"cls": Nanny, "options": options}}

    make: Any = Gpus  # Dask has no types
    with (
        make(scheduler={"cls": Scheduler, "options": at}, silence_logs=logging.ERROR) as cluster,
        Client(cluster) as client,
    ):
        cluster.scale(count)
        yield client


def _visible_gpus(count: int) -> list[str]:
    """Return the names of the first GPUs that this process may use."""
    given = os.environ.get(_VISIBLE)
    return given.split(",")[:count] if given is not None else list(map(str, range(count)))
