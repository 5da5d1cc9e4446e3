"""The depthwise kernel's tiles on the host: they cover the output and fit, as the planner has said."""

from __future__ import annotations

import random
import subprocess
from math import ceil

import pytest

from evt.ir.convolution import Convolution
from evt.plan.depthwise import CHANNELS, UNITS, Filter, Unit
from evt.plan.halo_tiles import SHARED_BYTES
from tests.cxx.cute import GXX, include_flags
from tests.cxx.halo_problems import MEMBERS, compiled

pytestmark = [
    pytest.mark.cxx,
    pytest.mark.skipif(not GXX, reason="g++ is not on PATH"),
    pytest.mark.skipif(not include_flags(), reason="there are no CUTLASS or no CUDA headers"),
]

#: Those of depthwise_tiles.cpp: taps, stride, dilation, unit.
FILTERS = (
    ((3, 3), (1, 1), (1, 1), Unit(2, 7)),
    ((7, 7), (1, 1), (1, 1), Unit(4, 7)),
    ((5, 3), (2, 1), (1, 2), Unit(1, 8)),
    ((3, 5), (1, 3), (4, 1), Unit(2, 5)),
)


def test_tiles_cover_the_output_and_fit(tmp_path) -> None:
    draw = random.Random(1)
    cases = []
    for number in range(400):
        which = number % len(FILTERS)
        taps, stride, dilation, _ = FILTERS[which]
        reach = [d * (t - 1) for t, d in zip(taps, dilation, strict=True)]
        sizes = [span + draw.choice((1, 3, 7, 14, 28, 55, 112, 300)) for span in reach]
        channels = 8 * draw.choice((1, 2, 4, 12, 48, 144))
        geometry = Convolution.of("conv2d", {"stride": stride, "dilation": dilation, "groups": channels})
        problem = geometry.problem((draw.choice((1, 2, 7, 64)), channels, *sizes), (channels, 1, *taps))
        cases.append((problem, which, draw.choice((2, 4)), draw.choice((0, 2))))
    lines = [" ".join(map(str, (*(problem.sizes[name] for name in MEMBERS), *others))) for problem, *others in cases]
    program = compiled("depthwise_tiles", tmp_path)
    done = subprocess.run([program], input="\n".join(lines), capture_output=True, text=True, check=True)
    printed = [list(map(int, line.split())) for line in done.stdout.splitlines()]
    assert len(printed) == len(cases)
    for (problem, which, size, of_c), numbers in zip(cases, printed, strict=True):
        images, rows, columns, box_rows, box_columns, high, wide, tiles, blocks, threads, issued, least, used = numbers
        taps, stride, dilation, unit = FILTERS[which]
        sizes = problem.sizes
        assert 1 <= images * rows * columns <= UNITS
        assert threads == 32 * ceil(images * rows * columns / 2) <= 256
        assert high == ceil(sizes["output_height"] / (rows * unit.rows))
        assert wide == ceil(sizes["output_width"] / (columns * unit.columns))
        assert tiles == high * wide * ceil(problem.images / images)
        assert images == 1 or high == wide == 1
        assert blocks == ceil(problem.channels / CHANNELS)
        assert box_rows == (rows * unit.rows - 1) * stride[0] + (taps[0] - 1) * dilation[0] + 1 <= 256
        assert box_columns == (columns * unit.columns - 1) * stride[1] + (taps[1] - 1) * dilation[1] + 1 <= 256
        assert used <= SHARED_BYTES
        assert issued == Filter(taps, stride, dilation).instructions(unit)
        assert least == Filter(taps, stride, dilation).least_bytes(unit, size, of_c)
