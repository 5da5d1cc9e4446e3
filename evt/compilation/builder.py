"""Concurrent builds of many sources, each only once even if several processes ask for it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from evt.compilation.cache import Cache
from evt.compilation.claims import Claims, Target
from evt.compilation.event import BuildEvent, Reporter
from evt.compilation.inputs import Inputs, find_inputs
from evt.compilation.jit import Missing, Nvrtc
from evt.compilation.own import find_way, is_cubin, make_own, own_key
from evt.compilation.policy import may_compile, uncompiled
from evt.compilation.progress import shown
from evt.compilation.source import KernelSource, cache_key, jit_versions, part_key, source_key
from evt.compilation.toolchain import Toolchain, find_toolchain, is_by_nvrtc, require_target
from evt.diagnostics import Diagnostic
from evt.errors import BuildError, EvtError

if TYPE_CHECKING:
    from evt.compilation.compilation import Compilation
    from evt.compilation.lock import KeyLock
    from evt.compilation.process import Supervisor
    from evt.compilation.recipe import Jit, Recipe
    from evt.compilation.skeleton import Split

_Result = TypeVar("_Result")
#: The number of times to rebuild libraries that another process removes before they are used.
_TRIES = 3


def build(
    sources: Sequence[KernelSource],
    *,
    cache: Cache | None = None,
    toolchain: Toolchain | None = None,
    jobs: int | None = None,
    verbose: bool = False,
    silent: bool = False,
    on_event: Callable[[BuildEvent], None] | None = None,
) -> list[Path]:
    """Return the libraries of ``sources``, in their order: imported, from the cache, or built now.

    At most ``jobs`` passes of nvcc run at a time; by default, the processors and the memory limit the passes of all
    processes of this machine that share the cache. If another process is building a source, wait for it; its failure is
    raised here too. If a source fails, the others are still built. A source is locked only while it is built, so the
    number of open files depends on ``jobs`` only. The compilers end with this process, however it ends. ``on_event``
    gets each step, one call at a time but from several threads. A terminal shows the progress, unless ``silent``.

    Sources that are ``alone`` become cubins by NVRTC, or libraries if NVRTC is missing or refuses them.

    Raise BuildError: E0701 or E0702 without usable tools, E0703 if nvcc refuses a source (a bug in evt), E0653 if it
    refuses the C++ of a user's function, E0704 if the cache cannot be used, E0705 if another user could have written
    it, E0706 if nvcc is too old, E0707 if headers change during the build, E0708 if too many files are open, E0709 if
    this process may not compile. Raise ValueError for less than one job.
    """
    if jobs is not None and jobs < 1:
        raise ValueError(f"jobs is {jobs}: at least one is needed")
    cache = cache or Cache()
    with shown(sources, cache, jobs, hidden=verbose or silent) as show:
        return _built(sources, cache, toolchain, jobs, Reporter((show, *((on_event,) if on_event else ())), verbose))


def _built(
    sources: Sequence[KernelSource], cache: Cache, toolchain: Toolchain | None, jobs: int | None, report: Reporter
) -> list[Path]:
    libraries = _imported(sources, cache, report)
    left = {source: sources.index(source) for source in dict.fromkeys(sources) if source not in libraries}
    nvrtc = _way_of_own(left)
    refused: list[Diagnostic] = []
    if isinstance(nvrtc, Nvrtc):
        found, refused = _alone(left, nvrtc, cache, jobs, report)
        libraries |= found
    if rest := {source: index for source, index in left.items() if source not in libraries}:
        try:
            made = _made(list(rest), list(rest.values()), cache, toolchain, jobs, report)
        except BuildError as error:
            if not may_compile() or not {each.code for each in error.diagnostics} <= {"E0701", "E0702"}:
                raise
            raise BuildError(refused) if refused else _without_tools(error, nvrtc) from None
        libraries |= zip(rest, made, strict=True)
    return [libraries[source] for source in sources]


def _way_of_own(sources: Iterable[KernelSource]) -> Nvrtc | Missing | None:
    """Return NVRTC, or the reason that nvcc compiles own kernels; None if it was asked for, or there are none."""
    if not any(source.alone for source in sources):
        return None
    return find_way() if is_by_nvrtc() else None


def tools_digest(cache: Cache) -> str:
    """Return a digest of the tools by which :func:`build` would build now: it changes with the keys of libraries."""
    made = ""
    with suppress(BuildError):
        toolchain = find_toolchain()
        made = f"{find_inputs(toolchain, cache.digests()).digest} {toolchain.by_parts} {jit_versions()}"
    nvrtc = find_way() if is_by_nvrtc() else None
    return hashlib.sha256(f"{made} {nvrtc}".encode()).hexdigest()


def missing_tools(sources: Callable[[], Iterable[KernelSource]]) -> str:
    """Return the message of the tools that sources need and this machine lacks, or "".

    Imported libraries need no tools. Own kernels need NVRTC only, which is not looked for. ``sources`` is called on a
    machine without tools.
    """
    try:
        find_toolchain()
    except BuildError as error:
        cache = Cache()
        if not all(each.alone or cache.find(source_key(each))[0] for each in sources()):
            return error.diagnostics[0].message
    return ""


def has_tools() -> bool:
    """Return whether this machine has nvcc and CUTLASS."""
    try:
        find_toolchain()
    except BuildError:
        return False
    return True


def _imported(sources: Sequence[KernelSource], cache: Cache, report: Reporter) -> dict[KernelSource, Path]:
    """Return the libraries that came from other machines."""
    found: dict[KernelSource, Path] = {}
    for index, source in enumerate(sources):
        key = source_key(source)
        library = None if source in found else cache.find(key)[0]
        if library is not None and (source.alone or not is_cubin(library)):
            found[source] = library
            report(BuildEvent("hit", key, index))
    return found


def _alone(
    sources: Mapping[KernelSource, int], nvrtc: Nvrtc, cache: Cache, jobs: int | None, report: Reporter
) -> tuple[dict[KernelSource, Path], list[Diagnostic]]:
    """Return the cubins of the sources that NVRTC compiles, and the problems of the refused ones."""
    keys = {source: own_key(source, nvrtc) for source in sources if source.alone}
    if not may_compile():
        keys = {source: key for source, key in keys.items() if cache.find(key)[0] is not None}
    wanted: dict[str, tuple[int, KernelSource]] = {}
    for source, key in keys.items():
        wanted.setdefault(key, (sources[source], source))
    made, refused = make_own(wanted, nvrtc, cache, jobs, report)
    return {source: made[key] for source, key in keys.items() if key in made}, refused


def _without_tools(error: BuildError, nvrtc: Nvrtc | Missing | None) -> BuildError:
    """Return the error of missing tools; sources that NVRTC could compile need none of them."""
    if not isinstance(nvrtc, Missing):
        return error
    first, *others = error.diagnostics
    notes = (*first.notes, f"own kernels need NVRTC alone: {nvrtc.reason}", f"to have it: {nvrtc.help}")
    return BuildError([Diagnostic(first.code, first.message, help=first.help, notes=notes), *others])


def _made(
    sources: Sequence[KernelSource],
    positions: Sequence[int],
    cache: Cache,
    toolchain: Toolchain | None,
    jobs: int | None,
    report: Reporter,
) -> list[Path]:
    """Return the libraries of different sources that were built on this machine, or are built now.

    Raise the errors of :func:`build`.
    """
    compiles = may_compile()
    try:
        toolchain = toolchain or find_toolchain()
        for gencode in sorted({source.gencode for source in sources}):
            require_target(gencode, toolchain.nvcc_version)
    except BuildError:
        if compiles:
            raise
        raise uncompiled(sources) from None  # its cause is no concern of a machine that does not compile
    read = find_inputs(toolchain, cache.digests())
    keys = [cache_key(source, toolchain, read) for source in sources]
    if not compiles:
        missing = [source for key, source in zip(keys, sources, strict=True) if cache.find(key)[0] is None]
        if missing:
            raise uncompiled(missing)
    wanted: dict[str, tuple[int, KernelSource]] = {}
    for key, index, source in zip(keys, positions, sources, strict=True):
        wanted.setdefault(key, (index, source))
    libraries = _Build(wanted, cache, toolchain, read, report).run(jobs)
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
    """Return the results of ``use`` for the position and the path of each library.

    Libraries that another process removes before they are used are built again. Raise the errors of :func:`build` and
    ``use``.
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


