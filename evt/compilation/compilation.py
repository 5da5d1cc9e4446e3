"""The compilation of one source to a library: a device pass and a host pass in parallel, then the link."""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from evt.compilation.cache import LIBRARY, SOURCE, Cache
from evt.compilation.dependencies import Read, files_read
from evt.compilation.environment import compiler_environment, is_plain
from evt.compilation.event import BuildEvent, Reporter
from evt.compilation.limits import require_files
from evt.compilation.lock import KeyLock
from evt.compilation.process import Children, Supervisor
from evt.compilation.source import FLAGS, HOST_FLAGS, HOST_LIBRARIES, HOST_LINK_FLAGS, LINK_FLAGS, KernelSource
from evt.compilation.toolchain import Toolchain, toolkit_home
from evt.compilation.verdict import verdict
from evt.diagnostics import Diagnostic
from evt.errors import BuildError

#: The link to nvcc's toolkit in a working directory, for the host compiler.
TOOLKIT = "toolkit"
_EMBED = Path(__file__).with_name("embed.cpp")


@dataclass(frozen=True, slots=True)
class Pass:
    """One run of nvcc or of the host compiler; if the host compiler fails, ``instead`` is run."""

    name: str
    argv: tuple[str, ...]
    instead: Pass | None = None


def compile_passes(source: KernelSource, toolchain: Toolchain) -> tuple[Pass, Pass]:
    """Return the two independent passes, the longer one first."""
    nvcc = (str(toolchain.nvcc), *FLAGS, *toolchain.include_flags)
    target = f"-gencode=arch={source.gencode.replace('sm_', 'compute_')},code={source.gencode}"
    rule = ("-MD", "-MF")
    host = ("-DEVT_HOST_PASS", *rule, "host.d", "-c", SOURCE, "-o", "host.o")
    return (
        Pass("device", (*nvcc, "-DEVT_DEVICE_PASS", target, *rule, "device.d", "-cubin", SOURCE, "-o", "kernel.cubin")),
        _by_host_compiler(Pass("host", (*nvcc, *host)), toolchain, (*_host_words(toolchain), *host)),
    )


def link_pass(toolchain: Toolchain) -> Pass:
    """Return the pass that embeds the cubin and links, with the static CUDA runtime."""
    libraries = tuple(f"-L{path}" for path in toolchain.cuda_lib)
    files = ("host.o", "embed.cpp", "-o", LIBRARY)
    nvcc = Pass("link", (str(toolchain.nvcc), *LINK_FLAGS, *libraries, *files))
    found = (*libraries, f"-L{TOOLKIT}/lib64", f"-L{TOOLKIT}/lib", *HOST_LIBRARIES)
    return _by_host_compiler(nvcc, toolchain, (*HOST_LINK_FLAGS, *files, *found))


def _host_words(toolchain: Toolchain) -> tuple[str, ...]:
    """Return the host compiler's options for launchers."""
    major, minor, *_ = toolchain.nvcc_version.split(".")
    cuda = (word for name in ("include", "include/cccl") for word in ("-isystem", f"{TOOLKIT}/{name}"))
    version = (f"-DEVT_NVCC_MAJOR={major}", f"-DEVT_NVCC_MINOR={minor}")
    stubs = ("-include", f"{toolchain.evt_include}/evt/host.hpp", "-x", "c++")
    return (*HOST_FLAGS, *version, *toolchain.include_flags, *cuda, *stubs)


def _by_host_compiler(nvcc: Pass, toolchain: Toolchain, words: tuple[str, ...]) -> Pass:
    """Return a pass by the host compiler, with nvcc's as the fallback; nvcc's pass without a host compiler."""
    if toolchain.host_compiler is None:
        return nvcc
    return Pass(nvcc.name, (str(toolchain.host_compiler), *words), nvcc)


