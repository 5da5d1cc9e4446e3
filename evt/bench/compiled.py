"""Whole models through eager PyTorch, torch.compile and ``backend="evt"``: ``bench_models(names) -> results``.

A sample of the wall time is a call as a user makes it, host time included. The GPU time is that of the same call in a
CUDA graph. The versions of a model take turns. Inference is measured in the model's type; a training step, forward and
backward, under autocast to that type, without the optimizer's update. Images are channels_last.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import BrokenExecutor, Executor, ProcessPoolExecutor, as_completed
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from importlib.util import find_spec
from multiprocessing import get_context
from typing import Any

import torch

from evt.bench.machine import require_gpu
from evt.bench.models import MODELS, memory_format
from evt.bench.run import reason
from evt.compilation import KernelSource
from evt.errors import BuildError
from evt.fx.kernels import build_all

Progress = Callable[[str], object]

EAGER, COMPILE, EVT = "eager", "compile", "evt"
#: The versions by name, with the arguments of torch.compile; eager PyTorch has none.
VERSIONS: Mapping[str, Mapping[str, Any] | None] = {
    EAGER: None,
    COMPILE: {},
    "max-autotune": {"mode": "max-autotune"},
    EVT: {"backend": "evt"},
    "evt-measured": {"backend": "evt", "options": {"evt.tune": True}},
    "evt-max-autotune": {"backend": "evt", "mode": "max-autotune"},
}
#: The default versions.
DEFAULT_VERSIONS = (EAGER, COMPILE, EVT)
#: The largest ratio of evt's time to torch.compile's that counts as "not slower": repeated runs differ by 1 to 2 %.
BAR = 1.02
_WARM_UPS = 4
#: The factor of a loss, as in GradScaler: without it 16-bit gradients would vanish.
_SCALE = 65536.0
#: A gradient may be rounding noise only, such as the gradient of a bias before a softmax: errors are relative to at
#: least this.
_LEAST = 1e-3
#: The largest number of processes that trace models at a time: each holds a model on the GPU.
_TRACERS = 8


@dataclass
class ModelResult:
    """A model in a type, by version.

    ``times`` are medians of a call in ms; ``gpu_times`` are medians of its CUDA graph. ``first`` is the time of the
    first call, which compiles, in seconds. ``kernels`` counts the launches of a call. ``errors`` are relative to eager
    in f32: of the result, or of the worst parameter's gradient. ``saved`` are the bytes that a forward pass leaves
    allocated for the backward. ``products`` has for each of evt's graphs the number of products, of fused products, and
    of the operators that they absorbed. ``failures`` has the reasons for missing times by version, ``skipped`` for
    missing versions.
    """

    name: str
    dtype: str
    batch: int
    training: bool = False
    times: dict[str, float] = field(default_factory=dict)
    gpu_times: dict[str, float] = field(default_factory=dict)
    first: dict[str, float] = field(default_factory=dict)
    kernels: dict[str, int] = field(default_factory=dict)
    errors: dict[str, float] = field(default_factory=dict)
    saved: dict[str, int] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)
    products: dict[str, dict[str, tuple[int, int, int]]] = field(default_factory=dict)
    skipped: str = ""

    @property
    def title(self) -> str:
        return f"{self.name}, {self.dtype}, batch {self.batch}{', a training step' if self.training else ''}"

    @property
    def ratios(self) -> dict[str, float]:
        """The ratios of evt to torch.compile: ``wall``, and ``gpu`` if both have a CUDA graph."""
        times = {"wall": self.times, "gpu": self.gpu_times}
        return {kind: each[EVT] / each[COMPILE] for kind, each in times.items() if {EVT, COMPILE} <= each.keys()}

    @property
    def is_slower(self) -> bool:
        """True if evt is slower than torch.compile by more than :data:`BAR`."""
        return any(ratio > BAR for ratio in self.ratios.values())

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "ratios": self.ratios}

    def line(self, version: str) -> str:
        """Return the numbers of a version, or the reason that there are none."""
        if version not in self.times:
            return f"  {version:<16} {self.failures[version]}"
        gpu = f"GPU {self.gpu_times[version]:9.3f} ms" if version in self.gpu_times else " " * 16
        said = f"{self.times[version]:9.3f} ms  {gpu}  {self.kernels[version]:5} kernels"
        said += f"  first call {self.first[version]:5.1f} s  error {self.errors[version]:.1e}"
        if version in self.saved:
            said += f"  saved {self.saved[version] / 1e6:.0f} MB"
        for graph, (products, fused, absorbed) in self.products.get(version, {}).items():
            said += f"  {graph}{' ' if graph else ''}{fused} of {products} products fused, with {absorbed} operators"
        if version in self.failures:
            said += f"  {self.failures[version]}"
        return f"  {version:<16} {said}"

    @property
    def verdict(self) -> str:
        """The ratios as text, or the reason that nothing was measured."""
        if self.skipped:
            return f"skipped: {self.skipped}"
        words = {"wall": "wall time", "gpu": "GPU time"}
        said = ", ".join(f"{words[kind]} {ratio:.3f}" for kind, ratio in self.ratios.items())
        if not said:
            return f"evt / torch.compile: not measured{self._why}"
        return f"evt / torch.compile: {said}{f', above {BAR}' if self.is_slower else ''}"

    @property
    def _why(self) -> str:
        missing = [f"{version}: {self.failures[version]}" for version in (COMPILE, EVT) if version in self.failures]
        return f" ({'; '.join(missing)})" if missing else ""

    def __str__(self) -> str:
        known = [version for version in VERSIONS if version in self.times or version in self.failures]
        return "\n".join((self.title, *map(self.line, known), f"  {self.verdict}"))


def bench_models(
    names: Sequence[str],
    dtypes: Sequence[str] = (),
    *,
    training: bool = False,
    batch: int | None = None,
    versions: Sequence[str] = DEFAULT_VERSIONS,
    rounds: int = 31,
    build_first: bool = False,
    progress: Progress = lambda text: None,
) -> Iterator[tuple[ModelResult, str]]:
    """Measure models one after the other, each in the given types or in its usual type.

    Yield a model's result and the version, once for each version: the result has the times of all versions so far. A
    model that cannot be made is yielded once, without a version. ``build_first`` builds the kernels of all models
    before, in parallel. Raise LaunchError (E0801) without a GPU.
    """
    device = require_gpu()
    wanted = [
        ModelResult(name, dtype, batch or MODELS[name].batch, training)
        for name in names
        for dtype in dtypes or (MODELS[name].dtype,)
    ]

    def run() -> Iterator[tuple[ModelResult, str]]:
        if build_first:
            with ProcessPoolExecutor(min(_TRACERS, os.cpu_count() or 1, len(wanted)), get_context("spawn")) as pool:
                build_kernels(wanted, device, pool, progress)
        for result in wanted:
            progress(result.title)
            with torch.set_grad_enabled(training):
                yield from _measure(result, device, versions, rounds, progress)
            torch.cuda.empty_cache()

    return run()


def build_kernels(wanted: Sequence[ModelResult], device: torch.device, pool: Executor, progress: Progress) -> None:
    """Build the kernels that models need with ``backend="evt"``; a model that fails here fails again when measured."""
    traced = [pool.submit(sources_of, each.name, each.dtype, each.batch, each.training, device) for each in wanted]
    sources: dict[KernelSource, None] = {}
    for count, done in enumerate(as_completed(traced), 1):
        with suppress(BrokenExecutor):  # a process that ran out of memory
            sources |= dict.fromkeys(done.result())
        progress(f"{count} of {len(traced)} models traced, {len(sources)} kernels")
    with suppress(BuildError):  # the model of this kernel reports it
        build_all(list(sources))


def sources_of(name: str, dtype: str, batch: int, training: bool, device: torch.device) -> list[KernelSource]:
    """Return the sources of a model's kernels; none for a model that cannot be made or compiled."""
    from evt.fx.prebuild import kernels_of

    with suppress(Exception), torch.set_grad_enabled(training):  # a package or a compiler may raise any exception
        kind: torch.dtype = getattr(torch, dtype)
        work = work_of(MODELS[name].make().eval().to(device), name, device, kind, batch, training)
        args, keywords = work.inputs
        with work.autocast():
            return kernels_of(work.model, args or keywords, dynamic=False)[0]
    return []


