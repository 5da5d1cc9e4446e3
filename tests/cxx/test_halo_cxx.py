"""The halo kernel's tiles on the host: the planner and the kernel choose the same, and as many to share each."""

from __future__ import annotations

import random
import subprocess
from dataclasses import astuple
from pathlib import Path

import pytest

from evt.ir.convolution import Convolution, ConvolutionProblem
from evt.plan.halo import PIXELS
from evt.plan.halo_tiles import SHARED_BYTES, Axis, Cycles, Plane, Tile, choose
from tests.cxx.cute import GXX, include_flags
from tests.cxx.halo_problems import MEMBERS, compiled

pytestmark = [
    pytest.mark.cxx,
    pytest.mark.skipif(not GXX, reason="g++ is not on PATH"),
    pytest.mark.skipif(not include_flags(), reason="there are no CUTLASS or no CUDA headers"),
]


def drawn(seed: int) -> ConvolutionProblem:
    """Return a convolution whose padding is sometimes that of a layer, sometimes anything."""
    draw = random.Random(seed)
    taps = [draw.choice((1, 2, 3, 3, 5, 7)) for _ in range(2)]
    stride = tuple(draw.choice((1, 1, 1, 2, 3, 8)) for _ in range(2))
    dilation = tuple(draw.choice((1, 1, 1, 2, 3, 9, 16)) for _ in range(2))
    reach = [d * (t - 1) for t, d in zip(taps, dilation, strict=True)]
    pads = [
        (each // 2, each - each // 2) if draw.random() < 0.6 else (draw.randrange(6), draw.randrange(6))
        for each in reach
    ]
    sizes = [draw.choice((5, 7, 8, 14, 17, 28, 56, 57, 112, 130, 300)) for _ in range(2)]
    sizes = [max(size, span + 1) for size, span in zip(sizes, reach, strict=True)]
    channels = draw.choice((8, 24, 40, 64, 96, 128, 512))
    geometry = Convolution.of("conv2d", {"stride": stride, "padding": pads, "dilation": dilation})
    return geometry.problem((1, channels, *sizes), (draw.choice((8, 64, 192)), channels, *taps))


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compiled("halo_tiles", tmp_path_factory.mktemp("halo"))


def described(tile: Tile) -> tuple[int, ...]:
    """Return the numbers of a tile, without what there is of shared memory."""
    *found, _, _ = astuple(tile)
    return tuple(found)


#: The bytes of shared memory from the first box on, which an instruction may read.
MOST_READ = SHARED_BYTES - 1024


def tiles_of(printed: str) -> tuple[list[str], list[int], list[int]]:
    """Return the tiles; of those that exist, the boxes in flight, and where reads end."""
    lines = [line.rsplit(" ", 2) for line in printed.splitlines()]
    found = [line for line in lines if len(line) > 1]
    return [line[0] for line in lines], [int(line[1]) for line in found], [int(line[2]) for line in found]


def test_both_languages_choose_one_tile(program: Path) -> None:
    """Where TMA moves neither C nor D, a kernel that shares no tiles has more room, and may find a larger one."""
    cases = [
        (problem, pixels, plane_bytes // size, size)
        for seed in range(300)
        for problem, size in [(drawn(seed), (2, 1, 2, 4)[seed % 4])]
        for pixels in random.Random(seed).sample(PIXELS, 4)
        for plane_bytes in (128, 64, 32)
    ]
    sharing, staging = ([i // each % 2 for i in range(len(cases))] for each in (1, 2))
    of_depth = [{"depth": 9, "filter_depth": 1 + i % 5} if i % 7 == 0 else {} for i in range(len(cases))]
    lines = [
        " ".join(
            map(
                str,
                (
                    *(p.sizes[name] for name in MEMBERS),
                    *rest,
                    int(bool(depth)),
                    depth.get("filter_depth", 1),
                    0,
                    shared,
                    staged,
                ),
            )
        )
        for (p, *rest), depth, shared, staged in zip(cases, of_depth, sharing, staging, strict=True)
    ]
    done = subprocess.run([program], input="\n".join(lines), capture_output=True, text=True, check=True)
    planned, blocks, without_room = [], [], 0
    found, stages, ends = tiles_of(done.stdout)
    for (problem, pixels, channels, size), depth, shared in zip(cases, of_depth, sharing, strict=True):
        plane = Plane.of({**problem.sizes, **depth}, channels, size)
        tile = choose(plane, pixels, shared=bool(shared))
        if tile is None:
            planned.append("none")
            continue
        cycles = Cycles.of(plane, tile, pixels)
        blocks.append(cycles.blocks(tile.tiles * -(-problem.sizes["filters"] // 64)) if shared else 1)
        without_room += cycles.planes > 1 and not cycles.sharers
        planned.append(" ".join(map(str, (*described(tile), blocks[-1]))) if blocks[-1] else "none")
    others = [
        each
        for *each, shared, staged in zip(lines, found, planned, sharing, staging, strict=True)
        if (each[1] != each[2] if shared or staged else each[2] != "none" and each[1] == "none")
    ]
    assert others == []
    assert planned.count("none") < len(planned) / 2
    assert MOST_READ - 20_000 < max(ends) <= MOST_READ
    assert min(stages) == 2
    assert set(blocks) == {0, 1, 2, 4, 8}
    assert 0 < without_room < len(planned) / 5


def line_of(problem: ConvolutionProblem, pixels: int, *, shared: bool = False) -> str:
    """Return the line of a problem of 16 bits, in planes of 64 channels."""
    return " ".join(map(str, (*(problem.sizes[name] for name in MEMBERS), pixels, 64, 2, 0, 1, 0, int(shared), 1)))


def test_both_languages_choose_one_tile_of_a_row(program: Path) -> None:
    """A matrix is a row of as many pixels as it has rows; the widest tiles that fit are the fewest."""
    draw, cases = random.Random(0), []
    for _ in range(200):
        width, taps = draw.choice((draw.randrange(1, 600), draw.randrange(600, 200_000))), draw.choice((1, 1, 3, 7))
        geometry = Convolution.of("conv2d", {"padding": (0, taps // 2)})
        cases.append((geometry.problem((1, 520, 1, width), (200, 520, 1, taps)), draw.choice(PIXELS)))
    done = subprocess.run(
        [program], input="\n".join(line_of(*each) for each in cases), capture_output=True, text=True, check=True
    )
    found, _, _ = tiles_of(done.stdout)
    for (problem, pixels), printed in zip(cases, found, strict=True):
        tile = choose(Plane.of(problem.sizes, 64, 2), pixels)
        assert tile is not None
        assert printed == " ".join(map(str, (*described(tile), 1)))
        if problem.sizes["filter_width"] == 1 and problem.sizes["output_width"] > pixels:
            assert tile.tiles == -(-problem.sizes["output_width"] // pixels)


#: Rows, columns and k of products, and the pixels of a tile; on 132 multiprocessors, whether consumers are paired,
#: whether filters stay, the boxes and the runs of filters in flight, and the thread blocks.
WORK = {
    # 128 pairs of tiles take no more waves than 256 tiles, which load each pixel twice.
    (512, 4096, 4096, 128): "1 0 5 12 128",
    (512, 4096, 4096, 256): "0 0 3 7 128",  # 64 pairs would leave half of the multiprocessors idle
    (50176, 256, 64, 256): "0 1 4 1 132",  # one plane: its filters stay
    (200704, 256, 128, 128): "0 1 8 2 132",
    (6272, 256, 1024, 128): "1 0 5 12 98",
    (1024, 4096, 1024, 192): "0 0 5 8 132",  # filters that stay would leave two boxes
    (8192, 1280, 640, 128): "1 0 5 12 132",
    (12544, 1024, 256, 192): "1 0 4 8 132",  # on 128 of 132 multiprocessors there would be a wave more
    (12544, 2048, 512, 64): "1 1 8 16 128",
    (4096, 64, 512, 128): "0 1 7 8 32",
}


def test_the_work_of_products(program: Path) -> None:
    geometry = Convolution.of("conv2d", {})
    problems = [(geometry.problem((1, k, 1, m), (n, k, 1, 1)), pixels) for m, n, k, pixels in WORK]
    lines = "\n".join(line_of(*each) for each in problems)
    done = subprocess.run([program, "132"], input=lines, capture_output=True, text=True, check=True)
    assert dict(zip(WORK, done.stdout.splitlines(), strict=True)) == WORK


def test_both_languages_choose_one_tile_of_windows(program: Path) -> None:
    cases = [
        (drawn(seed), pixels, window_bytes)
        for seed in range(200)
        for pixels in random.Random(seed).sample(PIXELS, 3)
        for window_bytes in (128, 64, 32)
    ]
    lines = []
    for problem, pixels, window_bytes in cases:
        numbers = (*(problem.sizes[name] for name in MEMBERS), pixels, window_bytes // 2, 2, 0, 1, 1, 0, 1)
        lines.append(" ".join(map(str, numbers)))
    done = subprocess.run([program], input="\n".join(lines), capture_output=True, text=True, check=True)
    planned = []
    for problem, pixels, window_bytes in cases:
        height, columns = Axis.of(problem.sizes, "height"), problem.sizes["output_width"]
        tile = choose(Plane.of_windows(height, columns, window_bytes), pixels)
        planned.append("none" if tile is None else " ".join(map(str, (*described(tile), 1))))
    found, stages, ends = tiles_of(done.stdout)
    assert [each for each in zip(lines, found, planned, strict=True) if each[1] != each[2]] == []
    assert max(ends) <= MOST_READ
    assert set(stages) == {3, 6}  # as many for each of the warps that widen
    assert planned.count("none") < len(planned) / 2


def test_a_divisor_divides_exactly(tmp_path: Path) -> None:
    draw, most = random.Random(0), 2**31 - 1
    divisors = [*range(1, 130), *(2**i + d for i in range(8, 31) for d in (-1, 0, 1)), most]
    divisors += [draw.randrange(1, most) for _ in range(200)]
    edges = ((0, 1, each - 1, each, most // each * each - 1, most // each * each, most) for each in divisors)
    drawn = [draw.randrange(2 ** draw.randrange(1, 32)) for _ in divisors]
    pairs = [
        (number, divisor) for divisor, few, more in zip(divisors, edges, drawn, strict=True) for number in (*few, more)
    ]
    lines = "\n".join(f"{number} {divisor}" for number, divisor in pairs)
    program = compiled("halo_divisor", tmp_path)
    done = subprocess.run([program], input=lines, capture_output=True, text=True, check=True)
    assert list(map(int, done.stdout.split())) == [number // divisor for number, divisor in pairs]
