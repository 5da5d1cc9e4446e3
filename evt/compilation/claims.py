"""Artifacts of the cache, each built by one process at a time: ``Claims(cache, report).make(targets, keeper, jobs)``.

A process builds a key while it holds the key's lock. Before it builds, it looks again for the artifact, and for a
failure that another process has kept since then. No process waits for a lock while it holds one, so processes which
build keys in different orders cannot deadlock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal, Protocol

from evt.compilation.cache import LIBRARY, Cache, Failure
from evt.compilation.event import BuildEvent, Reporter
from evt.compilation.lock import KeyLock
from evt.compilation.places import places
from evt.compilation.pool import Workers, run_all
from evt.diagnostics import Diagnostic


class Work(Protocol):
    """The building of one key, whose lock it holds until ``close``.

    A failure does not raise: it is added to ``problems``, a success to ``made``. ``has_fallback``: another way builds
    the key after these problems.
    """

    @property
    def key(self) -> str: ...
    @property
    def made(self) -> Path | None: ...
    @property
    def problems(self) -> tuple[Diagnostic, ...]: ...
    @property
    def has_fallback(self) -> bool: ...

    def tasks(self, report: Reporter) -> Iterable[Callable[[], None]]:
        """Return functions that may run at the same time."""

    def kill(self) -> None:
        """End the running tasks and start no more."""

    def close(self) -> None:
        """Remove temporary files and release the lock; a second call does nothing."""


class Keeper(Protocol):
    """A holder of locks for as long as the work on their keys goes on, however this process ends."""

    def claim(self, path: Path, take: Callable[[], KeyLock | None]) -> KeyLock | None:
        """Take a lock with ``take``, which returns None if another process holds it."""

    def release(self, lock: KeyLock) -> None:
        """Release a lock; a second call does nothing."""


@dataclass(frozen=True, slots=True)
class Target:
    """An artifact to make, and the position of its source, or of the first source that needs it.

    ``begin`` starts the work, with the lock of the key. ``has_fallback``: another way builds the key if it fails.
    """

    index: int
    begin: Callable[[KeyLock], Work]
    artifact: str = LIBRARY
    has_fallback: bool = False


class Claims:
    """The artifacts that were made, by their keys, and the problems of the others; ``lost`` keys have no other way."""

    def __init__(self, cache: Cache, report: Reporter) -> None:
        self.made: dict[str, Path] = {}
        self.failed: dict[str, tuple[Diagnostic, ...]] = {}
        self.lost: set[str] = set()
        self._cache, self._report = cache, report

    def find(self, key: str, index: int, artifact: str = LIBRARY, *, locked: bool = False) -> bool:
        """Return whether an artifact is made. A damaged one is reported by the process that holds its lock."""
        if key in self.made:
            return True
        made, damage = self._cache.find(key, artifact)
        if made is not None:
            self.made[key] = made
            if artifact == LIBRARY:
                self._say("hit", key, index)
        elif damage and locked:
            self._say("damaged", key, index, damage)
        return made is not None

    def make(self, targets: Mapping[str, Target], keeper: Keeper, jobs: int | None) -> None:
        """Make the artifacts, or note their problems; wait for other processes that build them.

        After a failure that no other way replaces, end without waiting.
        """
        for key in targets:
            self.failed.pop(key, None)
        missing = [key for key, each in targets.items() if not self.find(key, each.index, each.artifact)]
        earlier = {key: self._cache.failure(key) for key in missing}
        while missing:
            with places(self._cache.root, jobs) as workers, ExitStack() as held:
                self._run(self._claimed(missing, targets, earlier, keeper, held), workers)
            if not self.lost.isdisjoint(missing):
                return
            missing = [key for key in missing if key not in self.made and key not in self.failed]
            if missing:
                self._wait(missing[0], targets[missing[0]].index)

    def _claimed(
        self,
        missing: Sequence[str],
        targets: Mapping[str, Target],
        earlier: Mapping[str, Failure | None],
        keeper: Keeper,
        held: ExitStack,
    ) -> Iterator[Work]:
        """Yield the work on the keys that no other process builds or has built; ``held`` closes it.

        A key is locked when its work is requested. This function waits for no lock.
        """
        for key in missing:
            target = targets[key]
            lock = keeper.claim(self._cache.lock_path(key), partial(self._cache.lock, key, wait=False))
            if lock is None:
                continue
            held.callback(keeper.release, lock)
            failure = self._cache.failure(key)
            if self.find(key, target.index, target.artifact, locked=True):  # built by another process meanwhile
                keeper.release(lock)
            elif failure is not None and failure != earlier[key]:  # not built by another process since then
                keeper.release(lock)
                self._fail(key, failure.problems, target.has_fallback)
                if not target.has_fallback:
                    self._say("failed", key, target.index, failure.problems[0].message)
            else:
                work = target.begin(lock)
                held.callback(work.close)
                yield work

    def _run(self, claimed: Iterator[Work], workers: Workers) -> None:
        """Run all work in workers; a key is claimed when its first task can start."""
        begun: list[Work] = []

        def tasks() -> Iterator[Callable[[], None]]:
            for each in claimed:
                begun.append(each)
                yield from each.tasks(self._report)

        def give_up() -> None:
            for each in begun:
                each.kill()

        run_all(tasks(), workers, give_up)
        for each in begun:
            if each.made:
                self.made[each.key] = each.made
            if each.problems:
                self._fail(each.key, each.problems, each.has_fallback)

    def _fail(self, key: str, problems: tuple[Diagnostic, ...], has_fallback: bool) -> None:
        self.failed[key] = problems
        if not has_fallback:
            self.lost.add(key)

    def _wait(self, key: str, index: int) -> None:
        """Wait until another process has built a key, without holding a lock."""
        self._say("wait", key, index)
        if lock := self._cache.lock(key, wait=True):
            lock.release()

    def _say(self, kind: Literal["hit", "damaged", "wait", "failed"], key: str, index: int, text: str = "") -> None:
        self._report(BuildEvent(kind, key, index, text=text))
