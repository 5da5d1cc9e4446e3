"""Several threads that call one fused module: captures, runs of the model, and changes of its plans."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch

import evt
from evt.fx import turns
from evt.fx.fuse import fuse
from evt.fx.module import dispatch_of

# PyTorch silences its own warnings by `warnings.catch_warnings`, which threads undo for each other
pytestmark = pytest.mark.filterwarnings("ignore")

THREADS = 4


def model() -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.Linear(16, 8)).double().eval()


def together(call: Callable[[int], Any]) -> list[Any]:
    """Call a function in several threads that start at the same time."""
    start = threading.Barrier(THREADS)

    def run(place: int) -> Any:
        start.wait()
        return call(place)

    with ThreadPoolExecutor(THREADS) as pool:
        return list(pool.map(run, range(THREADS)))


def test_threads_call_new_kinds() -> None:
    net = model()
    x = torch.randn(4, 8, dtype=torch.float64)
    fused = fuse(net, (x,))
    with torch.no_grad():
        wanted = net(x)

    def call(place: int) -> None:
        for count in (1, 2, 3, 4):
            recorded = (place + count) % THREADS == 0  # then the model itself runs
            with torch.set_grad_enabled(recorded):
                found = fused(x[:count])
            assert type(found) is torch.Tensor
            assert found.requires_grad == recorded
            torch.testing.assert_close(found.detach(), wanted[:count])

    together(call)
    dispatch = dispatch_of(fused)
    assert dispatch is not None
    assert dispatch._changes == 0
    assert dispatch.answers.keys() <= {"fused", "gradients are recorded"}


def test_models_that_share_a_part() -> None:
    """A thread waits for the lock of the part while it runs the whole; the other captures the part."""
    part = model()
    x = torch.randn(4, 8, dtype=torch.float64)
    inner = fuse(part, (x,))

    class Whole(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            found: torch.Tensor = inner(x)
            return found + 1

    whole = fuse(Whole().eval(), (x,))
    with torch.no_grad():
        wanted = part(x) + 1
        for count in (3, 2, 1):
            with torch.no_grad():
                found = together(lambda _, count=count: whole(x[:count]))  # type: ignore[misc]
            for each in found:
                torch.testing.assert_close(each.detach(), wanted[:count])


def test_a_capture_waits_for_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "LONGEST", 0.05)
    entered, leave = threading.Event(), threading.Event()

    def hold() -> None:
        with turns.run():
            entered.set()
            leave.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    entered.wait()
    x = torch.randn(4, 8, dtype=torch.float64)
    try:
        with pytest.raises(evt.ArgumentError, match="other threads have been running models"):
            fuse(model(), (x,))
    finally:
        leave.set()
        thread.join()
    fuse(model(), (x,))
