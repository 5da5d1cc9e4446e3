"""Whole models: ``bench_models(names, dtypes) -> results``, through eager PyTorch, torch.compile and ``backend="evt"``.

Models are those of torchvision, timm and transformers with random weights, as far as these are installed; inference,
images channels_last. A sample is a call as a user makes it, host time included, and the versions take turns.
"""

from __future__ import annotations

import importlib
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import torch

from evt.bench.machine import require_gpu
from evt.bench.run import reason

Progress = Callable[[str], object]
#: A call's inputs, by keyword or in order.
_Inputs = tuple[tuple[Any, ...], dict[str, Any]]


@dataclass(frozen=True)
class Model:
    """A model by name: the package that has it, how it is made in f32, and its inputs on a device in a type."""

    package: str
    make: Callable[[], torch.nn.Module]
    inputs: Callable[[torch.device, torch.dtype], _Inputs]


def _images(count: int, side: int = 224) -> Callable[[torch.device, torch.dtype], _Inputs]:
    def make(device: torch.device, dtype: torch.dtype) -> _Inputs:
        x = torch.randn(count, 3, side, side, device=device, generator=_generator(device))
        return (x.to(dtype).contiguous(memory_format=torch.channels_last),), {}

    return make


def _tokens(count: int, length: int, **names: int) -> Callable[[torch.device, torch.dtype], _Inputs]:
    def make(device: torch.device, dtype: torch.dtype) -> _Inputs:
        drawn = {
            name: torch.randint(0, most, (count, length), device=device, generator=_generator(device))
            for name, most in names.items()
        }
        return (), drawn

    return make


def _generator(device: torch.device) -> torch.Generator:
    return torch.Generator(device).manual_seed(0)


def _vision(name: str) -> Callable[[], torch.nn.Module]:
    return lambda: getattr(importlib.import_module("torchvision.models"), name)()


def _timm(name: str) -> Callable[[], torch.nn.Module]:
    return lambda: importlib.import_module("timm").create_model(name)


def _language(model: str, config: str, **sizes: Any) -> Callable[[], torch.nn.Module]:
    def make() -> torch.nn.Module:
        package: Any = importlib.import_module("transformers")
        made: torch.nn.Module = getattr(package, model)(getattr(package, config)(use_cache=False, **sizes))
        return made

    return make


_LLAMA = {
    "hidden_size": 2048,
    "intermediate_size": 5632,
    "num_hidden_layers": 8,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "vocab_size": 32000,
}
MODELS: Mapping[str, Model] = {
    **{
        name: Model("torchvision", _vision(name), _images(32))
        for name in ("resnet18", "resnet50", "mobilenet_v3_large", "convnext_tiny", "vit_b_16")
    },
    "efficientnet_b0": Model("timm", _timm("efficientnet_b0"), _images(32)),
    "bert": Model("transformers", _language("BertModel", "BertConfig"), _tokens(16, 512, input_ids=30522)),
    "gpt2": Model("transformers", _language("GPT2LMHeadModel", "GPT2Config"), _tokens(8, 512, input_ids=50257)),
    "llama": Model(
        "transformers", _language("LlamaForCausalLM", "LlamaConfig", **_LLAMA), _tokens(4, 512, input_ids=32000)
    ),
    "t5": Model(
        "transformers",
        _language("T5ForConditionalGeneration", "T5Config"),
        _tokens(8, 256, input_ids=32128, decoder_input_ids=32128),
    ),
}
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


@dataclass
class ModelResult:
    """A model in a type. By version: the median time of a call in ms, kernels that a call launches, the relative error
    against eager in f32, and what failed. Of evt's: its products, how many are fused, and the operators they absorbed.
    """

    name: str
    dtype: str
    times: dict[str, float] = field(default_factory=dict)
    kernels: dict[str, int] = field(default_factory=dict)
    errors: dict[str, float] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)
    products: dict[str, tuple[int, int, int]] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def __str__(self) -> str:
        lines = [f"{self.name}, {self.dtype}"]
        for version in (EAGER, *VERSIONS):
            if version in self.failures:
                lines.append(f"  {version:<17} {self.failures[version]}")
            if version not in self.times:
                continue
            said = f"{self.times[version]:9.3f} ms {self.kernels[version]:5} kernels  error {self.errors[version]:.1e}"
            if version in self.products:
                products, fused, absorbed = self.products[version]
                said += f"  {fused} of {products} products fused, with {absorbed} operators"
            lines.append(f"  {version:<17} {said}")
        return "\n".join(lines)


def bench_models(
    names: Sequence[str],
    dtypes: Sequence[str] = ("float16", "bfloat16"),
    *,
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
                with torch.no_grad():
                    yield _measure(name, dtype, device, versions, rounds, progress)
                torch.cuda.empty_cache()

    return run()


def _measure(
    name: str, dtype: str, device: torch.device, versions: Sequence[str], rounds: int, progress: Progress
) -> ModelResult:
    result = ModelResult(name, dtype)
    kind: torch.dtype = getattr(torch, dtype)
    torch.manual_seed(0)
    torch._dynamo.reset()
    try:
        made = MODELS[name].make().eval().to(device)
    except ImportError:
        result.failures[EAGER] = f"{MODELS[name].package} is not installed"
        return result
    args, keywords = MODELS[name].inputs(device, torch.float32)
    _settle(made, lambda: made(*args, **keywords))
    want = _tensor(made(*args, **keywords)).float()
    model: Any = made.to(kind)
    if args:
        model = model.to(memory_format=torch.channels_last)
    args, keywords = MODELS[name].inputs(device, kind)
    calls: dict[str, Callable[[], object]] = {}
    for version in (EAGER, *versions):
        progress(f"{name}, {dtype}: {version}")
        try:
            function: Any = model if version == EAGER else _compiled(model, version)
            got = _tensor(function(*args, **keywords)).float()
            for _ in range(_WARM_UPS):
                function(*args, **keywords)
            result.errors[version] = float((got - want).norm() / want.norm())
            result.kernels[version] = _launched(lambda f=function: f(*args, **keywords))  # type: ignore[misc]
            if version.startswith("evt"):
                result.products[version] = _products(model)
        except Exception as problem:  # whatever a compiler may raise
            result.failures[version] = reason(problem)
            continue
        calls[version] = lambda f=function: f(*args, **keywords)  # type: ignore[misc]
    result.times.update(_timed(calls, rounds))
    return result


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


def _tensor(found: Any) -> torch.Tensor:
    """Return the first tensor of a model's result."""
    if isinstance(found, torch.Tensor):
        return found.clone()
    return _tensor(next(iter(found.values() if isinstance(found, Mapping) else found)))


def _products(model: torch.nn.Module) -> tuple[int, int, int]:
    from evt.fx.report import report

    found = report(model)
    return len(found.rows), len(found.fused), sum(len(row.absorbed) for row in found.fused)


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
