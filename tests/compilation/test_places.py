"""The compilers of all processes together, and the end of a build from another thread."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from evt.compilation import Cancellation, places, process
from evt.compilation.pool import CancelledError, run_all
from tests.support.fake_nvcc import Room, make_room, wait_for


@pytest.fixture
def room(tmp_path: Path) -> Iterator[Room]:
    made = make_room(tmp_path)
    yield made
    made.end()


def started(root: Path, jobs: int | None = None) -> tuple[int, object]:
    """Return the number of compilers that a build may start, and its context."""
    context = places.places(root, jobs)
    may_start = context.__enter__()
    count = 0
    while may_start(count):
        count += 1
    return count, context


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let processes use six processors, and run four compilers each."""
    monkeypatch.setattr(places, "own_places", lambda: [*range(6)])
    monkeypatch.setattr(places, "default_jobs", lambda: 4)


@pytest.mark.usefixtures("machine")
def test_builds_share_the_places_of_a_machine(tmp_path: Path) -> None:
    """The first build takes its limit, the next ones the rest; each has at least one compiler."""
    builds = [started(tmp_path) for _ in range(4)]
    assert [count for count, _ in builds] == [4, 2, 1, 1]
    builds[0][1].__exit__(None, None, None)  # type: ignore[attr-defined]
    assert started(tmp_path)[0] == 4


def test_builds_share_the_places_of_their_processors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three builds may use two processors of a large machine; one may use one of the two, and two others."""
    monkeypatch.setattr(process, "available_bytes", lambda kind="": 1 << 40)
    found = []
    for processors in ({8, 9}, {8, 9}, {9, 20, 21}, {8, 9}):
        monkeypatch.setattr(os, "sched_getaffinity", lambda _, given=processors: given)
        found.append(started(tmp_path))
    assert [count for count, _ in found] == [2, 1, 2, 1]


@pytest.mark.parametrize(("gigabytes", "expected"), [(1000, [0, 3, 9]), (20, [0, 1, 3]), (1, [0])])
def test_processors_share_places_that_fit_in_memory(
    monkeypatch: pytest.MonkeyPatch, gigabytes: int, expected: list[int]
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 3, 9})
    monkeypatch.setattr(process, "available_bytes", lambda kind: gigabytes * 10**9)
    assert process.own_places() == expected


@pytest.mark.usefixtures("machine")
def test_the_limit_of_the_user_counts_alone(tmp_path: Path) -> None:
    assert [started(tmp_path, jobs)[0] for jobs in (9, 9, None)] == [9, 9, 4]


@pytest.mark.usefixtures("machine")
def test_a_build_grows_when_another_one_ends(tmp_path: Path) -> None:
    with places.places(tmp_path, None) as first:
        assert all(first(running) for running in range(4))
        with places.places(tmp_path, None) as second:
            assert [second(running) for running in range(3)] == [True, True, False]
            other = places.places(tmp_path, None)
            assert other.__enter__()(0)
            assert not second(2)
    with places.places(tmp_path, None) as third:
        assert [third(running) for running in range(5)] == [True, True, True, True, False]


@pytest.mark.usefixtures("machine")
def test_a_cache_that_cannot_be_written_allows_one_compiler(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert started(tmp_path / "file")[0] == 1


def test_a_cancellation_ends_the_compilers(room: Room) -> None:
    cancellation, errors = Cancellation(), list[BaseException]()

    def build() -> None:
        try:
            with cancellation.ends_this_thread():
                room.build("// hang device\n// hang host")
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=build)
    thread.start()
    wait_for(lambda: room.compilers())
    cancellation.cancel()
    thread.join(60)
    assert [type(each) for each in errors] == [CancelledError]
    assert not room.compilers()
    assert not room.left_over()
    room.calm()
    assert [each.exists() for each in room.build("// hang device\n// hang host")] == [True]


def test_a_cancellation_ends_the_wait_for_another_process(room: Room) -> None:
    other = room.spawn("// hang device")
    wait_for(lambda: room.compilers())
    cancellation, errors = Cancellation(), list[BaseException]()

    def build() -> None:
        try:
            with cancellation.ends_this_thread():
                room.build("// hang device")
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=build)
    thread.start()
    thread.join(1)
    assert thread.is_alive()
    cancellation.cancel()
    thread.join(60)
    assert [type(each) for each in errors] == [CancelledError]
    assert other.poll() is None


def test_a_cancellation_before_the_work_starts_nothing() -> None:
    cancellation, ran = Cancellation(), []
    cancellation.cancel()
    with cancellation.ends_this_thread(), pytest.raises(CancelledError):
        run_all([lambda: ran.append(1)], lambda running: running < 2, lambda: None)
    assert ran == []