@dataclass(frozen=True, slots=True)
class _Divided:
    """A kernel's split, the tools for it, and its parts by their keys: the skeleton, then the launcher."""

    split: Split
    jit: Jit
    parts: dict[str, Recipe]


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
        #: Libraries and parts.
        self._claims = Claims(cache, report)

    def run(self, jobs: int | None) -> dict[str, Path]:
        """Return the libraries by key."""
        claims = self._claims
        missing = [key for key, (index, _) in self._wanted.items() if not claims.find(key, index)]
        if not missing:
            return claims.made
        from evt.compilation.process import Supervisor
        from evt.compilation.recipe import whole

        self._cache.prepare()
        tools, _ = self._toolchain.linked()
        with Supervisor.start() as supervisor:

            def make(recipes: Mapping[str, tuple[int, Recipe]]) -> None:
                targets = {key: self._target(key, *each, supervisor) for key, each in recipes.items()}
                claims.make(targets, supervisor, jobs)

            def as_whole(keys: Iterable[str]) -> dict[str, tuple[int, Recipe]]:
                return {key: (index, whole(source, tools)) for key in keys for index, source in (self._wanted[key],)}

            divided = self._divided(missing)
            parts = {
                part: (self._wanted[key][0], recipe)
                for key, each in divided.items()
                for part, recipe in each.parts.items()
            }
            make({**parts, **as_whole(key for key in missing if key not in divided)})
            make(self._by_parts(divided))
            rest = [key for key in divided if key not in claims.made]
            for key in rest:
                failed = [problem for each in (*divided[key].parts, key) for problem in claims.failed.get(each, ())]
                if failed:
                    self._fall_back(key, failed[0].message)
            make(as_whole(rest))
        if problems := [problem for key in self._wanted for problem in claims.failed.get(key, ())]:
            raise BuildError(problems)
        return claims.made

    def _divided(self, keys: Sequence[str]) -> dict[str, _Divided]:
        """Return the kernels that are linked from parts and a formula."""
        if not self._toolchain.by_parts:
            return {}
        from evt.compilation.recipe import find_jit, parts
        from evt.compilation.skeleton import split

        found: dict[str, _Divided] = {}
        tools, _ = self._toolchain.linked()
        for key in keys:
            source = self._wanted[key][1]
            if (divided := split(source.text)) is None:
                continue
            jit = find_jit(self._toolchain)
            if isinstance(jit, Missing):
                self._fall_back(key, jit.reason)
                continue
            recipes = parts(source, divided, tools)
            keyed = {self._part_key(each.source.text, name, source.gencode): each for name, each in recipes.items()}
            found[key] = _Divided(divided, jit, keyed)
        return found

    def _part_key(self, text: str, artifact: str, gencode: str) -> str:
        """Return the key of an imported part, or if there is none, of a part that is built here."""
        imported = source_key(KernelSource(text, gencode), (artifact, self._toolchain.nvcc_version))
        found, _ = self._cache.find(imported, artifact)
        return imported if found else part_key(text, artifact, gencode, self._read)

    def _by_parts(self, divided: Mapping[str, _Divided]) -> dict[str, tuple[int, Recipe]]:
        """Return the recipes of the libraries whose parts are made; the others fall back."""
        from evt.compilation.recipe import Formula, by_parts

        tools, _ = self._toolchain.linked()
        made, found = self._claims.made, {}
        for key, each in divided.items():
            index, source = self._wanted[key]
            if not all(part in made for part in each.parts):
                continue
            skeleton, launcher = (made[part] for part in each.parts)
            formula = Formula(each.split, source.gencode, each.jit, skeleton, launcher)
            found[key] = index, by_parts(source, formula, tools)
        return found

    def _target(self, key: str, index: int, recipe: Recipe, supervisor: Supervisor) -> Target:
        from evt.compilation.compilation import Compilation

        def begin(lock: KeyLock) -> Compilation:
            return Compilation(key, index, recipe, self._toolchain, self._cache, lock, supervisor, self._unchanged)

        return Target(index, begin, recipe.artifact, recipe.has_fallback)

    def _unchanged(self) -> bool:
        return find_inputs(self._toolchain, self._cache.digests()) == self._read

    def _fall_back(self, key: str, reason: str) -> None:
        self._report(BuildEvent("fallback", key, self._wanted[key][0], text=f"nvcc for the whole file: {reason}"))
