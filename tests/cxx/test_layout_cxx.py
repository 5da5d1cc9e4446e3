"""The layout algebra gives what CuTe's own C++ gives: random static layouts, one program, compiled by g++."""

from __future__ import annotations

import contextlib
import os
import random
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from math import prod
from pathlib import Path

import pytest

from evt.build.toolchain import SYSTEM_CUDA, find_cutlass, find_nvcc
from evt.errors import BuildError
from evt.layout import (
    IntTuple,
    Layout,
    LayoutError,
    Swizzle,
    Tiler,
    blocked_product,
    coalesce,
    complement,
    compose,
    filtered,
    flat_divide,
    left_inverse,
    logical_divide,
    logical_product,
    raked_product,
    right_inverse,
    tiled_divide,
    tiled_product,
    zipped_divide,
    zipped_product,
)

GXX = shutil.which("g++") or ""
#: Random pairs of layouts, and how many of the operations each is asked for: a tenth of a second of g++ apiece.
PAIRS, OPERATIONS = 150, 2
EXTENTS = (1, 2, 2, 3, 4, 4, 6, 8)
PROGRAM = """
#include <cstdio>
#include <cute/layout.hpp>
#include <cute/swizzle_layout.hpp>
using namespace cute;
#define P(...) do {{ print(__VA_ARGS__); printf("\\n"); }} while (0)
int main() {{
{body}
}}
"""


@cache
def include_flags() -> tuple[str, ...]:
    """Flags for CuTe's headers and CUDA's, which it includes; none when they are not installed."""
    with contextlib.suppress(BuildError):
        cutlass, nvcc = find_cutlass(), find_nvcc()
        homes = (*nvcc.include, nvcc.path.resolve().parents[1] / "include", Path(SYSTEM_CUDA, "include"))
        cuda = next((path for path in homes if (path / "cuda_runtime_api.h").is_file()), None)
        if cuda is not None:
            folders = (cutlass.include, *nvcc.include, cuda, cuda / "cccl")
            return tuple(word for path in folders for word in ("-isystem", str(path)))
    return ()


pytestmark = [
    pytest.mark.cxx,
    pytest.mark.skipif(not GXX, reason="g++ is not on PATH"),
    pytest.mark.skipif(not include_flags(), reason="there are no CUTLASS or no CUDA headers"),
]


def compiler(source: Path, *flags: str) -> subprocess.CompletedProcess[str]:
    command = [GXX, "-std=c++17", "-O0", "-w", *include_flags(), *flags, str(source)]
    return subprocess.run(command, capture_output=True, text=True, env={**os.environ, "LC_ALL": "C"})


def cxx_tree(tree: IntTuple, name: str) -> str:
    if isinstance(tree, tuple):
        return f"{name}<{', '.join(cxx_tree(part, name) for part in tree)}>"
    return f"Int<{tree}>"


def cxx(value: Tiler) -> str:
    """A value of CuTe's, all static."""
    if isinstance(value, Layout):
        return f"Layout<{cxx_tree(value.shape, 'Shape')}, {cxx_tree(value.stride, 'Stride')}>{{}}"
    if isinstance(value, tuple):
        return f"make_tile({', '.join(map(cxx, value))})"
    return f"Int<{value}>{{}}"


@dataclass(frozen=True)
class Question:
    """An expression of CuTe's, and our answer."""

    expression: str
    answer: str


def random_layout(rng: random.Random) -> Layout:
    """Extents of 1 have stride 0, as CuTe gives them: it applies its conditions to any other, and we do not."""
    while True:
        shape = random_shape(rng)
        extents = Layout(shape).leaves
        if prod(extent for extent, _ in extents) <= 256:
            break
    order = list(range(len(extents)))
    rng.shuffle(order)
    flat, step = [0] * len(order), 1
    for place in order:
        step *= rng.choice((1, 1, 1, 2, 3))
        flat[place] = step if rng.random() < 0.9 else rng.choice((0, 1, 5))
        step *= extents[place][0]
        flat[place] *= extents[place][0] > 1
    strides = iter(flat)
    return Layout(shape, like(shape, strides))


def random_shape(rng: random.Random, depth: int = 2) -> IntTuple:
    if not depth or rng.random() < 0.35:
        return rng.choice(EXTENTS)
    return tuple(random_shape(rng, depth - 1) for _ in range(rng.choice((1, 2, 2, 3))))


def like(shape: IntTuple, values: Iterator[int]) -> IntTuple:
    return tuple(like(part, values) for part in shape) if isinstance(shape, tuple) else next(values)


