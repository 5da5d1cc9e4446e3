"""Set-up and clean-up of the tests of compiled models."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import pytest


@pytest.fixture(scope="session", autouse=True)
def _graphs_are_made_faster() -> Iterator[None]:
    """Leave out work of PyTorch that each graph repeats, and that no test reads.

    torch.export lists the composite operators, and overrides 5,700 kernels of them, checking each: half of the time of
    a capture. torch.compile flushes the processor's caches to time guards.
    """
    import torch
    from torch._dynamo import guards
    from torch.export import exported_program

    name, implement = "_collect_all_valid_cia_ops", torch._ops.OperatorBase.py_impl
    listed = functools.cache(getattr(exported_program, name))

    def register(operator: Any, key: Any) -> Any:
        if not isinstance(key, torch._C.DispatchKey):
            return implement(operator, key)

        def keep(function: Any) -> Any:
            operator.py_kernels[key] = function
            operator._dispatch_cache.clear()
            return function

        return keep

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(exported_program, name, lambda: set(listed()))
        patch.setattr(torch._ops.OperatorBase, "py_impl", register)
        patch.setattr(guards, "profile_guard_manager", lambda *_: 0.0, raising=False)  # older releases lack it
        yield


@pytest.fixture(autouse=True)
def _graphs_are_compiled(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no graph come from PyTorch's caches, except in tests of :mod:`evt.fx.stored`: the others watch the pass."""
    from evt.fx.backend import FusePass

    if request.module.__name__ != "tests.fx.test_stored":
        monkeypatch.setattr(FusePass, "uuid", lambda self: None)


@pytest.fixture
def fresh_compiler() -> Iterator[None]:
    """Run an inference with nothing compiled, reported or prepared before, and forget it afterwards."""
    import torch

    from evt.fx.records import RECORDS
    from evt.runtime.call import caller_of
    from evt.runtime.site import SITES

    def forget() -> None:
        torch._dynamo.reset()
        torch._dynamo.utils.counters.clear()
        RECORDS.clear()
        SITES.clear()
        caller_of.cache_clear()

    forget()
    torch.manual_seed(0)
    with torch.no_grad():
        yield
    forget()


@pytest.fixture
def planned(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take regions that have a kernel on an H200."""
    from tests.support.stub_device import plan_for_h200

    plan_for_h200(monkeypatch.setattr)


@pytest.fixture
def h200(planned: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Launch the reference, too."""
    from tests.support.stub_device import compute_launches

    compute_launches(monkeypatch.setattr)
