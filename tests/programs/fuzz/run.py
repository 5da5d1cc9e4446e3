"""A run of the fuzzer: plan, build, launch and judge, side by side and within a time: ``Run(options).all()``."""

from __future__ import annotations

import contextlib
import os
import queue
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from evt.compilation import BuildEvent, KernelSource, build
from evt.errors import EvtError
from evt.plan import Target, find_target

from ..checks import make
from ..shrink import shrink_together
from ..tree import Program
from .calls import Call, made_call
from .cases import Case, draw_case
from .judge import Verdict, judge
from .kinds import ROUTES, TYPES, Slot, schedule
from .launch import PATIENCE, Fault, Launch, StuckError, launched
from .memory import MARGIN
from .reproduce import describe
from .table import Table

#: Seconds before the end of a run in which no pass of nvcc starts.
RESERVE = 30.0
#: The reason a kernel was not built.
LATE = "there was no time to build it"
#: Seconds between two lines that tell how far a run is.
SAYING = 60.0
#: The most programs tried to reduce a failure, and the time limit in seconds.
MOST_TRIED, SHRINK_SECONDS = 400, 180.0


@dataclass(frozen=True)
class Options:
    """The settings of a run.

    ``device`` "cpu" takes the reference for the kernels, which checks the fuzzer itself; "none" only builds.
    """

    count: int = 100
    seed: int = 0
    minutes: float = 60.0
    routes: Sequence[str] = ROUTES
    types: Sequence[str] = TYPES
    launches: int = 4
    jobs: int = 1
    target: str = "sm90"
    device: str = "cuda"
    shrink: int = 3
    save: Path | None = None


@dataclass(frozen=True)
class Finding:
    """A problem that fails, and how."""

    case: Case
    problem: Program
    faults: tuple[Fault, ...]

    @property
    def name(self) -> str:
        return f"{self.case.index}-{self.faults[0].kind}"

    def __str__(self) -> str:
        lines = [f"{each.kind}: {each.detail}" for each in self.faults]
        return "\n".join(
            [f"# {self.case.route}, {self.case.types}, case {self.case.index}", *(f"# {e}" for e in lines)]
        )


class FatalError(Exception):
    """The GPU is of no further use to this process."""


