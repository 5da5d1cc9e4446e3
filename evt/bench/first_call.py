"""First calls of compiled models with empty caches, and in a second process: ``first_calls(names) -> results``.

Each measurement is a separate process. The caches of PyTorch, Triton and evt are temporary directories, one for each
model and version. The first process finds them empty, and the second one finds the content of the first. The time is
that of the first call alone: imports, the model, and an eager call that starts the GPU's libraries come before.

    python -m evt.bench.first_call '{"name": "resnet50", "version": "evt", ...}'       one process
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from evt.bench.compiled import COMPILE, EVT, Progress, compiled, work_of
from evt.bench.machine import require_gpu
from evt.bench.models import MODELS
from evt.bench.run import reason

#: The processes of a version, and the accepted ratios of evt's time to torch.compile's.
BARS = {"first": 2.0, "second": 1.2}
#: The most seconds of a process.
_PATIENCE = 3600
#: The environment variables that name the directories of caches.
_CACHES = ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "EVT_CACHE_DIR")


@dataclass
class FirstCalls:
    """The first calls of a model, by version and process ("first", "second").

    ``seconds`` are wall times. ``cpu_seconds`` count the process and its ended children. ``failures`` has the reasons
    for missing times by version.
    """

    name: str
    dtype: str
    batch: int
    training: bool = False
    seconds: dict[str, dict[str, float]] = field(default_factory=dict)
    cpu_seconds: dict[str, dict[str, float]] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)

    @property
    def title(self) -> str:
        return f"{self.name}, {self.dtype}, batch {self.batch}{', a training step' if self.training else ''}"

    @property
    def ratios(self) -> dict[str, float]:
        """The ratios of evt to torch.compile by process."""
        ours, theirs = (self.seconds.get(version, {}) for version in (EVT, COMPILE))
        return {process: ours[process] / theirs[process] for process in BARS if process in ours and process in theirs}

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "ratios": self.ratios}

    def __str__(self) -> str:
        lines = [self.title]
        for version in dict.fromkeys((*self.seconds, *self.failures)):
            times = self.seconds.get(version, {})
            cpu = self.cpu_seconds.get(version, {})
            said = [f"{each} process {times[each]:7.2f} s ({cpu[each]:.1f} CPU s)" for each in times]
            lines.append(f"  {version:<16} {'  '.join((*said, self.failures.get(version, ''))).rstrip()}")
        said = [
            f"{process} process {ratio:.2f}{f', above {BARS[process]}' if ratio > BARS[process] else ''}"
            for process, ratio in self.ratios.items()
        ]
        return "\n".join((*lines, f"  evt / torch.compile: {'; '.join(said) or 'not measured'}"))


def first_calls(
    names: Sequence[str],
    dtypes: Sequence[str] = (),
    *,
    training: bool = False,
    batch: int | None = None,
    versions: Sequence[str] = (COMPILE, EVT),
    progress: Progress = lambda text: None,
) -> Iterator[FirstCalls]:
    """Yield the first calls of models, each in the given types or in its usual type.

    Raise LaunchError (E0801) without a GPU.
    """
    device = require_gpu()
    wanted = [
        FirstCalls(name, dtype, batch or MODELS[name].batch, training)
        for name in names
        for dtype in dtypes or (MODELS[name].dtype,)
    ]

    def run() -> Iterator[FirstCalls]:
        for result in wanted:
            for version in versions:
                _measure(result, version, device, progress)
            yield result

    return run()


def _measure(result: FirstCalls, version: str, device: torch.device, progress: Progress) -> None:
    """Measure a version in two processes, which share their caches."""
    job = {
        "name": result.name,
        "dtype": result.dtype,
        "batch": result.batch,
        "training": result.training,
        "version": version,
        "device": str(device),
    }
    with tempfile.TemporaryDirectory(prefix="evt-first-call-") as folder:
        for process in BARS:
            progress(f"{result.title}: {version}, {process} process")
            found = run_process(job, Path(folder))
            if isinstance(found, str):
                result.failures[version] = f"{process} process: {found}"
                return
            result.seconds.setdefault(version, {})[process] = found["seconds"]
            result.cpu_seconds.setdefault(version, {})[process] = found["cpu_seconds"]


def run_process(job: dict[str, Any], folder: Path) -> dict[str, float] | str:
    """Return the times of :func:`measure` in a new process with its caches in a folder, or why there are none."""
    environment = {**os.environ, **{name: str(folder / name.partition("_")[0].lower()) for name in _CACHES}}
    command = [sys.executable, "-m", __name__, json.dumps(job)]
    try:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=_PATIENCE)
    except subprocess.TimeoutExpired:
        return f"it takes more than {_PATIENCE} s"
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode == 0 and lines:
        found: dict[str, float] = json.loads(lines[-1])
        return found
    said = [line.strip() for line in done.stderr.splitlines() if line.strip()]
    return said[-1] if said else f"it ended with exit code {done.returncode}"


def measure(
    name: str, dtype: str, batch: int, version: str, device: str, *, training: bool = False
) -> dict[str, float]:
    """Return the wall and CPU seconds of a model's first call in this process."""
    torch.manual_seed(0)
    with torch.set_grad_enabled(training):
        place = torch.device(device)
        work = work_of(MODELS[name].make().eval().to(place), name, place, getattr(torch, dtype), batch, training)
        work.run(work.model)
        synchronize(place)
        function = compiled(work.model, version)
        start, cpu = time.perf_counter(), _cpu_seconds()
        work.run(function)
        synchronize(place)
        return {"seconds": time.perf_counter() - start, "cpu_seconds": _cpu_seconds() - cpu}


def synchronize(device: torch.device) -> None:
    """Wait for a GPU; a CPU has nothing to wait for."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _cpu_seconds() -> float:
    """Return the CPU seconds of this process and of its ended children."""
    return sum(os.times()[:4])


if __name__ == "__main__":
    try:
        print(json.dumps(measure(**json.loads(sys.argv[1]))))
    except Exception as problem:  # a package or a compiler may raise any exception
        sys.exit(reason(problem))