def questions() -> Iterator[Question]:
    """Operations on random layouts, where ours admits them; where CuTe does not, it stops to compile."""
    rng = random.Random(2026)
    for _ in range(PAIRS):
        a, b = random_layout(rng), random_layout(rng)
        tile = Layout(rng.choice((2, 3, 4, 8)), rng.choice((1, 2, 4)))
        tiler = tuple(rng.choice((2, 4, tile)) for _ in range(rng.randrange(1, a.rank + 1)))
        target = rng.choice((a.cosize, 64, 100, (4, 12), (5, 7)))
        cases: list[tuple[str, Callable[[], object]]] = [
            ("coalesce({a})", lambda a=a: coalesce(a)),
            ("filter({a})", lambda a=a: filtered(a)),
            ("cosize({a})", lambda a=a: f"{a.cosize}"),
            ("right_inverse({a})", lambda a=a: right_inverse(a)),
            ("left_inverse({a})", lambda a=a: left_inverse(a)),
            ("complement({a})", lambda a=a: complement(a)),
            ("complement({a}, {target})", lambda a=a, target=target: complement(a, target)),
            ("composition({a}, {b})", lambda a=a, b=b: compose(a, b)),
            ("composition({a}, {tile})", lambda a=a, tile=tile: compose(a, tile)),
            ("logical_divide({a}, {b})", lambda a=a, b=b: logical_divide(a, b)),
            ("logical_divide({a}, {tile})", lambda a=a, tile=tile: logical_divide(a, tile)),
            ("logical_product({a}, {b})", lambda a=a, b=b: logical_product(a, b)),
        ]
        if isinstance(a.shape, tuple):
            cases += [
                ("composition({a}, {tiler})", lambda a=a, tiler=tiler: compose(a, tiler)),
                ("zipped_divide({a}, {tiler})", lambda a=a, tiler=tiler: zipped_divide(a, tiler)),
                ("tiled_divide({a}, {tiler})", lambda a=a, tiler=tiler: tiled_divide(a, tiler)),
                ("flat_divide({a}, {tiler})", lambda a=a, tiler=tiler: flat_divide(a, tiler)),
                ("zipped_product({a}, {tiler})", lambda a=a, tiler=tiler: zipped_product(a, tiler)),
                ("tiled_product({a}, {tiler})", lambda a=a, tiler=tiler: tiled_product(a, tiler)),
            ]
        if min(a.rank, b.rank) > 1:
            cases += [
                ("blocked_product({a}, {b})", lambda a=a, b=b: blocked_product(a, b)),
                ("raked_product({a}, {b})", lambda a=a, b=b: raked_product(a, b)),
            ]
        names = {
            "a": cxx(a),
            "b": cxx(b),
            "tile": cxx(tile),
            "tiler": cxx(tiler),
            "target": cxx_tree(target, "Shape") + "{}",
        }
        for expression, ours in rng.sample(cases, OPERATIONS):
            with contextlib.suppress(LayoutError):
                yield Question(expression.format(**names), str(ours()))


#: Swizzles, negative strides, and the cases in which pycute differs.
KNOWN = {
    "cosize(Layout<Shape<_4, _8>, Stride<Int<-1>, _4>>{})": str(Layout((4, 8), (-1, 4)).cosize),
    "composition(Swizzle<3, 3, 3>{}, Layout<Shape<_8, _40>, Stride<_40, _1>>{})": str(
        compose(Swizzle(3, 3, 3), Layout((8, 40), (40, 1)))
    ),
    "cosize(composition(Swizzle<3, 3, 3>{}, Layout<Shape<_8, _40>, Stride<_40, _1>>{}))": "320",
    "cosize(composition(Swizzle<3, 3, 3>{}, Layout<Shape<_8, Int<36>>, Stride<Int<36>, _1>>{}))": "288",  # ours is 320
    "composition(Swizzle<3, 3, 3>{}, Layout<Shape<_8, Int<36>>, Stride<Int<36>, _1>>{})(_7{}, Int<35>{})": str(
        compose(Swizzle(3, 3, 3), Layout((8, 36), (36, 1)))(7, 35)
    ),
    "Swizzle<2, 1, -3>{}(Int<1234>{})": str(Swizzle(2, 1, -3)(1234)),
    "composition(Layout<Shape<_4, _8>, Stride<_1, Int<10>>>{}, Layout<_4, Int<-1>>{})": str(
        compose(Layout((4, 8), (1, 10)), Layout(4, -1))
    ),
    "composition(Layout<Shape<_8, _8>, Stride<_8, _1>>{}, Swizzle<3, 0, 3>{})": str(
        compose(Layout((8, 8), (8, 1)), Swizzle(3, 0, 3))
    ),
    "composition(Swizzle<1, 0, 3>{}, Swizzle<1, 1, 3>{})": str(compose(Swizzle(1, 0, 3), Swizzle(1, 1, 3))),
    "composition(Layout<Shape<_4, _8>, Stride<_8, _1>>{}, make_tile(_2{}))": "(2):(8)",
    "left_inverse(Layout<Shape<_4, _3>, Stride<_2, _16>>{})": "(2,8,3):(0,1,4)",
    "composition(Layout<Shape<_6, _4>, Stride<_1, _12>>{}, Layout<_2, _4>{})": "2:4",
}