def work_of(
    made: torch.nn.Module, name: str, device: torch.device, kind: torch.dtype, batch: int, training: bool
) -> Work:
    """Return the work to measure for a model in f32: in a type, or for training under autocast to the type."""
    inputs = MODELS[name].inputs(device, kind, batch)
    model: Any = made if training else made.to(kind)
    images = [each for each in (*inputs[0], *inputs[1].values()) if each.ndim > 3]
    if images:
        model = model.to(memory_format=memory_format(images[0].shape))
    return Work(model, inputs, kind, training)


def _measure(
    result: ModelResult, device: torch.device, versions: Sequence[str], rounds: int, progress: Progress
) -> Iterator[tuple[ModelResult, str]]:
    """Yield a model's result after each version."""
    known = MODELS[result.name]
    torch.manual_seed(0)
    torch._dynamo.reset()
    try:
        made = known.make().eval().to(device)
    except Exception as problem:  # a package may raise any exception
        missing = isinstance(problem, ImportError) and find_spec(known.package) is None
        result.skipped = f"{known.package} is not installed" if missing else reason(problem)
        yield result, ""
        return
    exact = known.inputs(device, torch.float32, result.batch)
    with torch.backends.cudnn.flags(allow_tf32=False):  # type: ignore[no-untyped-call, unused-ignore]
        if result.training:
            _fill_zeros(made)
        else:
            _settle(made, lambda: made(*exact[0], **exact[1]))
        want = Work(made, exact, None, result.training).results(made)
    work = work_of(made, result.name, device, getattr(torch, result.dtype), result.batch, result.training)
    calls: dict[str, Callable[[], object]] = {}
    replays: dict[str, Callable[[], object]] = {}
    for version in versions:
        progress(f"{result.title}: {version}")
        try:
            calls[version] = _prepared(result, version, work, want)
        except Exception as problem:  # a compiler may raise any exception
            result.failures[version] = reason(problem)
            yield result, version
            continue
        if version != EAGER and "mode" not in (VERSIONS[version] or {}):  # max-autotune already uses CUDA graphs
            try:
                replays[version] = _captured(calls[version])
            except Exception as problem:
                result.failures[version] = f"no CUDA graph: {reason(problem)}"
        result.times.update(_timed(calls, rounds))
        result.gpu_times.update(_timed(replays, rounds))
        yield result, version


