"""A program on random inputs, compared with the oracle and timed: ``run_trial(program, ...) -> Trial``."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import click
import torch

from evt.build.process import available_bytes
from evt.diagnostics import Diagnostic
from evt.errors import LaunchError
from evt.ir import Input, TypedDag
from evt.ir.dtype import DType
from evt.program import Program

_EPSILON = 2.0**-24  #: what rounding to f32 changes at most, relatively
_TIMED_S = {"cuda": 1.0, "cpu": 0.3}  #: roughly how long a trial is timed for
_MOST = 20


@dataclass(frozen=True)
class OutputResult:
    """One output: its distance from the oracle, ||out - ref|| / ||ref||, and the most that rounding explains.

    ``unexpected`` counts elements that are NaN or infinite and should not be; the distance is inf then.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    relative_error: float
    bound: float
    unexpected: int

    @property
    def ok(self) -> bool:
        return self.relative_error <= self.bound


@dataclass(frozen=True)
class Trial:
    """What ``evt run`` prints. ``device`` is cuda, or cpu: the reference was evaluated, no kernel was run."""

    operation: str
    device: str
    gpu: str
    sizes: Mapping[str, int]
    a: str
    b: str
    seed: int
    scalars: Mapping[str, float]
    outputs: tuple[OutputResult, ...]
    seconds: float
    repetitions: int
    first_seconds: float

    @property
    def ok(self) -> bool:
        return all(output.ok for output in self.outputs)

    def to_json(self) -> dict[str, object]:
        """Ready for JSON; what is infinite is null."""
        outputs = [
            {
                **asdict(output),
                "relative_error": output.relative_error if math.isfinite(output.relative_error) else None,
                "bound": output.bound if math.isfinite(output.bound) else None,
                "ok": output.ok,
            }
            for output in self.outputs
        ]
        return {"ok": self.ok, **asdict(self), "sizes": dict(self.sizes), "outputs": outputs}


def run_trial(
    program: Program, a: str | None, b: str | None, sizes: Mapping[str, int], device: str, seed: int
) -> Trial:
    """Run a program once on poisoned outputs, compare, then time it. ``sizes`` has l = 0 for no batch.

    Raises LaunchError (E0801) for ``device`` cuda without a GPU, click.UsageError for sizes beyond the
    memory, and what a call of the program raises.
    """
    dag = program.typed(a, b)
    kernel = device == "cuda" or (device == "auto" and torch.cuda.is_available())
    if kernel and not torch.cuda.is_available():
        help_text = "run `evt doctor`; `--device cpu` evaluates the reference"
        raise LaunchError(Diagnostic("E0801", "PyTorch finds no CUDA GPU", help=help_text))
    place = torch.device("cuda" if kernel else "cpu")
    _check_memory(dag, sizes, place)
    operands, inputs = _random(dag, sizes, torch.Generator(place).manual_seed(seed))
    exact = _evaluate(program, operands, inputs, float64=True)
    cut = [_cut_to_tf32(tensor) for tensor in operands] if kernel else operands
    rounded = _evaluate(program, cut, inputs, float64=False)
    buffers = {name: torch.full_like(tensor, torch.nan) for name, tensor in rounded.items()}

    def call() -> None:
        program(*operands, out=buffers, **inputs)

    started = time.perf_counter()
    call()
    if kernel:
        torch.cuda.synchronize()
    first_seconds = time.perf_counter() - started
    slack = 4 * math.sqrt(sizes["k"]) * _EPSILON
    outputs = []
    for output in dag.outputs:
        name = output.name
        tensors = buffers[name], exact[name], rounded[name]
        error, unexpected = relative_error(*tensors)
        bound = 2 * relative_error(tensors[2], *tensors[1:])[0] + slack
        outputs.append(OutputResult(name, str(output.dtype), tuple(buffers[name].shape), error, bound, unexpected))
    times = _times(call, kernel)
    return Trial(
        program.operation,
        place.type,
        torch.cuda.get_device_name() if kernel else "",
        {mode: size for mode, size in sizes.items() if size},
        str(dag.operands[0].dtype),
        str(dag.operands[1].dtype),
        seed,
        {name: value for name, value in inputs.items() if isinstance(value, float)},
        tuple(outputs),
        statistics.median(times),
        len(times),
        first_seconds,
    )


