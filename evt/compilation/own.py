"""The compilation of an own kernel by NVRTC to a cubin, in this process: ``compile_own(source, nvrtc) -> bytes``.

The text reads no header of CUTLASS, of CUDA or of a host compiler: codegen/nvrtc stands in for them.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import shutil
import time
from collections.abc import Callable, Mapping
from functools import cache, partial
from pathlib import Path

from evt import resources
from evt.compilation.cache import LIBRARY, SOURCE, Cache
from evt.compilation.claims import Claims, Target
from evt.compilation.event import BuildEvent, Reporter
from evt.compilation.jit import JitError, Missing, Nvrtc, find_nvrtc
from evt.compilation.lock import KeyLock
from evt.compilation.source import SCHEMA, KernelSource, text_digest
from evt.compilation.verdict import verdict_of_nvrtc
from evt.diagnostics import Diagnostic
from evt.errors import BuildError
from evt.version import __version__

#: The first NVRTC that knows sm_90a.
_OLDEST = (12, 0)
_OPTIONS = (
    *("-std=c++17", "-DNDEBUG", "-DEVT_DEVICE_PASS"),
    *("--pre-include=prelude.hpp", "--disable-warnings"),
)
#: The machine of an ELF file for a GPU: EM_CUDA.
_GPU = (190).to_bytes(2, "little")
_STAGE = "device"
_PRELUDE, _TYPES = "prelude.hpp", "cutlass.hpp"
#: The headers that emitted texts include: the prelude has their content, or types that few kernels need.
_IN_PRELUDE = (
    *("algorithm", "atomic", "cmath", "cstdint", "cstdio", "cstdlib", "cstring", "initializer_list", "numeric"),
    *("stddef.h", "stdint.h", "type_traits", "utility", "cuda.h", "cuda_runtime.h"),
    *("cutlass/cutlass.h", "cutlass/device_kernel.h"),
)
_IN_TYPES = ("cutlass/array.h", "cutlass/numeric_conversion.h", "cutlass/numeric_types.h", "cute/tensor.hpp")


def find_way() -> Nvrtc | Missing:
    """Return the compiler of own kernels, or the reason that nvcc compiles them."""
    found = find_nvrtc()
    if isinstance(found, Nvrtc) and found.version < _OLDEST:
        return Missing(f"NVRTC {found.version[0]}.{found.version[1]} is too old", "pip install --upgrade torch")
    return found


def options(gencode: str) -> tuple[str, ...]:
    """Return NVRTC's options for a real architecture."""
    return f"--gpu-architecture={gencode}", *_OPTIONS


@cache
def headers() -> Mapping[str, str]:
    """Return the texts of headers by the names that emitted texts include."""
    own = {name: resources.text("codegen", f"nvrtc/{name}") for name in (_PRELUDE, _TYPES)}
    types = dict.fromkeys(_IN_TYPES, f'#include "{_TYPES}"\n')
    return {**own, **dict.fromkeys(_IN_PRELUDE, ""), **types}


def compile_own(source: KernelSource, nvrtc: Nvrtc) -> bytes:
    """Return the cubin of an own kernel. Raise JitError."""
    return nvrtc.compile(source.text, options(source.gencode), headers=headers(), name=SOURCE)


def is_cubin(library: Path) -> bool:
    """Return whether a library of the cache is a cubin, which has no launcher: code for a GPU, not for this machine."""
    try:
        with library.open("rb") as file:
            return file.read(20)[18:] == _GPU
    except OSError:  # it cannot be loaded either
        return False


def own_key(source: KernelSource, nvrtc: Nvrtc) -> str:
    """Return the SHA-256 of everything that decides the cubin."""
    ingredients = {
        "schema": SCHEMA,
        "text": text_digest(source.text),
        "evt": __version__,
        "options": options(source.gencode),
        "headers": headers(),
        "compiler": nvrtc.identity,
    }
    return hashlib.sha256(json.dumps(ingredients, sort_keys=True).encode()).hexdigest()


