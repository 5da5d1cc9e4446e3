"""The kernels of filter gradients of evt on the host: taps and strides, tiles of one tap, and the sums of all CTAs."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cxx.gxx import HOST, MARKS, check

pytestmark = MARKS


@pytest.mark.parametrize("flags", [(), pytest.param(("-DEVERY_CASE",), marks=pytest.mark.slow)])
def test_results_of_filter_gradients(tmp_path: Path, flags: tuple[str, ...]) -> None:
    check("wgrad", tmp_path, HOST, flags=flags)