@dataclass
class Run:
    options: Options
    launch: Callable[[Call], None] = Call.run
    table: Table = field(default_factory=Table)
    findings: list[Finding] = field(default_factory=list)
    late: int = 0

    def __post_init__(self) -> None:
        self.target: Target = find_target(self.options.target)
        self.until = time.monotonic() + 60 * self.options.minutes
        self.builders = ThreadPoolExecutor(self.options.jobs, thread_name_prefix="builder")
        self.workers: ProcessPoolExecutor | None = None
        if self.options.jobs > 1:
            self.workers = ProcessPoolExecutor(
                self.options.jobs, mp_context=get_context("spawn"), initializer=initialise
            )
        self._programs: dict[object, Any] = {}

    # Stages

    def cases(self) -> Iterator[Case]:
        """Yield the cases of the schedule in their order, and report the ones that cannot be drawn."""
        slots = schedule(self.options.count, self.options.routes, self.options.types)
        draw = partial(draw_slot, self.options.seed, self.options.target, self.options.launches)
        made: Iterable[Case | None] = self.workers.map(draw, slots) if self.workers else map(draw, slots)
        for slot, case in zip(slots, made, strict=True):
            if case is None:
                print(f"no program for {slot.kind.route}, {slot.pair} (case {slot.index})", flush=True)
                continue
            self.table.cover(case)
            self.table.add(case, refused=case.refused)
            yield case

    def all(self) -> int:
        """Run every case; return the exit code."""
        ready: queue.Queue[tuple[Case, float, str]] = queue.Queue()
        judged: list[tuple[Case, Program, Launch, Future[Verdict]]] = []
        try:
            waiting = 0
            for case in self.cases():
                self.builders.submit(self._built, case, ready)
                waiting += 1
                while not ready.empty():
                    waiting -= 1
                    judged += self.launched(*ready.get())
            said = time.monotonic()
            while waiting and self.left > 0:
                with contextlib.suppress(queue.Empty):
                    judged += self.launched(*ready.get(timeout=min(self.left, 5.0)))
                    waiting -= 1
                if time.monotonic() - said > SAYING:
                    said = time.monotonic()
                    print(f"{len(judged)} launches, {waiting} kernels to come, {self.left:.0f} s left", flush=True)
            if waiting or self.late:
                print(f"the time is over: {waiting + self.late} kernels were not launched", flush=True)
        except FatalError as error:
            print(f"the run ends: {error}", flush=True)
        self._collect(judged)
        print(self.table, flush=True)
        self.shrink_all()
        print(f"{len(self.findings)} problems fail", flush=True)
        return 1 if self.findings else 0

    @property
    def left(self) -> float:
        """The seconds that are left."""
        return self.until - time.monotonic()

    def close(self) -> bool:
        """End the processes of the run; return whether no build is under way."""
        self.builders.shutdown(wait=False, cancel_futures=True)
        if self.workers:
            processes = list((self.workers._processes or {}).values())
            self.workers.shutdown(wait=self.left > 0, cancel_futures=True)
            for each in processes:
                each.terminate()
        for thread in self.builders._threads:
            thread.join(timeout=1.0)
        return not any(thread.is_alive() for thread in self.builders._threads)

    # Building

    def _built(self, case: Case, ready: queue.Queue[tuple[Case, float, str]]) -> None:
        started = time.monotonic()
        error = self.build(case.source)
        if self.left > 0:
            ready.put((case, time.monotonic() - started, error))

    def build(self, source: KernelSource) -> str:
        """Build a kernel; return why there is none, or ""."""
        if self.options.device == "cpu":
            return ""

        def in_time(event: BuildEvent) -> None:
            if event.kind == "start" and self.left < RESERVE:
                raise TimeoutError

        try:
            build([source], jobs=1, on_event=in_time)
        except TimeoutError:
            return LATE
        except EvtError as error:
            return str(error)
        return ""

    # Launching

    def program(self, problem: Program) -> Any:
        """Return evt's program, one object for all problems that differ in sizes."""
        words = problem.geometry.words if problem.geometry else ()
        key = problem.operation, problem.text, repr(problem.settings), repr(words)
        if key not in self._programs:
            self._programs = {key: make(problem)}
        return self._programs[key]

    def launched(
        self, case: Case, seconds: float, error: str
    ) -> Iterator[tuple[Case, Program, Launch, Future[Verdict]]]:
        """Launch a case's problems; yield each launch with the verdict that is being found."""
        self.table.add(case, seconds=seconds)
        if error:
            if error == LATE:
                self.late += 1
            else:
                self.found_wrong(case, case.program, [Fault("build", error)])
            return
        self.table.add(case, kernels=1)
        if self.options.device == "none":
            return
        for problem in case.problems:
            if self.left <= 0:
                return
            launch = self.attempt(problem, case.layouts, case.source, case)
            self.table.add(case, launches=1)
            if any(fault.kind == "error" for fault in launch.faults):
                self.found_wrong(case, problem, launch.faults)
                continue
            yield case, problem, launch, self._judged(problem, launch)

    def attempt(
        self,
        problem: Program,
        layouts: int,
        source: KernelSource | None,
        case: Case | None = None,
        margin: int = MARGIN,
    ) -> Launch:
        """Launch a problem. Raise FatalError, after noting the case, where the GPU fails."""
        deterministic = dict(problem.settings).get("deterministic") is not False
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                device = "cpu" if self.options.device == "none" else self.options.device
                call = made_call(problem, layouts, device, self.program(problem), margin)
                if self.options.device == "none":
                    refusal = self.build(call.source(self.target))
                    return Launch([Fault("build", refusal)] if refusal else [])
                if source is not None and call.source(self.target) != source:
                    return Launch([Fault("error", "the kernel on the GPU is not the one that was planned")])
                return launched(call, deterministic, self.launch, PATIENCE)
        except EvtError as error:
            return Launch([Fault("error", str(error))])
        except (RuntimeError, StuckError) as error:
            if case is not None:
                self.found_wrong(case, problem, [Fault("crash", str(error).splitlines()[0])])
            raise FatalError(str(error).splitlines()[0]) from error

    def _judged(self, problem: Program, launch: Launch) -> Future[Verdict]:
        if self.workers:
            return self.workers.submit(judge, problem, launch.outputs)
        future: Future[Verdict] = Future()
        try:
            future.set_result(judge(problem, launch.outputs))
        except Exception as error:
            future.set_exception(error)
        return future

    def _collect(self, judged: Sequence[tuple[Case, Program, Launch, Future[Verdict]]]) -> None:
        for case, problem, launch, future in judged:
            faults = list(launch.faults)
            try:
                verdict = future.result(timeout=max(self.left, 20.0))
            except TimeoutError:
                print(f"case {case.index} was not compared in time", flush=True)
            except Exception as error:
                faults.append(Fault("error", f"the outputs could not be compared: {type(error).__name__}: {error}"))
            else:
                faults += verdict.faults
                self.table.compared += verdict.compared
                self.table.doubted += verdict.doubted
            if faults:
                self.found_wrong(case, problem, faults)

    def found_wrong(self, case: Case, problem: Program, faults: Sequence[Fault]) -> None:
        kinds = {fault.kind for fault in faults}
        self.table.add(case, wrong=1, canaries=int("canary" in kinds))
        finding = Finding(case, problem, tuple(faults))
        self.findings.append(finding)
        self.say(finding, finding.problem, case.layouts, "")

    def say(self, finding: Finding, problem: Program, layouts: int, word: str) -> None:
        """Print the command that reproduces a failure, and write it to a file if the run asks for it."""
        text = f"{finding}\n{describe(problem, layouts)}\n"
        print(f"== fails{word}\n{text}", flush=True)
        if self.options.save:
            self.options.save.mkdir(parents=True, exist_ok=True)
            (self.options.save / f"case-{finding.name}{word.replace(' ', '-')}.txt").write_text(text)

    # Shrinking

    def shrink_all(self) -> None:
        """Print the first failures of each kind, made small."""
        seen: list[str] = []
        for finding in self.findings:
            kind = finding.faults[0].kind
            if kind in ("crash", "build") or seen.count(kind) >= self.options.shrink or self.left < RESERVE:
                continue
            seen.append(kind)
            try:
                problem, layouts = self.smallest(finding)
            except FatalError as error:
                print(f"the run ends: {error}", flush=True)
                return
            self.say(finding, problem, layouts, " made small")

    def smallest(self, finding: Finding) -> tuple[Program, int]:
        """Return the smallest problem that fails in one of the ways of a finding, and its number ``layouts``."""
        kinds = {fault.kind for fault in finding.faults}
        until = time.monotonic() + min(SHRINK_SECONDS, max(self.left - RESERVE, 0))
        forced = [each for each in finding.problem.settings if each[0] in ("route", "config")]
        layouts = finding.case.layouts

        def same_kernel(program: Program) -> Program:
            others = [each for each in program.settings if each[0] not in ("route", "config")]
            return replace(program, settings=(*others, *forced))

        def source(program: Program) -> KernelSource | None:
            try:
                return made_call(same_kernel(program), layouts, "cpu").source(self.target)
            except Exception:
                return None  # not a program, or no kernel on the route

        def fails(program: Program) -> bool:
            launch = self.attempt(program, layouts, None)
            try:
                faults = [*launch.faults, *(judge(program, launch.outputs).faults if launch.outputs else ())]
            except Exception:
                return False
            return bool(kinds & {fault.kind for fault in faults})

        def first(group: Sequence[Program]) -> Program | None:
            if time.monotonic() > until:
                return None
            sources = [(each, found) for each in group if (found := source(each)) is not None]
            list(self.builders.map(self.build, [found for _, found in sources]))
            return next((each for each, _ in sources if fails(same_kernel(each))), None)

        if layouts:
            layouts = 0
            if first([finding.problem]) is None:
                layouts = finding.case.layouts
        together = max(1, self.options.jobs)
        return same_kernel(shrink_together(finding.problem, first, together, MOST_TRIED)), layouts


def draw_slot(seed: int, target: str, launches: int, slot: Slot) -> Case | None:
    return draw_case(slot, seed, find_target(target), launches)


def initialise() -> None:
    """Prepare a worker: its share of the machine is one core, and it needs no GPU."""
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    import torch

    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    sys.setrecursionlimit(10_000)