def make_own(
    wanted: Mapping[str, tuple[int, KernelSource]], nvrtc: Nvrtc, cache: Cache, jobs: int | None, report: Reporter
) -> tuple[dict[str, Path], list[Diagnostic]]:
    """Return the cubins by key, found or built now, and the problems of the texts that NVRTC refuses.

    Raise BuildError for other failures.
    """
    claims = Claims(cache, report)
    if not all(claims.find(key, index) for key, (index, _) in wanted.items()):
        cache.prepare()
        targets = {
            key: Target(index, partial(OwnCompilation, key, index, source, nvrtc, cache), has_fallback=True)
            for key, (index, source) in wanted.items()
        }
        claims.make(targets, _InProcess(), jobs)
        if claims.lost:
            raise BuildError([problem for key in wanted if key in claims.lost for problem in claims.failed[key]])
    return claims.made, [problem for problems in claims.failed.values() for problem in problems]


class _InProcess:
    """The keeper of locks for work that ends with this process."""

    def claim(self, path: Path, take: Callable[[], KeyLock | None]) -> KeyLock | None:
        return take()

    def release(self, lock: KeyLock) -> None:
        lock.release()


class OwnCompilation:
    """The compilation of one key by NVRTC, whose lock it holds until ``close``; it ends with this process.

    A failure does not raise: it is added to ``problems``. It has a fallback if NVRTC does not accept the text.
    """

    def __init__(self, key: str, index: int, source: KernelSource, nvrtc: Nvrtc, cache: Cache, lock: KeyLock) -> None:
        self.key, self.index, self.source = key, index, source
        self.problems: tuple[Diagnostic, ...] = ()
        self.has_fallback = False
        self.made: Path | None = None
        self._nvrtc, self._cache, self._lock = nvrtc, cache, lock
        self._killed = False
        self._work = cache.workspace(key, {SOURCE: source.text})

    def tasks(self, report: Reporter) -> list[Callable[[], None]]:
        """Return the call of ``run``."""
        return [partial(self.run, report)]

    def run(self, report: Reporter) -> None:
        """Compile and publish."""
        started = time.monotonic()
        try:
            if self._killed:
                return
            text = f"nvrtc {' '.join(options(self.source.gencode))}"
            report(BuildEvent("start", self.key, self.index, _STAGE, text=text))
            try:
                cubin = compile_own(self.source, self._nvrtc)
            except JitError as error:
                self.has_fallback = True
                raise BuildError(self._verdict(text, error)) from error
            seconds = time.monotonic() - started
            report(BuildEvent("end", self.key, self.index, _STAGE, seconds))
            self._write(cubin)
            self.made = self._cache.publish(self.key, self._work, self._record(text, seconds))
            report(BuildEvent("built", self.key, self.index, seconds=time.monotonic() - started))
        except BuildError as error:
            self._fail(error, report)
        finally:
            self.close()

    def _write(self, cubin: bytes) -> None:
        try:
            (self._work / LIBRARY).write_bytes(cubin)
        except OSError as error:
            message = f"the directory {self._work} cannot be used: {error}"
            raise BuildError(Diagnostic("E0704", message, help="build again")) from error

    def _fail(self, error: BuildError, report: Reporter) -> None:
        self.problems = error.diagnostics
        report(BuildEvent("failed", self.key, self.index, _STAGE, text=self.problems[0].message))

    def _verdict(self, command: str, error: JitError) -> Diagnostic:
        kept = self._cache.failed(self.key)
        problem = verdict_of_nvrtc(self.source, error.log, self._cache.root, kept)
        with contextlib.suppress(BuildError):
            self._cache.keep_failure(self.key, self.source.text, f"$ {command}\n{error}\n{error.log}\n", [problem])
        return problem

    def kill(self) -> None:
        """Do not start the pass; a pass that has started goes on."""
        self._killed = True

    def close(self) -> None:
        """Remove the working directory and release the lock; a second call does nothing."""
        shutil.rmtree(self._work, ignore_errors=True)
        self._lock.release()

    def _record(self, command: str, seconds: float) -> Mapping[str, object]:
        return {
            "kernel": self.source.kernel,
            "read": {},
            "gencode": self.source.gencode,
            "nvrtc": self._nvrtc.identity,
            "built": time.time(),
            "seconds": round(seconds, 3),
            "passes": [{"name": "device", "command": command, "seconds": round(seconds, 3)}],
        }
