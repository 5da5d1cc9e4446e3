"""CuTe's own C++ as an oracle: :func:`ask` compiles expressions of static layouts and reads off their types.

Nothing is run: the type of a static layout is its value, and g++ names it in an error. So one compilation answers
hundreds of questions, including those which CuTe's static assertions refuse.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from evt.compilation.toolchain import SYSTEM_CUDA, find_cutlass, find_nvcc
from evt.errors import BuildError
from evt.layout import ComposedLayout, IntTuple, Layout, LayoutError, Swizzle, Tiler
from evt.layout.tree import leaves
from tests.support.layout_laws import Function, Nested

GXX = shutil.which("g++") or ""
#: Questions in one source: g++ takes 3 seconds for the headers, and some hundredths of a second for each.
BATCH = 250
HEADERS = """
#include <cute/layout.hpp>
#include <cute/swizzle_layout.hpp>
using namespace cute;
template <class T> struct Answer;
"""
FROM = re.compile(r"^question:(\d+):\d+:\s+required from here")
OWN = re.compile(r"^question:(\d+):\d+: error: aggregate ‘Answer<(.*)> answer’ has incomplete type")
ERROR = re.compile(r"^(?:question:(\d+):)?.* (?:fatal )?error: (.*)")
WORD = re.compile(r"\s*([A-Za-z_:]+|-?\d+|[<>,])")


@dataclass(frozen=True)
class Garbage:
    """A type of CuTe's that is not a layout: with an extent below 1, or a swizzle that does not compile where used."""

    text: str


@dataclass(frozen=True)
class Stop:
    """The error for which g++ refuses an expression."""

    message: str


Answer = Any  # a Layout, ComposedLayout, Swizzle, Nested, an int or a tuple of them, Garbage or Stop


@cache
def include_flags() -> tuple[str, ...]:
    """Return flags for CuTe's headers and CUDA's, which it includes; none when they are not installed."""
    with contextlib.suppress(BuildError):
        cutlass, nvcc = find_cutlass(), find_nvcc()
        homes = (*nvcc.include, nvcc.path.resolve().parents[1] / "include", Path(SYSTEM_CUDA, "include"))
        cuda = next((path for path in homes if (path / "cuda_runtime_api.h").is_file()), None)
        if cuda is not None:
            folders = (cutlass.include, *nvcc.include, cuda, cuda / "cccl")
            return tuple(word for path in folders for word in ("-isystem", str(path)))
    return ()


def ask(expressions: Sequence[str], folder: Path) -> list[Answer]:
    """Return the value of each expression, or the error at which it does not compile."""
    batches = [expressions[start : start + BATCH] for start in range(0, len(expressions), BATCH)]

    def one(place: int) -> list[Answer]:
        return _compiled(batches[place], folder / f"batch{place}.cpp")

    with ThreadPoolExecutor(2) as pool:
        return [answer for answers in pool.map(one, range(len(batches))) for answer in answers]


def _compiled(expressions: Sequence[str], source: Path) -> list[Answer]:
    asked = (
        f'#line {place} "question"\nvoid question{place}() {{ Answer<decltype({each})> answer; }}'
        for place, each in enumerate(expressions, 1)
    )
    source.write_text(HEADERS + "\n".join(asked), encoding="utf-8")
    flags = ("-std=c++17", "-w", "-fsyntax-only", "-fno-pretty-templates", "-ftemplate-backtrace-limit=4")
    command = [GXX, *flags, *include_flags(), str(source)]
    environment = {**os.environ, "LC_ALL": "C.UTF-8"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    types: dict[int, str] = {}
    stops: dict[int, str] = {}
    place = -1
    for line in done.stderr.splitlines():
        if found := FROM.match(line):
            place = int(found[1])
        elif found := OWN.match(line):
            types[int(found[1])] = found[2]
        elif found := ERROR.match(line):
            stops.setdefault(int(found[1]) if found[1] else place, found[2])
    assert -1 not in stops, stops[-1]
    assert len(types.keys() | stops.keys()) == len(expressions), done.stderr[-2000:]
    return [
        Stop(stops[each]) if each in stops else _Reader(types[each]).read() for each in range(1, len(expressions) + 1)
    ]


# Python to C++


def cxx_tree(tree: IntTuple, name: str) -> str:
    if isinstance(tree, tuple):
        return f"{name}<{', '.join(cxx_tree(part, name) for part in tree)}>"
    return f"Int<{tree}>"


def cxx(value: Tiler | Swizzle | ComposedLayout) -> str:
    """Return a value as static C++ of CuTe's."""
    if isinstance(value, Layout):
        return f"Layout<{cxx_tree(value.shape, 'Shape')}, {cxx_tree(value.stride, 'Stride')}>{{}}"
    if isinstance(value, Swizzle):
        return f"Swizzle<{value.bits}, {value.base}, {value.shift}>{{}}"
    if isinstance(value, ComposedLayout):
        swizzle, layout = (cxx(part).removesuffix("{}") for part in (value.swizzle, value.layout))
        return f"ComposedLayout<{swizzle}, Int<{value.offset}>, {layout}>{{}}"
    if isinstance(value, tuple):
        return f"make_tile({', '.join(map(cxx, value))})"
    return f"Int<{value}>{{}}"


# C++ to Python


class _Reader:
    """A type as g++ writes it, read as a value."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._words = [word.removeprefix("cute::") for word in WORD.findall(text)]
        self._next = 0

    def read(self) -> Answer:
        value = self._value()
        if isinstance(value, tuple) and not all(isinstance(leaf, int) for leaf in leaves(value)):
            return Garbage(self._text)
        known = (Layout, ComposedLayout, Swizzle, Nested, int, tuple)
        return value if isinstance(value, known) else Garbage(self._text)

    def _value(self) -> object:
        name = self._take()
        if re.fullmatch(r"-?\d+", name):
            return int(name)
        if name in ("int", "true", "false"):
            return name
        parts = []
        if self._next < len(self._words) and self._words[self._next] == "<":
            self._take()
            while self._words[self._next] != ">":
                parts.append(self._value())
                if self._words[self._next] == ",":
                    self._take()
            self._take()
        try:
            return self._made(name, parts)
        except LayoutError:
            return (name, *parts)

    def _take(self) -> str:
        self._next += 1
        return self._words[self._next - 1]

    @staticmethod
    def _made(name: str, parts: list[object]) -> object:
        if name in ("C", "integral_constant"):
            return parts[-1]
        if name == "tuple":
            return tuple(parts)
        if name == "Swizzle":
            return Swizzle(*parts)
        if name == "Layout":
            return Layout(*parts)
        if name == "ComposedLayout":
            left, offset, right = parts
            kind = ComposedLayout if isinstance(left, Swizzle) and isinstance(right, Layout) else Nested
            if isinstance(offset, int) and all(isinstance(part, Function | Swizzle) for part in (left, right)):
                return kind(left, offset, right)
        return (name, *parts)
