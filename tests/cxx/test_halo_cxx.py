"""The halo kernel of evt on the host: convolutions of images and volumes, and the gradients of their inputs."""

from __future__ import annotations

import random
import subprocess
from pathlib import Path

import pytest
import torch

from evt.ir.convolution import Convolution, ConvolutionProblem
from evt.plan.halo import forward
from tests.cxx.cute import GXX, include_flags
from tests.cxx.halo_problems import compiled, drawn, expected, line_of, tensors

pytestmark = [
    pytest.mark.cxx,
    pytest.mark.skipif(not GXX, reason="g++ is not on PATH"),
    pytest.mark.skipif(not include_flags(), reason="there are no CUTLASS or no CUDA headers"),
]


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compiled("halo", tmp_path_factory.mktemp("halo"), Path(__file__).with_name("host"))


def strided(seed: int) -> ConvolutionProblem:
    """Return a small 2-d convolution with a stride, no padding beyond the reach of its taps."""
    draw = random.Random(seed)
    taps, steps = (draw.randint(1, 4), draw.randint(1, 4)), draw.choice(((2, 2), (2, 1), (1, 2), (1, 4)))
    dilation = draw.randint(1, 2), draw.randint(1, 2)
    reach = [each * (count - 1) for each, count in zip(dilation, taps, strict=True)]
    pads = [(draw.randint(0, each), draw.randint(0, each)) for each in reach]
    sizes = [draw.randint(each + 1, 20) for each in reach]
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
        lines.append(f"{line_of(sizes, 104, operator == 'dgrad', kind == 'strides')} {numbers}")
    done = subprocess.run([program], input="\n".join(lines), capture_output=True, text=True)
    assert (done.stderr, done.returncode) == ("", 0)
    results = done.stdout.splitlines()
    assert len(results) == count
    assert sum(each != "none" for each in results) > count / 2
    for problem, line in zip(given, results, strict=True):
        if line == "none":
            continue
        bits = torch.tensor([int(each) for each in line.split()], dtype=torch.int32).to(torch.uint16)
        found = bits.view(torch.bfloat16)
        want = expected(problem, operator).movedim(1, -1).flatten().bfloat16()
        assert torch.equal(found[: len(want)], want), problem
        assert bool(found[len(want) :].isnan().all())
