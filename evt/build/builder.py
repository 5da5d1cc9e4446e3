"""Many sources at once, each built once, whoever asks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

from evt.build.cache import Cache
from evt.build.compilation import Compilation
from evt.build.event import BuildEvent, Reporter
from evt.build.process import default_jobs
from evt.build.source import KernelSource, cache_key
from evt.build.toolchain import Toolchain, find_toolchain, require_target
from evt.errors import BuildError


def build(
    sources: Sequence[KernelSource],
    *,
    cache: Cache | None = None,
    toolchain: Toolchain | None = None,
    jobs: int | None = None,
    verbose: bool = False,
    on_event: Callable[[BuildEvent], None] | None = None,
) -> list[Path]:
    """The libraries of ``sources``, in their order: from the cache, or built now.

    At most ``jobs`` passes of nvcc run at a time. What another process is building is waited for. When a
    source fails, the others are still built. ``on_event`` hears each step, one call at a time but from
    several threads.

    Raises BuildError: E0701 or E0702 without tools, E0703 when nvcc refuses a source (a bug in evt), E0704
    when the cache cannot be used, E0705 when another user could have written it, E0706 when nvcc is too old.
    Raises ValueError for less than one job.
    """
    if jobs is not None and jobs < 1:
        raise ValueError(f"jobs is {jobs}: at least one is needed")
    cache = cache or Cache()
    toolchain = toolchain or find_toolchain()
    for gencode in sorted({source.gencode for source in sources}):
        require_target(gencode, toolchain.nvcc_version)
    keys = [cache_key(source, toolchain) for source in sources]
    wanted = {key: (keys.index(key), source) for key, source in zip(keys, sources, strict=True)}
    report = Reporter(on_event, verbose)
    libraries: dict[str, Path] = {}

    def found(key: str, locked: bool = False) -> bool:
        library, damage = cache.find(key)
        if library is not None:
            libraries[key] = library
            report(BuildEvent("hit", key, wanted[key][0]))
        elif damage and locked:
            report(BuildEvent("damaged", key, wanted[key][0], text=damage))
        return library is not None

    missing = [key for key in wanted if not found(key)]
    if missing:
        cache.prepare()
    while missing:
        with ExitStack() as held:
            # We wait for a lock only while we hold none, so nobody waits in a circle.
            locks = {key: lock for key in missing if (lock := cache.lock(key, wait=False))}
            if not locks:
                report(BuildEvent("wait", missing[0], wanted[missing[0]][0]))
                if lock := cache.lock(missing[0], wait=True):
                    locks = {missing[0]: lock}
            for lock in locks.values():
                held.callback(lock.release)
            compilations = []
            for key, lock in locks.items():
                if found(key, locked=True):  # built by another since we looked
                    lock.release()
                    continue
                compilation = Compilation(key, *wanted[key], toolchain, cache, lock)
                held.callback(compilation.close)
                compilations.append(compilation)
            _run(compilations, jobs or default_jobs(), report)
            libraries |= {each.key: each.library for each in compilations if each.library}
        missing = [key for key in missing if key not in libraries]
    return [libraries[key] for key in keys]


def _run(compilations: Sequence[Compilation], jobs: int, report: Reporter) -> None:
    """All passes of all sources through one pool. Raises BuildError with the problems of all that failed."""
    from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait  # 17 ms: not needed for a hit

    pool = ThreadPoolExecutor(jobs, thread_name_prefix="evt-build")
    try:
        futures = [pool.submit(each.run, step, report) for each in compilations for step in each.passes]
        for future in wait(futures, return_when=FIRST_EXCEPTION).done:
            future.result()
    except BaseException:  # Ctrl-C, or a listener that raises
        for each in compilations:
            each.kill()
        raise
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
    if problems := [problem for each in compilations for problem in each.problems]:
        raise BuildError(problems)
