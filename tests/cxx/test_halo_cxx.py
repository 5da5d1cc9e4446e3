"""The halo kernel of evt on the host: convolutions of images and volumes, and the gradients of their inputs."""

from __future__ import annotations

import random
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch

from evt.ir.convolution import Convolution, ConvolutionProblem
from evt.plan.halo import forward
from tests.cxx.gxx import HOST, MARKS, build_program
from tests.cxx.halo_problems import drawn, expected, line_of, tensors

pytestmark = MARKS


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_program("halo", tmp_path_factory.mktemp("halo"), HOST)


def strided(seed: int) -> ConvolutionProblem:
    """Return a small 2-d convolution with a stride, no padding beyond the reach of its taps."""
    draw = random.Random(seed)
    taps, steps = (draw.randint(1, 4), draw.randint(1, 4)), draw.choice(((2, 2), (2, 1), (1, 2), (1, 4)))
    dilation = draw.choice((1, 1, 2, 5)), draw.choice((1, 1, 2, 5))
    reach = [each * (count - 1) for each, count in zip(dilation, taps, strict=True)]
    pads = [(draw.randint(0, each), draw.randint(0, each)) for each in reach]
    sizes = [draw.randint(each + 1, each + 12) for each in reach]
    given = {"stride": steps, "padding": pads, "dilation": dilation}
    return Convolution.of("conv2d", given).problem((3, 20, *sizes), (5, 20, *taps))


def problems(kind: str, count: int) -> list[ConvolutionProblem]:
    """Return problems that the kernel takes: of a gradient, whose padding is within the reach of the taps."""
    dimensions = 3 if "volumes" in kind else 2
    found: list[ConvolutionProblem] = []
    seed = 0
    while len(found) < count:
        problem = strided(seed) if kind == "strides" else drawn(seed, "gradients" in kind, dimensions)
        sizes = forward("dgrad" if kind != "images" and kind != "volumes" else "fprop", problem.sizes)
        if all(size >= 0 for name, size in sizes.items() if name.startswith("pad_")):
            found.append(problem)
        seed += 1
    return found


KINDS = ["images", "volumes", "gradients", "gradients of volumes", "strides"]


@pytest.mark.parametrize("count", [3, pytest.param(20, marks=pytest.mark.slow)])
@pytest.mark.parametrize("kind", KINDS)
def test_results_of_convolutions(kind: str, count: int, program: Path) -> None:
    operator = "fprop" if kind in ("images", "volumes") else "dgrad"
    given = problems(kind, count)
    lines = []
    for problem in given:
        sizes = dict(forward(operator, problem.sizes))
        x, y, weight = tensors(problem)
        data = [(x if operator == "fprop" else y).movedim(1, -1), weight.movedim(1, -1)]
        numbers = " ".join(str(int(each)) for tensor in data for each in tensor.flatten().tolist())
        lines.append(f"{line_of(sizes, 104, operator == 'dgrad', kind == 'strides')} 1 16 0 {numbers}")
    results = run(program, lines)
    assert len(results) == count
    assert sum(each != "none" for each in results) > count / 2
    for problem, line in zip(given, results, strict=True):
        if line == "none":
            continue
        check(line, expected(problem, operator), str(problem))


#: Groups, the channels and the filters of one, the channels of a block, and the elements of a load of filters.
#: The last is 0 if each block lies in a group, and -1, -2 or -4 if threads copy multiples of 1, 2 or 4 elements.
GROUPS = [
    (32, 4, 4, 64, 4),
    (8, 8, 8, 64, 1),
    (9, 24, 24, 48, 4),
    (3, 16, 32, 64, 4),
    (2, 64, 64, 64, 0),
    (2, 112, 80, 64, 0),
    (3, 40, 72, 48, 0),
    (1, 18, 20, 48, -2),
    (2, 30, 33, 64, -2),
    (3, 6, 10, 64, -2),
    (1, 100, 36, 48, -4),
    (1, 33, 33, 48, -1),
    (1, 63, 20, 64, -1),
    (4, 17, 72, 48, -1),
    (2, 25, 104, 64, -1),
    (3, 7, 8, 48, -1),
]


@pytest.mark.parametrize("given", GROUPS)
def test_results_of_groups(given: tuple[int, ...], program: Path) -> None:
    groups, inner, outer, block, vector = given
    draw = random.Random(str(given))
    taps = draw.randint(1, 3), draw.randint(1, 3)
    geometry = {"groups": groups, "stride": draw.choice((1, 2)), "padding": (draw.randint(0, 1), draw.randint(0, 1))}
    shapes = (2, groups * inner, draw.randint(7, 11), draw.randint(7, 12)), (groups * outer, inner, *taps)
    problem = Convolution.of("conv2d", geometry).problem(*shapes)
    torch.manual_seed(groups)
    x, weight = (torch.randint(-4, 5, shape).double() for shape in shapes)
    data = " ".join(str(int(each)) for each in (*x.movedim(1, -1).flatten(), *weight.movedim(1, -1).flatten()))
    (line,) = run(program, [f"{line_of(problem.sizes, 104, False)} {groups} {block} {vector} {data}"])
    want = torch.nn.functional.conv2d(x, weight, None, problem.geometry.stride, geometry["padding"], 1, groups)
    check(line, want, str(given))


