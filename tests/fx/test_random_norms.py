"""Functions that are nearly norms before a product: compiled equals eager."""

from __future__ import annotations

import pytest

from .random_norms import check

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.usefixtures("fresh_compiler")]
#: Seeds whose shift has a factor, of norms that products take in, and of one row with a function of one element of it.
KINDS = (58, 190), (3, 7, 11), (545, 717)


@pytest.mark.parametrize(
    "seed",
    [
        *(kind[0] for kind in KINDS),
        *(
            pytest.param(each, marks=pytest.mark.slow)
            for each in (*(each for kind in KINDS for each in kind[1:]), *range(300, 500))
        ),
    ],
)
def test_near_norms_are_eager(seed: int) -> None:
    check(seed)
