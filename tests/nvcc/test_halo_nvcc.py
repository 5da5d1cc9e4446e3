"""The halo kernel through the real nvcc: how long it takes, what it uses, and that both languages choose one tile."""

from __future__ import annotations

import random
import subprocess
from dataclasses import astuple
from pathlib import Path

import pytest

from evt.compilation import find_toolchain
from evt.ir.convolution import Convolution, ConvolutionProblem
from evt.plan.halo import PIXELS, choose

pytestmark = pytest.mark.nvcc

PROGRAM = Path(__file__).parent / "halo_tiles.cu"
#: The sizes of ConvolutionProblem in the order of evt::halo::Problem.
MEMBERS = ("images", "height", "width", "channels", "filters")
MEMBERS += tuple(
    f"{part}_{name}" for part in ("filter", "output", "pad", "stride", "dilation") for name in MEMBERS[1:3]
)


def drawn(seed: int) -> ConvolutionProblem:
    """Return a convolution whose padding is sometimes that of a layer, sometimes anything."""
    draw = random.Random(seed)
    taps = [draw.choice((1, 2, 3, 3, 5, 7)) for _ in range(2)]
    stride = tuple(draw.choice((1, 1, 1, 2, 3, 8)) for _ in range(2))
    dilation = tuple(draw.choice((1, 1, 1, 2, 3, 9)) for _ in range(2))
    reach = [d * (t - 1) for t, d in zip(taps, dilation, strict=True)]
    pads = [
        (each // 2, each - each // 2) if draw.random() < 0.6 else (draw.randrange(6), draw.randrange(6))
        for each in reach
    ]
    sizes = [draw.choice((5, 7, 14, 17, 28, 56, 57, 112, 130, 300)) for _ in range(2)]
    sizes = [max(size, span + 1) for size, span in zip(sizes, reach, strict=True)]
    channels = draw.choice((8, 24, 40, 64, 96, 128, 512))
    geometry = Convolution.of("conv2d", {"stride": stride, "padding": pads, "dilation": dilation})
    return geometry.problem((1, channels, *sizes), (draw.choice((8, 64, 192)), channels, *taps))


def test_both_languages_choose_one_tile(tmp_path: Path) -> None:
    cases = [
        (problem, pixels, channels)
        for seed in range(400)
        for problem in [drawn(seed)]
        for pixels in random.Random(seed).sample(PIXELS, 4)
        for channels in (64, 32, 16)
    ]
    lines = [" ".join(map(str, (*(p.sizes[name] for name in MEMBERS), n, channels, 2))) for p, n, channels in cases]
    toolchain = find_toolchain()
    found = [f"-I{path}" for path in (toolchain.evt_include, toolchain.cutlass_include)]
    program = tmp_path / "tiles"
    subprocess.run([toolchain.nvcc, "-std=c++17", "-O1", "-arch=sm_90a", *found, PROGRAM, "-o", program], check=True)
    done = subprocess.run([program], input="\n".join(lines), capture_output=True, text=True, check=True)
    mine = []
    for problem, pixels, channels in cases:
        tile = choose(problem.sizes, pixels, channels * 2, -(-problem.channels // channels))
        mine.append("none" if tile is None else " ".join(map(str, astuple(tile))))
    different = [(case, c, py) for case, c, py in zip(lines, done.stdout.splitlines(), mine, strict=True) if c != py]
    assert different == []
    assert mine.count("none") < len(mine) / 2