def _prepared(result: ModelResult, version: str, work: Work, want: Sequence[torch.Tensor]) -> Callable[[], object]:
    """Return a call of a version, compiled and warm; put everything but times into the result."""
    function = compiled(work.model, version)
    start = time.perf_counter()
    found = work.results(function)
    result.first[version] = time.perf_counter() - start
    result.errors[version] = _error(found, want)
    for _ in range(_WARM_UPS):
        work.run(function)
    result.kernels[version] = _launched(lambda: work.run(function))
    if result.training:
        result.saved[version] = work.saved(function)
    if version.startswith(EVT):
        result.products[version] = _products(work.model)
    return lambda: work.run(function)


@dataclass(frozen=True)
class Work:
    """The work of a version of a model: a call, or for training a step under autocast to ``kind``, if any."""

    model: torch.nn.Module
    inputs: tuple[tuple[Any, ...], dict[str, Any]]
    kind: torch.dtype | None
    training: bool

    def __post_init__(self) -> None:
        if self.training:
            self.model.train()
            for module in self.model.modules():
                if isinstance(getattr(module, "p", None), float):
                    module.p = 0.0  # type: ignore[assignment]  # of dropout: each version draws other numbers

    def run(self, function: Callable[..., Any]) -> torch.Tensor:
        """Return the model's result, or after a step its loss."""
        if not self.training:
            return self._call(function)
        loss = self._forward(function)
        torch.autograd.backward(loss)
        return loss.detach()

    def results(self, function: Callable[..., Any]) -> list[torch.Tensor]:
        """Return the tensors that errors are measured on: the result, or the gradients of the parameters."""
        if not self.training:
            return [self._call(function).float().clone()]
        self.run(function)
        found = [(each, each.grad) for each in self.model.parameters() if each.requires_grad]
        return [torch.zeros_like(each).float() if grad is None else grad.float().clone() for each, grad in found]

    def saved(self, function: Callable[..., Any]) -> int:
        """Return the bytes that a forward pass leaves allocated."""
        before = torch.cuda.memory_allocated()
        loss = self._forward(function)
        after = torch.cuda.memory_allocated()
        torch.autograd.backward(loss)
        return after - before

    def _forward(self, function: Callable[..., Any]) -> torch.Tensor:
        self.model.zero_grad(set_to_none=True)
        with self.autocast():
            return _SCALE * self._call(function).float().square().mean()

    def autocast(self) -> torch.autocast:
        """Return the context of a step; an inference has none."""
        device = next(self.model.parameters()).device.type
        return torch.autocast(device, dtype=self.kind, enabled=self.training and self.kind is not None)

    def _call(self, function: Callable[..., Any]) -> torch.Tensor:
        args, keywords = self.inputs
        return _first(function(*args, **keywords))


