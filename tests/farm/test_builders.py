"""The threads that build the kernels of a farm's tasks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from queue import SimpleQueue
from threading import Event, Lock

import pytest

from evt.compilation import KernelSource
from evt.farm import builders
from tests.support.fake_nvcc import wait_for


class Compiler:
    """Builds that go on until ``open`` is set; a text in ``errors`` has an error."""

    def __init__(self) -> None:
        self.open, self.begun, self.errors = Event(), list[str](), dict[str, Exception]()
        self._lock = Lock()

    def __call__(self, sources: list[KernelSource], build: object) -> None:
        (source,) = sources
        with self._lock:
            self.begun.append(source.text)
        assert self.open.wait(60)
        if source.text in self.errors:
            raise self.errors[source.text]


@pytest.fixture
def compiler(monkeypatch: pytest.MonkeyPatch) -> Iterator[Compiler]:
    made = Compiler()
    monkeypatch.setattr(builders, "build_each", made)
    monkeypatch.setattr(builders, "default_jobs", lambda: 5)
    yield made
    made.open.set()


def sources(texts: str) -> list[KernelSource]:
    return [KernelSource(text, "sm_90a") for text in texts]


def kept(ended: SimpleQueue[tuple[str, BaseException | None]], name: str) -> Callable[[BaseException | None], None]:
    return lambda error: ended.put((name, error))


@pytest.mark.parametrize(("beside", "most"), [(0, 5), (2, 3), (9, 1)])
def test_processes_beside_the_compilers_have_a_processor_each(compiler: Compiler, beside: int, most: int) -> None:
    """All tasks together have one compiler for each other processor."""
    ended: SimpleQueue[tuple[str, BaseException | None]] = SimpleQueue()
    with builders.Builders(beside) as found:
        for texts in ("abcd", "efgh", "ijkl"):
            found.build(sources(texts), kept(ended, texts))
        wait_for(lambda: len(compiler.begun) == most)
        assert found.threads == most
        compiler.open.set()
        assert {ended.get(timeout=60) for _ in range(3)} == {("abcd", None), ("efgh", None), ("ijkl", None)}
    assert sorted(compiler.begun) == list("abcdefghijkl")


def test_a_task_ends_with_the_last_of_its_sources(compiler: Compiler) -> None:
    """A source that several tasks wait for is built once, and its error is of all of them."""
    ended: SimpleQueue[tuple[str, BaseException | None]] = SimpleQueue()
    compiler.errors["c"] = OSError()
    with builders.Builders() as found:
        found.build([], kept(ended, ""))
        assert ended.get(timeout=60) == ("", None)
        for texts in ("aab", "bc", "ca"):
            found.build(sources(texts), kept(ended, texts))
        wait_for(lambda: len(compiler.begun) == 3)
        assert ended.empty()
        compiler.open.set()
        assert dict(ended.get(timeout=60) for _ in range(3)) == {
            "aab": None,
            "bc": compiler.errors["c"],
            "ca": compiler.errors["c"],
        }
    assert sorted(compiler.begun) == list("abc")