class Compilation:
    """The compilation of one key, whose lock it holds until its passes have ended, or until ``close``.

    ``run`` is called once per pass, from any thread. A failure does not raise: it is added to ``problems``, a success
    to ``library``. ``unchanged`` returns whether the inputs in the key are unchanged. If they changed, the compilers
    may have read either version.
    """

    def __init__(
        self,
        key: str,
        index: int,
        source: KernelSource,
        toolchain: Toolchain,
        cache: Cache,
        lock: KeyLock,
        supervisor: Supervisor,
        unchanged: Callable[[], bool],
    ) -> None:
        self.key, self.index, self.source = key, index, source
        self._linked, self._links = toolchain.linked()
        self._home = toolkit_home(toolchain.nvcc)
        if toolchain.host_compiler and self._home:
            self._links[TOOLKIT] = self._home
        self.passes = compile_passes(source, self._linked)
        self.problems: tuple[Diagnostic, ...] = ()
        self.library: Path | None = None
        self._toolchain, self._cache, self._lock, self._unchanged = toolchain, cache, lock, unchanged
        self._supervisor, self._children, self._mutex = supervisor, Children(supervisor), threading.Lock()
        #: The numbers of passes that have yet to succeed, and to end.
        self._left = self._open = len(self.passes)
        self._started, self._wall = time.monotonic(), time.time_ns()
        self._done: list[dict[str, object]] = []
        self._work = cache.workspace(key, {SOURCE: source.text, "embed.cpp": _EMBED.read_text()}, self._links)

    def run(self, step: Pass, report: Reporter) -> None:
        """Run one pass; the last one to finish links and publishes."""
        try:
            ok = self._run(step, report)
            with self._mutex:
                self._left -= ok
                last = ok and self._left == 0
            if last and self._run(link_pass(self._linked), report):
                self.library = self._cache.publish(self.key, self._work, self._facts())
                report(BuildEvent("built", self.key, self.index, seconds=time.monotonic() - self._started))
        except BuildError as error:
            problems = error.diagnostics
            if not self._work.is_dir():
                message = f"the directory {self._work} was removed while nvcc was at work in it"
                problems = (Diagnostic("E0704", message, help="build again"),)
            with self._mutex:
                first, self.problems = not self.problems, self.problems or problems
            self._children.kill()  # the other pass is useless now
            if first:
                report(BuildEvent("failed", self.key, self.index, step.name, text=problems[0].message))
        finally:
            with self._mutex:
                self._open -= 1
                ended = self._open == 0
            if ended:
                self.close()

    def _facts(self) -> dict[str, object]:
        """Return the content of the library's record."""
        return {"kernel": self.source.kernel, "read": self._read(), **self._record()}

    def kill(self) -> None:
        """End the running passes and start no more."""
        self._children.kill()

    def close(self) -> None:
        """Remove the working directory and release the lock; a second call does nothing."""
        shutil.rmtree(self._work, ignore_errors=True)
        self._supervisor.release(self._lock)

    def _run(self, step: Pass, report: Reporter) -> bool:
        """Run a pass; return False if the compilation was abandoned. Raise BuildError if nvcc fails."""
        if self._children.killed():
            return False
        report(BuildEvent("start", self.key, self.index, step.name, text=shlex.join(step.argv)))
        self._require_plain()
        # Temporary files by relative names: nvcc passes them to a shell.
        environment = {**compiler_environment(), "TMPDIR": "."}
        try:
            done = self._children.run(step.argv, self._work, environment, self._work / f"{step.name}.log")
        except OSError as error:
            require_files(error)
            if step.instead is not None:
                return self._fallback(step, step.instead, str(error), report)
            message = f"nvcc cannot be started: {error}"
            raise BuildError(Diagnostic("E0701", message, help="evt doctor")) from error
        if self._children.killed():
            return False
        report(BuildEvent("end", self.key, self.index, step.name, done.seconds, done.output))
        command = shlex.join(step.argv)
        if done.returncode and step.instead is not None:
            errors = [line for line in done.output.splitlines() if "error" in line]
            return self._fallback(step, step.instead, (*errors, f"exit status {done.returncode}")[0], report)
        self._done.append({"name": step.name, "command": command, "seconds": round(done.seconds, 3)})
        if done.returncode:
            raise self._failure(command, done.returncode, done.output)
        return True

    def _fallback(self, step: Pass, instead: Pass, reason: str, report: Reporter) -> bool:
        text = f"nvcc instead of {step.argv[0]}: {reason}"
        report(BuildEvent("fallback", self.key, self.index, step.name, text=text))
        return self._run(instead, report)

    def _require_plain(self) -> None:
        """Raise BuildError for a path that nvcc's shell would interpret and that links cannot hide."""
        work, home = os.path.realpath(self._work), self._home
        if not is_plain(work):
            message = f"nvcc passes the path of the cache directory to a shell, which would interpret it: {work}"
            mend = "set EVT_CACHE_DIR to a path without double quotes, backslashes, backquotes and `$`"
            raise BuildError(Diagnostic("E0704", message, help=mend))
        if "cuda" not in self._links and not is_plain(str(home)):
            message = f"nvcc passes its own path to a shell, which would interpret it: {home}"
            raise BuildError(Diagnostic("E0701", message, help="set CUDACXX to an nvcc with another path"))

    def _read(self) -> Read:
        """Return the files that were read, except the headers of CUTLASS and evt.

        Raise BuildError (E0707) if that is uncertain.
        """
        rules = [self._work / f"{step.name}.d" for step in self.passes]
        try:
            read, changed = files_read(self._work, rules, ("cutlass", "evt"), self._home)
        except OSError as error:
            require_files(error)
            message = f"nvcc does not report the files that it has read: {error}"
            raise BuildError(Diagnostic("E0701", message, help="set CUDACXX to another nvcc")) from error
        if changed > self._wall or not self._unchanged():
            message = "a header or a compiler was changed while nvcc was at work"
            raise BuildError(Diagnostic("E0707", message, help="build again"))
        return read

    def _failure(self, command: str, returncode: int, output: str) -> BuildError:
        output += f"\nterminated by signal {-returncode}" if returncode < 0 else f"\nexit status {returncode}"
        kept = self._cache.failed(self.key)
        problem = verdict(self.source, self._toolchain, output, self._cache.root, kept)
        links = "".join(f"# {name} is a link to {target}\n" for name, target in self._links.items())
        with contextlib.suppress(BuildError):  # a full disk, for example: a worse error follows
            self._cache.keep_failure(self.key, self.source.text, f"{links}$ {command}\n{output}\n", [problem])
        return BuildError(problem)

    def _record(self) -> Mapping[str, object]:
        return {
            "gencode": self.source.gencode,
            "nvcc": self._toolchain.nvcc_version,
            "cutlass": self._toolchain.cutlass_version,
            "built": time.time(),
            "seconds": round(time.monotonic() - self._started, 3),
            "links": {name: str(target) for name, target in self._links.items()},
            "passes": self._done,
        }