def _fill_zeros(model: torch.nn.Module) -> None:
    """Make no parameter zero: with a head of zeros, the result and all gradients are zero, without relative errors."""
    for parameter in model.parameters():
        if not parameter.any():
            torch.nn.init.normal_(parameter, std=0.02)


def _settle(model: torch.nn.Module, call: Callable[[], object]) -> None:
    """Fill zeros, and set batch norms to the statistics of their input: else 16-bit values vanish in deep models."""
    _fill_zeros(model)
    norms = [each for each in model.modules() if isinstance(each, torch.nn.modules.batchnorm._BatchNorm)]
    for each in norms:
        each.momentum = 1.0
        each.train()
    if norms:
        call()
    model.eval()


def compiled(model: torch.nn.Module, version: str) -> Any:
    """Return a model compiled as a version; the report then has this version only."""
    from evt.fx.records import RECORDS

    RECORDS.clear()
    keywords = VERSIONS[version]
    return model if keywords is None else torch.compile(model, dynamic=False, **dict(keywords))


def _first(found: Any) -> torch.Tensor:
    """Return the first tensor of a model's result."""
    if isinstance(found, torch.Tensor):
        return found
    return _first(next(iter(found.values() if isinstance(found, Mapping) else found)))


def _error(got: Sequence[torch.Tensor], want: Sequence[torch.Tensor]) -> float:
    """Return the largest error of a tensor, relative to its norm, or to a thousandth of the largest norm."""
    least = _LEAST * max(float(each.norm()) for each in want)
    return max(float((x - y).norm()) / max(float(y.norm()), least) for x, y in zip(got, want, strict=True))


def _products(model: torch.nn.Module) -> dict[str, tuple[int, int, int]]:
    from evt.fx.report import report

    rows = report(model).rows
    found = {}
    for graph in sorted({row.graph for row in rows}, reverse=True):  # the forward graph first
        of_graph = [row for row in rows if row.graph == graph]
        fused = [row for row in of_graph if row.fused]
        found[graph] = len(of_graph), len(fused), sum(len(row.absorbed) for row in fused)
    return found


def _launched(call: Callable[[], object]) -> int:
    """Return the number of kernels that a call launches."""
    torch.cuda.synchronize()
    activities = [torch.profiler.ProfilerActivity.CUDA, torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities) as profile:
        call()
        torch.cuda.synchronize()
    events: Any = profile.events()
    on_device = [each for each in events if each.device_type.name == "CUDA"]
    return sum(not each.name.startswith(("Memcpy", "Memset")) for each in on_device)


def _captured(call: Callable[[], object]) -> Callable[[], object]:
    """Return the replay of a CUDA graph of a call. Raise PyTorch's errors for calls that a graph cannot capture."""
    side: Any = torch.cuda.Stream()  # type: ignore[no-untyped-call, unused-ignore]
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(_WARM_UPS):
            call()
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    graph: Any = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    replay: Callable[[], object] = graph.replay
    return replay


def _timed(calls: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """Return the median times of calls in ms, host time included."""
    samples: dict[str, list[float]] = {name: [] for name in calls}
    event: Any = torch.cuda.Event  # has no types in some versions of torch
    for _ in range(rounds):
        for name, call in calls.items():
            start, end = event(enable_timing=True), event(enable_timing=True)
            torch.cuda.synchronize()
            start.record()
            call()
            end.record()
            torch.cuda.synchronize()
            samples[name].append(start.elapsed_time(end))
    return {name: statistics.median(taken) for name, taken in samples.items()}
