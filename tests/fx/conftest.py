"""Set-up and clean-up of the tests of compiled models."""

from __future__ import annotations

from collections.abc import Iterator

import pytest


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