def relative_error(out: torch.Tensor, exact: torch.Tensor, rounded: torch.Tensor) -> tuple[float, int]:
    """||out - exact|| / ||exact||, and how many elements are not finite where ``rounded`` is.

    Elements of ``exact`` that no finite number in the output's type stands for (NaN; too large) are compared
    with ``rounded``, which is what f32 arithmetic makes of them, and do not count in the norms.
    """
    same = (out == rounded) | (out.isnan() & rounded.isnan())
    alike = ~rounded.isfinite() & same
    difference = torch.where(alike, 0.0, out.double() - exact)
    unexpected = int((~difference.isfinite()).sum())
    if unexpected:
        return math.inf, unexpected
    norm = float(torch.where(exact.isfinite() & ~alike, exact, 0.0).norm())
    distance = float(difference.norm())
    return (distance / norm if norm else math.inf if distance else 0.0), 0


def _evaluate(
    program: Program, operands: list[torch.Tensor], inputs: Mapping[str, Any], *, float64: bool
) -> dict[str, torch.Tensor]:
    found = program.reference(*operands, float64=float64, **inputs)
    return dict(zip(program.outputs, (found,) if len(program.outputs) == 1 else found, strict=True))


def _random(
    dag: TypedDag, sizes: Mapping[str, int], generator: torch.Generator
) -> tuple[list[torch.Tensor], dict[str, Any]]:
    """A and B, and the other inputs by name. What has a default keeps it."""

    def normal(shape: list[int], dtype: DType, scale: float = 1.0) -> torch.Tensor:
        drawn = torch.randn(shape, generator=generator, device=generator.device) * scale
        return drawn.to(getattr(torch, dtype.torch))

    batch = [sizes["l"]] if sizes["l"] else []
    a, b = dag.operands
    operands = [
        normal([*batch, *(sizes[mode] for mode in a.modes)], a.dtype),
        normal([*batch, *(sizes[mode] for mode in b.modes)], b.dtype, sizes["k"] ** -0.5),
    ]
    inputs: dict[str, Any] = {}
    for value in dag.inputs:
        assert value.dtype is not None
        if value.default is not None:
            continue
        if value.is_scalar and not value.modes:
            inputs[value.name] = float(torch.rand((), generator=generator, device=generator.device) + 0.5)
        else:
            inputs[value.name] = normal(_shape(value, sizes), value.dtype)
    return operands, inputs


def _shape(value: Input, sizes: Mapping[str, int]) -> list[int]:
    own_batch = value.is_tile and value.batchable and sizes["l"]
    return [*([sizes["l"]] if own_batch else []), *(sizes[mode] or 1 for mode in value.modes)]


def _cut_to_tf32(tensor: torch.Tensor) -> torch.Tensor:
    """An f32 operand as tensor cores read it: the low 13 bits are ignored."""
    if tensor.dtype != torch.float32:
        return tensor
    return (tensor.view(torch.int32) & ~0x1FFF).view(torch.float32)


def _check_memory(dag: TypedDag, sizes: Mapping[str, int], device: torch.device) -> None:
    """Refuse what would not fit: all tensors in their types, and the oracle's in f64."""
    batch = sizes["l"] or 1
    tiles = batch * sizes["m"] * sizes["n"]
    operands = batch * (sizes["m"] + sizes["n"]) * sizes["k"]
    tensors = sum(value.is_tile for value in dag.inputs) + len(dag.outputs)
    needed = operands * (8 + 4 + dag.operands[0].dtype.bits // 8) + tiles * (8 * (4 + tensors) + 8 * tensors)
    free = torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else available_bytes()
    if needed > free:
        raise click.UsageError(
            f"These sizes need about {needed / 1e9:.1f} GB, and {free / 1e9:.1f} GB are free on this "
            f"{'GPU' if device.type == 'cuda' else 'machine'}."
        )


def _times(call: Callable[[], None], kernel: bool) -> list[float]:
    """Seconds of several calls, after one to warm up."""
    started = time.perf_counter()
    call()
    if not kernel:
        once = time.perf_counter() - started
        times = []
        for _ in range(_repetitions(once, "cpu")):
            started = time.perf_counter()
            call()
            times.append(time.perf_counter() - started)
        return times
    torch.cuda.synchronize()
    count = _repetitions(time.perf_counter() - started, "cuda")
    event: Any = torch.cuda.Event
    pairs = [(event(enable_timing=True), event(enable_timing=True)) for _ in range(count)]
    for before, after in pairs:
        before.record()
        call()
        after.record()
    torch.cuda.synchronize()
    return [before.elapsed_time(after) / 1e3 for before, after in pairs]


def _repetitions(once: float, device: str) -> int:
    return max(3, min(_MOST, int(_TIMED_S[device] / max(once, 1e-9))))