def run(expressions: list[str], folder: Path) -> list[str]:
    """What CuTe prints for each, without the marks of static integers."""
    halves = [expressions[::2], expressions[1::2]]

    def one(part: int) -> list[str]:
        source, binary = folder / f"part{part}.cpp", folder / f"part{part}"
        body = "\n".join(f"  P({expression});" for expression in halves[part])
        source.write_text(PROGRAM.format(body=body), encoding="utf-8")
        done = compiler(source, "-o", str(binary))
        assert done.returncode == 0, "\n".join(re.findall(r".*error:.*", done.stderr))[:4000]
        return subprocess.run([str(binary)], capture_output=True, text=True, check=True).stdout.splitlines()

    with ThreadPoolExecutor(2) as pool:
        answers = list(pool.map(one, (0, 1)))
    return [answers[place % 2][place // 2].replace("_", "") for place in range(len(expressions))]


def test_cute_gives_the_same(tmp_path: Path) -> None:
    asked = [*questions(), *map(Question, KNOWN, KNOWN.values())]
    assert len(asked) > PAIRS * OPERATIONS * 2 // 3
    found = run([each.expression for each in asked], tmp_path)
    wrong = [(each, theirs) for each, theirs in zip(asked, found, strict=True) if each.answer != theirs]
    assert not wrong, "\n".join(f"{each.expression}\n  ours {each.answer}\n  CuTe {theirs}" for each, theirs in wrong)


def test_cute_gives_what_is_no_composition(tmp_path: Path) -> None:
    """Where we refuse by a condition that CuTe does not check, its layout is not i -> A(B(i))."""
    pairs = [
        (Layout((6, 4), (1, 12)), Layout(4, 4)),
        (Layout((4, 3), (1, 10)), Layout((3, 3), (1, 1))),
        (Layout((4, 8), (1, 10)), Layout((2, 2), (1, -4))),
    ]
    found = run([f"composition({cxx(a)}, {cxx(b)})" for a, b in pairs], tmp_path)
    for (a, b), theirs in zip(pairs, map(Layout.parse, found), strict=True):
        with pytest.raises(LayoutError, match="E0674"):
            compose(a, b)
        assert [theirs(place) for place in range(b.size)] != [a(b(place)) for place in range(b.size)]


def test_cute_refuses_too(tmp_path: Path) -> None:
    a, b = Layout((4, 3), (1, 10)), Layout((2, 2), (4, 1))
    uneven = Layout((3, 2), (2, 3))
    refused: dict[str, tuple[Callable[[], object], str]] = {
        f"composition({cxx(a)}, {cxx(Layout(2, 6))})": (lambda: compose(a, Layout(2, 6)), "Stride Divisibility"),
        f"composition({cxx(a)}, {cxx(Layout(6, 1))})": (lambda: compose(a, Layout(6, 1)), "Shape Divisibility"),
        f"left_inverse({cxx(uneven)})": (lambda: left_inverse(uneven), "Left inverse divisibility"),
        f"complement({cxx(uneven)})": (lambda: complement(uneven), "Non-injective Layout"),
        f"logical_product({cxx(b)}, {cxx(Layout(3))})": (lambda: logical_product(b, Layout(3)), "Shape Divisibility"),
    }
    source = tmp_path / "refused.cpp"
    body = "\n".join(f'#line {place} "question"\nP({each});' for place, each in enumerate(refused, 1))
    source.write_text(PROGRAM.format(body=body), encoding="utf-8")
    done = compiler(source, "-fsyntax-only")
    assert done.returncode
    for place, (ours, said) in enumerate(refused.values(), 1):
        with pytest.raises(LayoutError, match="E0674"):
            ours()
        assert f"question:{place}:" in done.stderr
        assert said in done.stderr
