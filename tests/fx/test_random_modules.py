"""Random modules that view, write and keep: fused is eager, in values, strides, shared memory, buffers and inputs."""

from __future__ import annotations

from collections import Counter

import pytest

from .random_modules import check

#: The number of checks here; ``python -m tests.fx.random_modules`` checks more.
COUNT = 4

#: Seeds at which Inductor alone differs from eager PyTorch, or whose convolutions of a transposed image have other
#: strides traced than computed (PyTorch 2.13 on the CPU).
_INDUCTORS = {1014, 1037, 1044, 1053, 1061, 1084, 1089}

pytestmark = pytest.mark.filterwarnings("ignore")  # PyTorch's warning about a future removal


def test_fused_is_eager() -> None:
    answers = sum((check(seed, calls=2) for seed in range(COUNT)), start=Counter())
    assert answers["fused"] > COUNT


@pytest.mark.parametrize(
    "seed", [602, pytest.param(616, marks=pytest.mark.slow), pytest.param(677, marks=pytest.mark.slow)]
)
def test_results_that_overlap_and_memory_as_it_lies(seed: int) -> None:
    """Results expanded behind a product whose strides change, and ``as_strided`` of a batch norm's result."""
    check(seed)


@pytest.mark.usefixtures("fresh_compiler")
@pytest.mark.parametrize("seed", range(1))
def test_compiled_is_eager(seed: int) -> None:
    check(seed, compiled=True)


@pytest.mark.slow
def test_many_fused_are_eager() -> None:
    for seed in range(1000, 2000):
        check(seed)


@pytest.mark.slow
@pytest.mark.usefixtures("fresh_compiler")
def test_many_compiled_are_eager() -> None:
    for seed in sorted({*range(1000, 1100)} - _INDUCTORS):
        check(seed, compiled=True)