#: The channels, the channels of a block, the elements of a load, and the taps and the stride of a row.
WINDOWS = [
    (3, 16, 1, 4, 2),
    (3, 16, 1, 4, 4),
    (3, 16, 1, 6, 6),
    (6, 16, 2, 5, 3),
    (5, 32, 1, 4, 1),
    (5, 32, 1, 7, 2),
    (6, 32, 2, 5, 2),
    (4, 32, 4, 8, 2),
    (4, 32, 4, 13, 4),
    (8, 64, 4, 15, 2),
    (8, 64, 4, 9, 3),
]


@pytest.mark.parametrize("given", WINDOWS)
def test_results_of_windows(given: tuple[int, ...], program: Path) -> None:
    channels, block, vector, taps, stride = given
    draw = random.Random(str(given))
    rows, pads = draw.randint(1, 4), [(draw.randint(0, 3), draw.randint(0, 3)) for _ in range(2)]
    geometry = {"stride": (draw.choice((1, 2, 3)), stride), "padding": pads, "dilation": (draw.choice((1, 2)), 1)}
    problem = Convolution.of("conv2d", geometry).problem((3, channels, 19, 37), (5, channels, rows, taps))
    x, _, weight = tensors(problem)
    data = " ".join(str(int(each)) for each in (*x.movedim(1, -1).flatten(), *weight.movedim(1, -1).flatten()))
    line = line_of(dict(problem.sizes), 104, False, windows=True)
    (found,) = run(program, [f"{line} 1 {block} {vector} {data}"])
    check(found, expected(problem, "fprop"), str(given))


#: The sizes of a volume, the taps of a slice and along the depth, the strides, and the padding along the depth.
VOLUMES_OF_WINDOWS = [
    ((6, 12, 21), (3, 7, 7), (1, 2, 2), (1, 1)),
    ((5, 9, 33), (3, 3, 3), (1, 1, 2), (2, 0)),
    ((7, 9, 20), (3, 3, 4), (2, 2, 2), (1, 1)),
    ((2, 5, 9), (1, 2, 8), (1, 1, 2), (0, 0)),
    ((3, 5, 40), (2, 3, 3), (1, 1, 2), (4, 3)),  # some slices of the output read none of the input
]


@pytest.mark.parametrize("given", VOLUMES_OF_WINDOWS)
def test_results_of_windows_in_volumes(given: tuple[Any, ...], program: Path) -> None:
    sizes, taps, stride, pads = given
    draw = random.Random(str(given))
    padding = [pads, *((draw.randint(0, 3), draw.randint(0, 3)) for _ in range(2))]
    geometry = {"stride": stride, "padding": padding}
    problem = Convolution.of("conv3d", geometry).problem((2, 3, *sizes), (5, 3, *taps))
    x, _, weight = tensors(problem)
    data = " ".join(str(int(each)) for each in (*x.movedim(1, -1).flatten(), *weight.movedim(1, -1).flatten()))
    (found,) = run(program, [f"{line_of(dict(problem.sizes), 104, False, windows=True)} 1 32 1 {data}"])
    check(found, expected(problem, "fprop"), str(given))


#: The filters, the taps, the sizes of the input, its channels, and the channels of a block.
TAPS = [
    (1, (3, 3), (19, 37), 40, 16),
    (3, (3, 3), (6, 5), 24, 16),
    (7, (3, 3), (11, 13), 16, 16),
    (2, (5, 5), (23, 8), 20, 16),
    (5, (1, 7), (3, 50), 16, 16),
    (1, (7, 7), (20, 21), 16, 16),
    (4, (4, 4), (7, 7), 72, 32),
    (3, (3, 3), (40, 41), 32, 32),
    (1, (2, 2), (3, 3), 32, 32),
]


@pytest.mark.parametrize("given", TAPS)
def test_results_of_rows_that_are_taps(given: tuple[Any, ...], program: Path) -> None:
    filters, taps, sizes, channels, block = given
    draw = random.Random(str(given))
    dilation = tuple(draw.randint(1, 2) if each <= 3 < size / 2 else 1 for size, each in zip(sizes, taps, strict=True))
    pads = [(draw.randint(0, each), draw.randint(0, each)) for each in taps]
    geometry = {"padding": pads, "dilation": dilation}
    problem = Convolution.of("conv2d", geometry).problem((5, channels, *sizes), (filters, channels, *taps))
    x, _, weight = tensors(problem)
    data = " ".join(str(int(each)) for each in (*x.movedim(1, -1).flatten(), *weight.movedim(1, -1).flatten()))
    (found,) = run(program, [f"{line_of(dict(problem.sizes), 96, False)} 1 {block} -8 {data}"])
    check(found, expected(problem, "fprop"), str(given))


def run(program: Path, lines: list[str]) -> list[str]:
    done = subprocess.run([program], input="\n".join(lines), capture_output=True, text=True)
    assert (done.stderr, done.returncode) == ("", 0)
    return done.stdout.splitlines()


def check(line: str, want: torch.Tensor, what: str) -> None:
    """Compare the printed bits of pixels, channels last, and of a pixel more that is not written."""
    bits = torch.tensor([int(each) for each in line.split()], dtype=torch.int32).to(torch.uint16)
    found, flat = bits.view(torch.bfloat16), want.movedim(1, -1).flatten().bfloat16()
    assert torch.equal(found[: len(flat)], flat), what
    assert bool(found[len(flat) :].isnan().all())
