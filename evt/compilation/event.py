"""The events of a running build."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from evt.diagnostics import visible


@dataclass(frozen=True, slots=True)
class BuildEvent:
    """One step of a build.

    ``hit`` (found in the cache), ``damaged`` (an entry is rebuilt; ``text`` is the reason), ``wait`` (another process
    builds it), ``start`` and ``end`` of a pass (``text``: the command, then its output), ``fallback`` (a slower way
    continues; ``text`` is the reason), ``built``, ``failed``.
    """

    kind: Literal["hit", "damaged", "wait", "start", "end", "fallback", "built", "failed"]
    key: str
    index: int  # position of the source in the sequence given to ``build``
    stage: str = ""  # for start and end: device, host, formula or link
    seconds: float = 0.0  # wall time in seconds, for end and built
    text: str = ""

    def __str__(self) -> str:
        time = f"{self.seconds:.1f} s" if self.seconds else ""
        words = (self.key[:12], self.kind, self.stage, time, visible(self.text.rstrip(), keep="\n\t"))
        return " ".join(word for word in words if word)


#: The work of a build in each of its stages.
_PHASES = {
    "device": "compiling the kernel",
    "host": "compiling the launcher",
    "formula": "compiling the formula",
    "link": "linking",
}


class Phases:
    """The current work, from the events of builds."""

    def __init__(self) -> None:
        self._running: set[tuple[str, str]] = set()

    def after(self, event: BuildEvent) -> str:
        """Return the work that follows an event, as text; "" if it is unknown."""
        if event.kind == "wait":
            return "waiting for another process that builds it"
        if event.kind == "start":
            self._running.add((event.key, event.stage))
        elif event.kind in ("end", "fallback"):
            self._running.discard((event.key, event.stage))
        else:
            self._running = {each for each in self._running if each[0] != event.key}
        stages = {stage for _, stage in self._running}
        known = [stage for stage in _PHASES if stage in stages]
        return " and ".join(_PHASES.get(stage, stage) for stage in (*known, *sorted(stages - {*known})))


class Reporter:
    """A dispatcher of events to listeners, one at a time although passes run in threads; prints if verbose."""

    def __init__(self, listeners: Sequence[Callable[[BuildEvent], None]], verbose: bool) -> None:
        self._listeners, self._verbose, self._mutex = listeners, verbose, threading.Lock()

    def __call__(self, event: BuildEvent) -> None:
        with self._mutex:
            if self._verbose:
                print(f"evt: {event}", file=sys.stderr, flush=True)
            for listener in self._listeners:
                listener(event)
