"""The geometry of the own kernels: the launcher, in C++, and the planner, in Python, decide the same."""

from __future__ import annotations

import random
import subprocess
from collections.abc import Iterable, Iterator
from dataclasses import astuple
from pathlib import Path
from typing import Any

import pytest

from tests.cxx.gxx import MARKS, build_program
from tests.support.layers import random_depthwise, random_layers

pytestmark = MARKS


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_program("geometry", tmp_path_factory.mktemp("geometry"))


def flat(value: Any) -> Iterator[int]:
    """Yield the numbers of nested tuples."""
    if isinstance(value, tuple):
        for each in value:
            yield from flat(each)
    else:
        yield int(value)


def cases(seed: int, count: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield the line of each layer, and the geometry that the planner decides; one layer in ten is depthwise."""
    for multiprocessors in (132, 78):
        for problem, kernel, made in random_layers(seed + multiprocessors, count * 9 // 20, multiprocessors):
            line = flat((astuple(problem), astuple(kernel), multiprocessors))
            yield " ".join(("halo", *map(str, line))), tuple(flat(astuple(made)))
    for problem, shape, elements, tile in random_depthwise(seed, count // 10):
        line = flat((astuple(problem), astuple(shape), astuple(elements)))
        yield " ".join(("depthwise", *map(str, line))), tuple(flat(astuple(tile)))


def differing(program: Path, layers: Iterable[tuple[str, tuple[int, ...]]]) -> list[str]:
    """Return the layers for which the launcher decides otherwise."""
    lines, planned = zip(*layers, strict=True)
    done = subprocess.run([program], input="\n".join(lines), capture_output=True, text=True, check=True)
    found = [tuple(map(int, line.split())) for line in done.stdout.splitlines()]
    fitting = sum(each[9 if len(each) > 9 else 0] > 0 for each in planned)
    assert fitting > len(planned) / 2
    return [line for line, mine, other in zip(lines, planned, found, strict=True) if mine != other]


def test_launcher_and_planner_decide_the_same(program: Path) -> None:
    assert differing(program, cases(0, 800)) == []


@pytest.mark.slow
def test_launcher_and_planner_decide_the_same_for_20000_layers(program: Path) -> None:
    layers = list(cases(1, 20_000))
    found = differing(program, layers)
    print(f"{len(layers)} layers, {len(found)} different")
    assert len(layers) == 20_000
    assert found == []


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
    program = build_program("halo_divisor", tmp_path)
    done = subprocess.run([program], input=lines, capture_output=True, text=True, check=True)
    assert list(map(int, done.stdout.split())) == [number // divisor for number, divisor in pairs]
