"""One source on its way to a library: a device pass and a host pass, side by side, then the link."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from evt.build.cache import LIBRARY, SOURCE, Cache
from evt.build.event import BuildEvent, Reporter
from evt.build.lock import KeyLock
from evt.build.process import Children
from evt.build.source import FLAGS, LINK_FLAGS, KernelSource
from evt.build.toolchain import Toolchain
from evt.diagnostics import Diagnostic
from evt.errors import BuildError
from evt.version import __version__

_EMBED = Path(__file__).with_name("embed.cpp")
#: What nvcc prints when the fault is not in the source: (pattern, code, message, help).
_NOT_OUR_BUG = (
    (
        r"No space left on device|Disk quota exceeded",
        "E0704",
        "there is no space left to build in {root}",
        "free some space, or set EVT_CACHE_DIR to a directory on another disk",
    ),
    (
        r"Failed to preprocess host compiler|unsupported GNU version|unsupported clang version"
        r"|(?:gcc|g\+\+|cc1plus)['\"]?: (?:command )?not found|(?:gcc|g\+\+): No such file",
        "E0701",
        "nvcc has no host compiler that it can use",
        "apt install g++, or set NVCC_CCBIN to a C++ compiler that this nvcc supports",
    ),
    (
        r"died due to signal 9|terminated by signal 9|^Killed$|std::bad_alloc|virtual memory exhausted",
        "E0703",
        "nvcc was killed, most likely because memory ran out",
        "build with fewer jobs at a time (jobs=1), or with more memory",
    ),
)


@dataclass(frozen=True, slots=True)
class Pass:
    """One run of nvcc."""

    name: str
    argv: tuple[str, ...]


def compile_passes(source: KernelSource, toolchain: Toolchain) -> tuple[Pass, Pass]:
    """The two independent passes, the longer one first."""
    nvcc = (str(toolchain.nvcc), *FLAGS, *toolchain.include_flags)
    target = f"-gencode=arch={source.gencode.replace('sm_', 'compute_')},code={source.gencode}"
    return (
        Pass("device", (*nvcc, "-DEVT_DEVICE_PASS", target, "-cubin", SOURCE, "-o", "kernel.cubin")),
        Pass("host", (*nvcc, "-DEVT_HOST_PASS", "-c", SOURCE, "-o", "host.o")),
    )


def link_pass(toolchain: Toolchain) -> Pass:
    """Embed the cubin and link, with the static CUDA runtime."""
    libraries = (f"-L{path}" for path in toolchain.cuda_lib)
    return Pass("link", (str(toolchain.nvcc), *LINK_FLAGS, *libraries, "host.o", "embed.cpp", "-o", LIBRARY))


class Compilation:
    """Builds one key, whose lock it holds until ``close``. ``run`` is called once per pass, from any thread.

    A failure does not raise: it ends up in ``problems``, a success in ``library``.
    """

    def __init__(
        self, key: str, index: int, source: KernelSource, toolchain: Toolchain, cache: Cache, lock: KeyLock
    ) -> None:
        self.key, self.index, self.source = key, index, source
        self.passes = compile_passes(source, toolchain)
        self.problems: tuple[Diagnostic, ...] = ()
        self.library: Path | None = None
        self._toolchain, self._cache, self._lock = toolchain, cache, lock
        self._children, self._mutex, self._left = Children(), threading.Lock(), len(self.passes)
        self._started = time.monotonic()
        self._done: list[dict[str, object]] = []
        self._work = cache.workspace(key, {SOURCE: source.text, "embed.cpp": _EMBED.read_text()})

    def run(self, step: Pass, report: Reporter) -> None:
        """Run one pass; whoever finishes the last one links and publishes."""
        try:
            ok = self._run(step, report)
            with self._mutex:
                self._left -= ok
                last = ok and self._left == 0
            if last and self._run(link_pass(self._toolchain), report):
                self.library = self._cache.publish(self.key, self._work, self._record())
                self.close()
                report(BuildEvent("built", self.key, self.index, seconds=time.monotonic() - self._started))
        except BuildError as error:
            with self._mutex:
                first, self.problems = not self.problems, self.problems or error.diagnostics
            self._children.kill()  # the other pass is of no use any more
            if first:
                message = error.diagnostics[0].message
                report(BuildEvent("failed", self.key, self.index, step.name, text=message))

    def kill(self) -> None:
        """End the passes that run and start no more."""
        self._children.kill()

    def close(self) -> None:
        """Remove the working directory and let the next builder in."""
        shutil.rmtree(self._work, ignore_errors=True)
        self._lock.release()

    def _run(self, step: Pass, report: Reporter) -> bool:
        """Whether it ran: not when the compilation was given up. Raises BuildError when nvcc fails."""
        if self._children.killed():
            return False
        report(BuildEvent("start", self.key, self.index, step.name, text=shlex.join(step.argv)))
        environment = {**os.environ, "TMPDIR": str(self._work), "LC_ALL": "C"}
        try:
            done = self._children.run(step.argv, self._work, environment)
        except OSError as error:
            message = f"nvcc cannot be started: {error}"
            raise BuildError(Diagnostic("E0701", message, help="evt doctor")) from error
        if self._children.killed():
            return False
        report(BuildEvent("end", self.key, self.index, step.name, done.seconds, done.output))
        command = shlex.join(step.argv)
        self._done.append({"name": step.name, "command": command, "seconds": round(done.seconds, 3)})
        if done.returncode:
            raise self._failure(command, done.returncode, done.output)
        return True

    def _failure(self, command: str, returncode: int, output: str) -> BuildError:
        output += f"\nterminated by signal {-returncode}" if returncode < 0 else ""
        for pattern, code, message, mend in _NOT_OUR_BUG:
            if re.search(pattern, output, re.MULTILINE):
                return BuildError(Diagnostic(code, message.format(root=self._cache.root), help=mend))
        lines = [line.strip() for line in output.splitlines() if line.strip()]
        errors = [line for line in lines if re.search(r"\b(error|fatal|undefined reference)\b", line)]
        notes = tuple((errors or lines or [f"no message; exit status {returncode}"])[:3])
        kept = self._cache.keep_failure(self.key, self.source.text, f"$ {command}\n{output}\n")
        message = f"nvcc did not accept generated code for {self.source.gencode}: this is a bug in evt"
        mend = f"please report it with the source and the log in {kept}"
        return BuildError(Diagnostic("E0703", message, help=mend, notes=notes))

    def _record(self) -> Mapping[str, object]:
        return {
            "gencode": self.source.gencode,
            "evt": __version__,
            "nvcc": self._toolchain.nvcc_version,
            "cutlass": self._toolchain.cutlass_version,
            "built": time.time(),
            "seconds": round(time.monotonic() - self._started, 3),
            "passes": self._done,
        }
