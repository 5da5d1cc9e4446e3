"""Building many sources at once, each only once even if several processes ask for it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeVar

from evt.build.cache import Cache
from evt.build.event import BuildEvent, Reporter
from evt.build.inputs import Inputs, find_inputs
from evt.build.pool import run_all
from evt.build.source import KernelSource, cache_key
from evt.build.toolchain import Toolchain, find_toolchain, require_target
from evt.diagnostics import Diagnostic
from evt.errors import BuildError, EvtError

if TYPE_CHECKING:
    from evt.build.compilation import Compilation
    from evt.build.lock import KeyLock
    from evt.build.process import Supervisor

_Result = TypeVar("_Result")
#: How often to rebuild libraries that another process removes before they are used.
_TRIES = 3


def build(
    sources: Sequence[KernelSource],
    *,
    cache: Cache | None = None,
    toolchain: Toolchain | None = None,
    jobs: int | None = None,
    verbose: bool = False,
    on_event: Callable[[BuildEvent], None] | None = None,
) -> list[Path]:
    """Return the libraries of ``sources``, in their order: from the cache, or built now.

    At most ``jobs`` passes of nvcc run at a time. If another process is building a source, wait for it; if it fails
    there, it fails here. When a source fails, the others are still built. The compilers end with this process, however
    it ends. ``on_event`` gets each step, one call at a time but from several threads.

    Raise BuildError: E0701 or E0702 without usable tools, E0703 when nvcc refuses a source (a bug in evt), E0653 when
    it refuses the C++ of a user's function, E0704 when the cache cannot be used, E0705 when another user could have
    written it, E0706 when nvcc is too old, E0707 when headers change meanwhile. Raise ValueError for less than one job.
    """
    if jobs is not None and jobs < 1:
        raise ValueError(f"jobs is {jobs}: at least one is needed")
    cache = cache or Cache()
    toolchain = toolchain or find_toolchain()
    for gencode in sorted({source.gencode for source in sources}):
        require_target(gencode, toolchain.nvcc_version)
    read = find_inputs(toolchain, cache.digests())
    keys = [cache_key(source, toolchain, read) for source in sources]
    wanted = {key: (keys.index(key), source) for key, source in zip(keys, sources, strict=True)}
    libraries = _Build(wanted, cache, toolchain, read, Reporter(on_event, verbose)).run(jobs)
    return [libraries[key] for key in keys]


def build_and_use(
    sources: Sequence[KernelSource],
    use: Callable[[int, Path], _Result],
    *,
    cache: Cache | None = None,
    toolchain: Toolchain | None = None,
    verbose: bool = False,
    on_event: Callable[[BuildEvent], None] | None = None,
) -> list[_Result]:
    """Return what ``use`` returns for the position and the path of each library.

    Libraries that another process removes before they are used are built again. Raise what :func:`build` and ``use``
    raise.
    """
    cache = cache or Cache()
    for _ in range(_TRIES):
        libraries = build(sources, cache=cache, toolchain=toolchain, verbose=verbose, on_event=on_event)
        try:
            return [use(index, library) for index, library in enumerate(libraries)]
        except (OSError, EvtError):
            if all(library.exists() for library in libraries):
                raise
    message = f"the cache directory {cache.root} cannot be used: libraries are removed as soon as they are built"
    raise BuildError(Diagnostic("E0704", message, help="end the process that clears it, or set EVT_CACHE_DIR"))


class _Build:
    """The sources of one call, by their keys and with their positions, and their state."""

    def __init__(
        self,
        wanted: Mapping[str, tuple[int, KernelSource]],
        cache: Cache,
        toolchain: Toolchain,
        read: Inputs,
        report: Reporter,
    ) -> None:
        self._wanted, self._cache, self._toolchain, self._read = wanted, cache, toolchain, read
        self._report = report
        self._libraries: dict[str, Path] = {}
        self._problems: list[Diagnostic] = []

    def run(self, jobs: int | None) -> dict[str, Path]:
        """Return the libraries by key."""
        missing = [key for key in self._wanted if not self._found(key)]
        if not missing:
            return self._libraries
        from evt.build.process import Supervisor, default_jobs

        self._cache.prepare()
        earlier = {key: self._cache.failure(key) for key in missing}
        with Supervisor.start() as supervisor:
            while missing:
                with ExitStack() as held:
                    compilations = []
                    for key, lock in self._claim(missing, held, supervisor).items():
                        failure = self._cache.failure(key)
                        if self._found(key, locked=True):  # built by another process since we looked
                            lock.release()
                        elif failure is not None and failure != earlier[key]:  # not built by another process since then
                            lock.release()
                            self._problems += failure.problems
                            self._report(self._event("failed", key, failure.problems[0].message))
                        else:
                            compilations.append(self._compilation(key, lock, supervisor))
                            held.callback(compilations[-1].close)
                    self._compile(compilations, jobs or default_jobs())
                if self._problems:
                    raise BuildError(self._problems)
                missing = [key for key in missing if key not in self._libraries]
        return self._libraries

    def _found(self, key: str, locked: bool = False) -> bool:
        library, damage = self._cache.find(key)
        if library is not None:
            self._libraries[key] = library
            self._report(self._event("hit", key))
        elif damage and locked:
            self._report(self._event("damaged", key, damage))
        return library is not None

    def _claim(self, missing: Sequence[str], held: ExitStack, supervisor: Supervisor) -> dict[str, KeyLock]:
        """Return locks for the keys that nobody builds, or wait for the first one; ``held`` releases them."""
        locks: dict[str, KeyLock] = {}

        def claim(key: str, wait: bool) -> None:
            if lock := self._cache.lock(key, wait=wait):
                held.callback(lock.release)
                supervisor.keep(lock)
                locks[key] = lock

        for key in missing:
            claim(key, wait=False)
        if not locks:  # wait for a lock only while holding none, so that there is no deadlock
            self._report(self._event("wait", missing[0]))
            claim(missing[0], wait=True)
        return locks

    def _compilation(self, key: str, lock: KeyLock, supervisor: Supervisor) -> Compilation:
        from evt.build.compilation import Compilation

        return Compilation(key, *self._wanted[key], self._toolchain, self._cache, lock, supervisor, self._unchanged)

    def _unchanged(self) -> bool:
        return find_inputs(self._toolchain, self._cache.digests()) == self._read

    def _compile(self, compilations: Sequence[Compilation], jobs: int) -> None:
        """Run all passes of all sources, ``jobs`` at a time."""
        tasks = [partial(each.run, step, self._report) for each in compilations for step in each.passes]

        def give_up() -> None:
            for each in compilations:
                each.kill()

        run_all(tasks, jobs, give_up)
        self._libraries |= {each.key: each.library for each in compilations if each.library}
        self._problems += [problem for each in compilations for problem in each.problems]

    def _event(self, kind: Literal["hit", "damaged", "wait", "failed"], key: str, text: str = "") -> BuildEvent:
        return BuildEvent(kind, key, self._wanted[key][0], text=text)
