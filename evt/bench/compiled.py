"""Whole models through eager PyTorch, torch.compile and ``backend="evt"``: ``bench_models(names, dtypes) -> results``.

A sample is a call as a user makes it, host time included, and the versions take turns. Inference is measured in the
type; a training step, forward and backward, under autocast to it, without the optimizer's update. Images are
channels_last.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import torch

from evt.bench.machine import require_gpu
from evt.bench.models import MODELS
from evt.bench.run import reason

Progress = Callable[[str], object]

#: The versions beside eager: by name, the arguments of torch.compile.
VERSIONS: Mapping[str, Mapping[str, Any]] = {
    "compile": {},
    "max-autotune": {"mode": "max-autotune"},
    "evt": {"backend": "evt"},
    "evt measured": {"backend": "evt", "options": {"evt.tune": True}},
    "evt max-autotune": {"backend": "evt", "mode": "max-autotune"},
}
EAGER = "eager"
_WARM_UPS = 4
#: By which a loss is multiplied, as GradScaler does: the gradients of 16 bits would vanish.
_SCALE = 65536.0
#: A gradient may be nothing but rounding, as that of a bias before a softmax: errors are relative to this at least.
_LEAST = 1e-3


@dataclass
class ModelResult:
    """A model in a type, by version.

    ``times`` are medians of a call in ms, ``kernels`` what a call launches, ``errors`` relative to eager in f32: of the
    result, or of the worst parameter's gradient. ``saved`` are the bytes that a forward pass leaves allocated for the
    backward. ``products`` has for each of evt's graphs how many there are, how many of them are fused, and the
    operators they absorbed.
    """

    name: str
    dtype: str
    batch: int
    training: bool = False
    times: dict[str, float] = field(default_factory=dict)
    kernels: dict[str, int] = field(default_factory=dict)
    errors: dict[str, float] = field(default_factory=dict)
    saved: dict[str, int] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)
    products: dict[str, dict[str, tuple[int, int, int]]] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def __str__(self) -> str:
        lines = [f"{self.name}, {self.dtype}, batch {self.batch}{', a training step' if self.training else ''}"]
        for version in (EAGER, *VERSIONS):
            if version in self.failures:
                lines.append(f"  {version:<17} {self.failures[version]}")
            if version not in self.times:
                continue
            said = f"{self.times[version]:9.3f} ms {self.kernels[version]:5} kernels  error {self.errors[version]:.1e}"
            if version in self.saved:
                said += f"  saved {self.saved[version] / 1e6:.0f} MB"
            for graph, (products, fused, absorbed) in self.products.get(version, {}).items():
                said += (
                    f"  {graph}{' ' if graph else ''}{fused} of {products} products fused, with {absorbed} operators"
                )
            lines.append(f"  {version:<17} {said}")
        return "\n".join(lines)


def bench_models(
    names: Sequence[str],
    dtypes: Sequence[str] = ("float16", "bfloat16"),
    *,
    training: bool = False,
    batch: int | None = None,
    versions: Sequence[str] = tuple(VERSIONS),
    rounds: int = 31,
    progress: Progress = lambda text: None,
) -> Iterator[ModelResult]:
    """Measure models one after the other. Raise LaunchError (E0801) without a GPU."""
    device = require_gpu()

    def run() -> Iterator[ModelResult]:
        for name in names:
            for dtype in dtypes:
                progress(f"{name}, {dtype}")
                result = ModelResult(name, dtype, batch or MODELS[name].batch, training)
                with torch.set_grad_enabled(training):
                    _measure(result, device, versions, rounds, progress)
                yield result
                torch.cuda.empty_cache()

    return run()


def _measure(
    result: ModelResult, device: torch.device, versions: Sequence[str], rounds: int, progress: Progress
) -> None:
    kind: torch.dtype = getattr(torch, result.dtype)
    known = MODELS[result.name]
    torch.manual_seed(0)
    torch._dynamo.reset()
    try:
        made = known.make().eval().to(device)
    except ImportError:
        result.failures[EAGER] = f"{known.package} is not installed"
        return
    exact = known.inputs(device, torch.float32, result.batch)
    with torch.backends.cudnn.flags(allow_tf32=False):  # type: ignore[no-untyped-call, unused-ignore]
        if not result.training:
            _settle(made, lambda: made(*exact[0], **exact[1]))
        want = _Work(made, exact, None, result.training).results(made)
    model: Any = made if result.training else made.to(kind)
    if exact[0]:
        model = model.to(memory_format=torch.channels_last)
    work = _Work(model, known.inputs(device, kind, result.batch), kind, result.training)
    calls: dict[str, Callable[[], object]] = {}
    for version in (EAGER, *versions):
        progress(f"{result.name}, {result.dtype}: {version}")
        try:
            function: Any = model if version == EAGER else _compiled(model, version)
            result.errors[version] = _error(work.results(function), want)
            for _ in range(_WARM_UPS):
                work.run(function)
            result.kernels[version] = _launched(lambda f=function: work.run(f))  # type: ignore[misc]
            if result.training:
                result.saved[version] = work.saved(function)
            if version.startswith("evt"):
                result.products[version] = _products(model)
        except Exception as problem:  # whatever a compiler may raise
            result.failures[version] = reason(problem)
            continue
        calls[version] = lambda f=function: work.run(f)  # type: ignore[misc]
    result.times.update(_timed(calls, rounds))


@dataclass(frozen=True)
class _Work:
    """What is done with a version of a model: a call, or for training a step under autocast to ``kind``, if any."""

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
        """Return what errors are told by: the result, or the gradients of the parameters."""
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
        device = next(self.model.parameters()).device.type
        with torch.autocast(device, dtype=self.kind, enabled=self.kind is not None):
            return _SCALE * self._call(function).float().square().mean()

    def _call(self, function: Callable[..., Any]) -> torch.Tensor:
        args, keywords = self.inputs
        return _first(function(*args, **keywords))


def _settle(model: torch.nn.Module, call: Callable[[], object]) -> None:
    """Make no parameter zero, and batch norms those of their input, so that a model's result tells errors.

    Without it a head of zeros has no relative error, and the values of 16 bits vanish on the way through deep models.
    """
    for parameter in model.parameters():
        if not parameter.any():
            torch.nn.init.normal_(parameter, std=0.02)
    norms = [each for each in model.modules() if isinstance(each, torch.nn.modules.batchnorm._BatchNorm)]
    for each in norms:
        each.momentum = 1.0
        each.train()
    if norms:
        call()
    model.eval()


def _compiled(model: torch.nn.Module, version: str) -> Any:
    """Return a model compiled as a version; the report then has this version only."""
    from evt.fx.report import RECORDS

    RECORDS.clear()
    keywords: dict[str, Any] = dict(VERSIONS[version])
    return torch.compile(model, dynamic=False, **keywords)


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
    """Return how many kernels a call launches."""
    torch.cuda.synchronize()
    activities = [torch.profiler.ProfilerActivity.CUDA, torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities) as profile:
        call()
        torch.cuda.synchronize()
    events: Any = profile.events()
    on_device = [each for each in events if each.device_type.name == "CUDA"]
    return sum(not each.name.startswith(("Memcpy", "Memset")) for each in on_device)


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
