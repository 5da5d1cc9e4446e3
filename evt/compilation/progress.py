"""The progress of builds: a line on a terminal with the phase and the time, and the seconds of each phase."""

from __future__ import annotations

import contextlib
import json
import os
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from threading import Lock
from typing import Any

from evt.compilation.cache import RECORD, Cache
from evt.compilation.event import BuildEvent, Phases
from evt.compilation.source import KernelSource
from evt.diagnostics import visible
from evt.errors import BuildError
from evt.storage.trust import read_private

#: The number of earlier builds whose times predict the next one, and the largest size of a record in bytes.
_EARLIER, _MOST_RECORD = 64, 1 << 20
#: Held by the build whose line is shown.
_LINE = Lock()


@contextlib.contextmanager
def shown(sources: Sequence[KernelSource], cache: Cache, jobs: int | None, *, hidden: bool) -> Iterator[_Display]:
    """Yield a listener to a build that shows its progress on a terminal, unless ``hidden``.

    Nothing is shown before the first compiler starts, and beside another build of this process.
    """
    with ExitStack() as line:
        visible = not hidden and _is_terminal() and _LINE.acquire(blocking=False)
        if visible:
            line.callback(_LINE.release)
        yield _Display(sources, cache, jobs, line, visible=visible)


def _is_terminal() -> bool:
    try:
        return sys.stderr is not None and sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
    except ValueError:  # closed
        return False


class _Display:
    """The listener of :func:`shown`, which opens the line by ``line``."""

    def __init__(
        self, sources: Sequence[KernelSource], cache: Cache, jobs: int | None, line: ExitStack, *, visible: bool
    ) -> None:
        self._sources, self._cache, self._jobs, self._line, self._visible = sources, cache, jobs, line, visible
        self._phases, self._ready, self._begun, self._now = Phases(), set[int](), set[int](), ""
        #: The seconds of each phase in earlier builds, and the expected ends of running phases.
        self._expected: dict[str, float] = {}
        self._ends: dict[tuple[str, str], float] = {}
        self._update: Any = None

    def __call__(self, event: BuildEvent) -> None:
        if not self._visible:
            return
        phase = self._phases.after(event)
        if self._update is None and event.kind in ("start", "wait"):
            self._update = self._opened()
        if event.kind in ("hit", "built", "failed"):
            self._ready.add(event.index)
        elif event.kind == "start":
            source = self._sources[event.index]
            self._now = f"{source.kernel or 'kernel'} for {source.gencode}"
            self._begun.add(event.index)
            self._ends[event.key, event.stage] = time.monotonic() + self._expected.get(event.stage, 0.0)
        elif event.kind in ("end", "fallback"):
            self._ends.pop((event.key, event.stage), None)
        if self._update is not None:
            self._update(self._text(phase))

    def remaining(self, jobs: int) -> float:
        """Return the expected seconds of the running phases, and of the kernels that have not begun."""
        ends, stages = [*self._ends.values()], {stage for _, stage in [*self._ends]}
        turns = -(-(len(set(self._sources)) - len(self._ready | self._begun)) // jobs)
        longest = max((self._expected.get(stage, 0.0) for stage in stages), default=0.0)
        return max(ends, default=0.0) - time.monotonic() + turns * longest

    def _text(self, phase: str) -> str:
        count = len(set(self._sources))
        number = f"{len(self._ready)} of {count} kernels ready, " if count > 1 else ""
        return visible(f"evt: {number}{': '.join(filter(None, (self._now, phase)))}")

    def _opened(self) -> Any:
        """Show the line; return the function that changes its text. rich is imported only here."""
        from rich.console import Console
        from rich.progress import Progress, ProgressColumn, SpinnerColumn, Task, TextColumn, TimeElapsedColumn
        from rich.text import Text

        from evt.compilation.process import default_jobs

        self._expected = expected_seconds(self._cache, {source.gencode for source in self._sources})
        display, jobs = self, self._jobs or default_jobs()

        class Remaining(ProgressColumn):
            """The remaining seconds, while the build is within the time that earlier ones took."""

            def render(self, task: Task) -> Text:
                left = display.remaining(jobs)
                return Text(f"about {left:.0f} s left" if left >= 1 else "")

        columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn(), Remaining())
        progress = self._line.enter_context(Progress(*columns, console=Console(stderr=True), transient=True))
        task = progress.add_task("")
        return lambda text: progress.update(task, description=text)


def expected_seconds(cache: Cache, gencodes: set[str]) -> dict[str, float]:
    """Return the median time of each phase in the last builds for these architectures, or for all."""
    ours, others = defaultdict[str, list[float]](list), defaultdict[str, list[float]](list)
    for entry in cache.entries()[-_EARLIER:]:
        with contextlib.suppress(BuildError, OSError, ValueError, LookupError, TypeError, AttributeError):
            record = json.loads(read_private(entry.library.parent / RECORD, _MOST_RECORD))
            for each in record["passes"]:
                (ours if record["gencode"] in gencodes else others)[each["name"]].append(float(each["seconds"]))
    return {stage: statistics.median(ours.get(stage) or others[stage]) for stage in {*ours, *others}}


class Times:
    """A listener that adds up the seconds of each phase, waiting for other processes included."""

    def __init__(self) -> None:
        self._seconds, self._waiting = defaultdict[str, float](float), dict[str, float]()

    def __call__(self, event: BuildEvent) -> None:
        now = time.monotonic()
        if (since := self._waiting.pop(event.key, None)) is not None:
            self._seconds["waiting"] += now - since
        if event.kind == "wait":
            self._waiting[event.key] = now
        elif event.kind == "end":
            self._seconds[event.stage] += event.seconds

    def __str__(self) -> str:
        longest_first = sorted(self._seconds.items(), key=lambda each: -each[1])
        return ", ".join(f"{phase} {seconds:.1f} s" for phase, seconds in longest_first)
