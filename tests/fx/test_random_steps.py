"""Random training steps that are compiled equal eager steps."""

from __future__ import annotations

import pytest
import torch

from .random_steps import check, check_inductor

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.usefixtures("fresh_compiler")]
#: Seeds of steps that were wrong: a vector along rows and columns; views of images, sizes of unread results, sums of
#: groups in batches.
WRONG, WRONG_BY_INDUCTOR = (29, 56), (48, 20071, 20369)


@pytest.mark.parametrize("seed", [*WRONG, *(pytest.param(each, marks=pytest.mark.slow) for each in range(400, 700))])
def test_steps_are_eager(seed: int) -> None:
    with torch.enable_grad():
        check(seed)


@pytest.mark.parametrize(
    "seed",
    [
        WRONG_BY_INDUCTOR[0],
        *(pytest.param(each, marks=pytest.mark.slow) for each in (*WRONG_BY_INDUCTOR[1:], *range(700, 740))),
    ],
)
def test_steps_by_inductor_are_eager(seed: int) -> None:
    with torch.enable_grad():
        check_inductor(seed)
