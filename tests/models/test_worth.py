"""Which regions are expected to win: what the GPU saves, and what the host takes for calls where no CUDA graph does."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from evt.fx.backend import backend  # noqa: E402
from evt.fx.report import RECORDS, Row  # noqa: E402
from evt.fx.worth import CALL, LAUNCH  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")  # of PyTorch, about what it will remove


@pytest.fixture(autouse=True)
def _fresh():
    torch._dynamo.reset()
    RECORDS.clear()
    with torch.no_grad():
        yield
    torch._dynamo.reset()


def row_of(function: Callable[..., Any], *given: torch.Tensor, **options: Any) -> Row:
    """Return what became of the product of a function, compiled for the CPU as if that was a GPU."""
    options = {"evt.devices": ("cpu",), **options}
    torch.compile(function, backend=partial(backend, options=options), dynamic=False)(*given)
    (row,) = RECORDS[-1].rows
    return row


def activated(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return torch.tanh(x @ w)


def test_a_call_less_is_a_gain_where_the_gpu_waits_for_the_host() -> None:
    """Of few rows: 3,072 x 3,072 weights take the GPU about as long as a call takes the host."""
    given = torch.zeros(8, 3072).half(), torch.zeros(3072, 3072).half()
    row = row_of(activated, *given)
    assert row.worth is not None
    assert row.worth.waiting is not None
    assert 0 < row.worth.saved < row.worth.lost < row.worth.saved + row.worth.waiting
    assert "us less for the host" in row.gain
    torch._dynamo.reset()
    replayed = row_of(activated, *given, **{"triton.cudagraphs": True})
    assert "E1017" in replayed.reason
    assert "for the host" not in replayed.reason


def test_large_products_do_not_wait() -> None:
    row = row_of(activated, torch.zeros(2048, 2048).half(), torch.zeros(2048, 2048).half())
    assert row.fused
    assert row.worth is not None
    assert row.worth.waiting == pytest.approx(0, abs=1e-6)
    assert "for the host" not in row.gain


def test_small_products_save_a_call() -> None:
    row = row_of(activated, torch.zeros(8, 16).half(), torch.zeros(16, 16).half())
    assert row.fused
    assert row.worth is not None
    assert row.worth.waiting == pytest.approx(CALL - LAUNCH, abs=0.1)


def test_what_the_host_hides_is_no_gain() -> None:
    """A kernel of Inductor's reads the result anyway, so that as many calls are made, and each takes the longest."""
    given = torch.ones(512, 64).half(), torch.ones(64, 512).half()
    row = row_of(lambda x, w: torch.softmax(torch.relu(x @ w), -1), *given)
    assert "E1017" in row.reason
    assert "saves 0.52 MB" in row.reason
    assert "us more for the host" in row.reason
