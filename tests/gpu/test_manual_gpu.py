"""The examples of README and of the manual run on a GPU, with their kernels."""

from __future__ import annotations

import pytest

from tests.support.documents import run_examples

pytestmark = [pytest.mark.gpu, pytest.mark.slow]


@pytest.mark.parametrize("mark", ["", "slow", "model", "after"])
def test_examples_run(mark: str) -> None:
    assert run_examples(mark, gpu=True) == {}
