"""The planner's decisions in C++: the subset of Python that is translated, and refusals."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from types import ModuleType

import pytest

from evt.emission import translate
from evt.emission.headers import GENERATED

MODULE = """\
\'\'\'A module.

Not copied.
\'\'\'
import math
#: Copied.
MOST_THINGS = 3
FACTORS = (2, 4)
HALF = 0.5

@dataclass(frozen=True)
class Thing:
    \'\'\'A thing.\'\'\'

    #: A size.
    size: int
    wide: Int64 = 0

    @staticmethod
    def of(sizes):
        return Thing(**sizes)

    @property
    def twice(self) -> int:
        \'\'\'Two of them.\'\'\'
        return self.size * 2

@lru_cache
def grown(thing: Thing, by: int, really: bool = True) -> Thing:
    \'\'\'Return a larger thing.\'\'\'
    size = thing.size
    if not really and (by > 1 or thing.twice == MOST_THINGS):
        return thing
    for factor in FACTORS:
        size += factor * (by - 1)
    return replace(thing, size=min(size, MOST_THINGS) if by > 0 else -size)
"""
CPP = """\
// Copied.
inline constexpr int kMostThings = 3;
inline constexpr double kHalf = 0.5;

/// A thing.
struct Thing {
  // A size.
  int size;
  std::int64_t wide = 0;

  /// Two of them.
  CUTLASS_HOST_DEVICE constexpr int twice() const {
    return size * 2;
  }
};

#if !defined(EVT_DEVICE_PASS)
/// Return a larger thing.
inline Thing grown(Thing const& thing, int by, bool really = true) {
  auto size = thing.size;
  if (!really && (by > 1 || thing.twice() == kMostThings)) {
    return thing;
  }
  for (int const factor : {2, 4}) {
    size += factor * (by - 1);
  }
  return [&](auto changed) { changed.size = by > 0 ? std::min(size, kMostThings) : -size; return changed; }(thing);
}
#endif
"""


def translated(source: str, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(inspect, "getsource", lambda module: source)
    return translate.header((ModuleType("some"),), "some")


def test_a_module_in_the_subset(monkeypatch: pytest.MonkeyPatch) -> None:
    found = translated(MODULE, monkeypatch)
    assert CPP in found
    assert "// A module.\n" in found
    assert "Not copied" not in found


@pytest.mark.parametrize(
    "text",
    [
        "def f(x: list) -> int:\n    return 1",
        "def f(x: int) -> int:\n    return x ** 2",
        "def f(x: int) -> int:\n    return [x][0]",
        "def f(x: int) -> int:\n    print(x, end=1)\n    return x",
        "def f(x: int) -> int:\n    with x:\n        return x",
        "class C:\n    a: int\n    @property\n    def b(self) -> int:\n        return 1\nclass D:\n    b: int",
        "class C:\n    size: int\n    def f(self, size: int) -> int:\n        return size",
    ],
)
def test_anything_else_is_an_error(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(TypeError):
        translated(f"'''A module.'''\n{text}\n", monkeypatch)


def test_headers_of_the_planner_have_every_function_once() -> None:
    for modules, namespace in GENERATED.values():
        text = translate.header(modules, namespace)
        names = re.findall(r"^(?:inline|CUTLASS_HOST_DEVICE constexpr) [\w:]+ (\w+)\(", text, re.MULTILINE)
        assert len(names) == len(set(names)) > 0
        assert max(map(len, text.splitlines())) <= 118


def test_a_header_is_translated_once_for_all_processes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("EVT_CACHE_DIR", str(tmp_path))
    of_a_process = translate.header.__wrapped__
    modules, namespace = GENERATED["kit/depthwise_geometry.hpp"]
    made = of_a_process(modules, namespace)
    monkeypatch.setattr(translate, "_Translator", None)
    assert of_a_process(modules, namespace) == made
    with pytest.raises(TypeError):  # other modules are other sources
        of_a_process(modules[:1], namespace)
