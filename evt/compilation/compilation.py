"""The compilation of one recipe to an artifact of the cache: its steps in parallel, then the last one."""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from evt.compilation.cache import SOURCE, Cache
from evt.compilation.dependencies import Read, files_read
from evt.compilation.environment import compiler_environment, is_plain
from evt.compilation.event import BuildEvent, Reporter
from evt.compilation.jit import JitError
from evt.compilation.limits import require_files
from evt.compilation.lock import KeyLock
from evt.compilation.process import Children, Supervisor
from evt.compilation.recipe import TOOLKIT, Formula, Pass, Recipe
from evt.compilation.toolchain import Toolchain, toolkit_home
from evt.compilation.verdict import verdict
from evt.diagnostics import Diagnostic
from evt.errors import BuildError


class Compilation:
    """The compilation of one key, whose lock it holds until its passes have ended, or until ``close``.

    ``run`` is called once per pass, from any thread. A failure does not raise: it is added to ``problems``, a success
    to ``made``. ``unchanged`` returns whether the inputs in the key are unchanged. If they changed, the compilers
    may have read either version.
    """

    def __init__(
        self,
        key: str,
        index: int,
        recipe: Recipe,
        toolchain: Toolchain,
        cache: Cache,
        lock: KeyLock,
        supervisor: Supervisor,
        unchanged: Callable[[], bool],
    ) -> None:
        self.key, self.index, self.recipe, self.steps = key, index, recipe, recipe.steps
        _, self._links = toolchain.linked()
        self._home = toolkit_home(toolchain.nvcc)
        if toolchain.host_compiler and self._home:
            self._links[TOOLKIT] = self._home
        self.problems: tuple[Diagnostic, ...] = ()
        self.made: Path | None = None
        self._toolchain, self._cache, self._lock, self._unchanged = toolchain, cache, lock, unchanged
        self._supervisor, self._children, self._mutex = supervisor, Children(supervisor), threading.Lock()
        #: The numbers of steps that have yet to succeed, and to end.
        self._left = self._open = len(self.steps)
        self._started, self._wall = time.monotonic(), time.time_ns()
        self._done: list[dict[str, object]] = []
        self._of_parts: Read = {}
        self._work = cache.workspace(key, {SOURCE: recipe.source.text, **recipe.files}, self._links)

    @property
    def has_fallback(self) -> bool:
        return self.recipe.has_fallback

    def tasks(self, report: Reporter) -> list[Callable[[], None]]:
        """Return a call of ``run`` for each step."""
        return [partial(self.run, step, report) for step in self.steps]

    def run(self, step: Pass | Formula, report: Reporter) -> None:
        """Run one step; the last one to finish runs the recipe's last step and publishes."""
        try:
            ok = self._run(step, report) if isinstance(step, Pass) else self._run_formula(step, report)
            with self._mutex:
                self._left -= ok
                last = ok and self._left == 0
            if last and (self.recipe.last is None or self._run(self.recipe.last, report)):
                self.made = self._cache.publish(self.key, self._work, self._facts(), self.recipe.artifact)
                report(BuildEvent("built", self.key, self.index, seconds=time.monotonic() - self._started))
        except BuildError as error:
            problems = error.diagnostics
            if not self._work.is_dir():
                message = f"the directory {self._work} was removed while nvcc was at work in it"
                problems = (Diagnostic("E0704", message, help="build again"),)
            with self._mutex:
                first, self.problems = not self.problems, self.problems or problems
            self._children.kill()  # the other pass is useless now
            if first and not self.recipe.has_fallback:
                report(BuildEvent("failed", self.key, self.index, step.name, text=problems[0].message))
        finally:
            with self._mutex:
                self._open -= 1
                ended = self._open == 0
            if ended:
                self.close()

    def _facts(self) -> dict[str, object]:
        """Return the content of the artifact's record."""
        return {"kernel": self.recipe.source.kernel, "read": self._read(), **self._record()}

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

    def _run_formula(self, step: Formula, report: Reporter) -> bool:
        """Run a formula's step. Raise BuildError if it fails: nvcc compiles the whole file then."""
        if self._children.killed():
            return False
        report(BuildEvent("start", self.key, self.index, step.name, text="nvrtc, nvJitLink"))
        started = time.monotonic()
        try:
            self._of_parts = step.run(self._work, self._cache.read)
        except (JitError, OSError, ValueError, LookupError) as error:
            log = error.log.strip().splitlines() if isinstance(error, JitError) else ()
            raise BuildError(Diagnostic("E0703", str(error), notes=tuple(log[:3]))) from error
        seconds = time.monotonic() - started
        report(BuildEvent("end", self.key, self.index, step.name, seconds))
        self._done.append({"name": step.name, "command": "nvrtc, nvJitLink", "seconds": round(seconds, 3)})
        return not self._children.killed()

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
        rules = [self._work / f"{step.name}.d" for step in self.steps if isinstance(step, Pass)]
        try:
            read, changed = files_read(self._work, rules, ("cutlass", "evt"), self._home)
        except OSError as error:
            require_files(error)
            message = f"nvcc does not report the files that it has read: {error}"
            raise BuildError(Diagnostic("E0701", message, help="set CUDACXX to another nvcc")) from error
        if changed > self._wall or not self._unchanged():
            message = "a header or a compiler was changed while nvcc was at work"
            raise BuildError(Diagnostic("E0707", message, help="build again"))
        return {**self._of_parts, **read}

    def _failure(self, command: str, returncode: int, output: str) -> BuildError:
        output += f"\nterminated by signal {-returncode}" if returncode < 0 else f"\nexit status {returncode}"
        kept = self._cache.failed(self.key)
        problem = verdict(self.recipe.source, self._toolchain, output, self._cache.root, kept)
        links = "".join(f"# {name} is a link to {target}\n" for name, target in self._links.items())
        with contextlib.suppress(BuildError):  # a full disk, for example: a worse error follows
            self._cache.keep_failure(self.key, self.recipe.source.text, f"{links}$ {command}\n{output}\n", [problem])
        return BuildError(problem)

    def _record(self) -> Mapping[str, object]:
        return {
            "gencode": self.recipe.source.gencode,
            "nvcc": self._toolchain.nvcc_version,
            "cutlass": self._toolchain.cutlass_version,
            "built": time.time(),
            "seconds": round(time.monotonic() - self._started, 3),
            "links": {name: str(target) for name, target in self._links.items()},
            "passes": self._done,
        }
