"""The workers of ``evt tune --gpus`` and ``--scheduler``."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from evt.tuning.device import GpuModel


@contextmanager
def workers(scheduler: str | None, gpus: int) -> Iterator[tuple[Any, GpuModel | None]]:
    """Yield a client of a Dask cluster, and the GPU if it is of this machine; print the link of the dashboard."""
    from concurrent.futures import ThreadPoolExecutor
    from importlib.util import find_spec

    if find_spec("distributed") is None:
        raise click.ClickException("--scheduler and --gpus need Dask: pip install distributed")
    from evt.farm.workers import connected, local_gpus

    gpu = None
    with ExitStack() as stack:
        if scheduler is None:
            from evt.tuning.device import gpus_here

            counted = stack.enter_context(ThreadPoolExecutor(1)).submit(gpus_here)  # the driver takes a second
            import distributed  # noqa: F401

            if gpus > (count := len(found := counted.result())):
                raise click.UsageError(f"--gpus {gpus}: this machine has {count} {'GPU' if count == 1 else 'GPUs'}.")
            gpu = found[0]
        try:
            client = stack.enter_context(connected(scheduler) if scheduler is not None else local_gpus(gpus))
        except (OSError, ValueError) as error:
            raise click.ClickException(f"no Dask scheduler at {scheduler}: {error}") from error
        click.echo(f"dashboard: {client.dashboard_link}", err=True)
        yield client, gpu
