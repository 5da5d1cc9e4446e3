"""A program run on random inputs, compared with the oracle and timed: ``run_trial(program, ...) -> Trial``."""

from __future__ import annotations

import math
import statistics
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import click
import torch

from evt.bench.calls import call_sizes, held_buffers, random_call
from evt.bench.tensors import poison
from evt.cli.answers import Answers, answers_of, is_exact, slack_of
from evt.cli.judge import OutputResult, judge
from evt.compilation.process import available_bytes
from evt.described import Described
from evt.diagnostics import Diagnostic
from evt.errors import LaunchError, NoKernelWarning
from evt.ir import TypedDag
from evt.reference import is_image
from evt.request import Request, Shapes, typed_graph
from evt.runtime.memory_format import channels_last

_TIMED_S = {"cuda": 1.0, "cpu": 0.3}  # the approximate time of a trial, in seconds
_MOST = 20


@dataclass(frozen=True)
class Trial:
    """The result of ``evt run``. ``device`` is cuda, or cpu if the reference ran instead of a kernel.

    For grouped products, sizes and shapes have one entry for each group, and the names of scalars and outputs carry the
    group's number. ``warning`` explains why no GPU can have a kernel, if that is so.
    """

    operation: str
    device: str
    gpu: str
    sizes: Mapping[str, int | Sequence[int]]
    a: str
    b: str
    a_shape: Sequence[int] | Sequence[Sequence[int]]
    b_shape: Sequence[int] | Sequence[Sequence[int]]
    seed: int
    scalars: Mapping[str, float]
    outputs: tuple[OutputResult, ...]
    seconds: float
    repetitions: int
    first_seconds: float
    warning: str = ""

    @property
    def ok(self) -> bool:
        return all(output.ok for output in self.outputs)

    def to_json(self) -> dict[str, object]:
        """Return a dict ready for JSON; infinite values are null."""
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


@dataclass(frozen=True)
class _Product:
    """One product of a call: its sizes, its tensors, the oracle's answers, and its output buffers."""

    shapes: Shapes
    sizes: Mapping[str, int]
    operands: list[torch.Tensor]
    inputs: Mapping[str, Any]
    answers: Mapping[str, Answers]
    buffers: Mapping[str, torch.Tensor]


def run_trial(
    program: Described, a: str | None, b: str | None, shapes: Sequence[Shapes], device: str, seed: int
) -> Trial:
    """Run a program once on poisoned outputs, compare the results, then time it.

    ``shapes`` has the shapes of A and B of each product. Raise LaunchError (E0801) for ``device`` cuda without a GPU,
    click.UsageError for sizes beyond the memory, and the errors of a call.
    """
    grouped = program.request.grouped
    request = program.request.member if grouped else program.request
    dag = typed_graph(request, a, b)
    kernel = device == "cuda" or (device == "auto" and torch.cuda.is_available())
    if kernel and not torch.cuda.is_available():
        help_text = "run `evt doctor`; `--device cpu` evaluates the reference"
        raise LaunchError(Diagnostic("E0801", "PyTorch finds no CUDA GPU", help=help_text))
    place = torch.device("cuda" if kernel else "cpu")
    check_memory(request, dag, shapes, place)
    generator = torch.Generator(place).manual_seed(seed)
    products = [_product(request, dag, each, generator, kernel) for each in shapes]
    call = _grouped_call(program, products) if grouped else _call(program, products[0])
    started = time.perf_counter()
    warning = _warned(call)
    if kernel:
        torch.cuda.synchronize()
    first_seconds = time.perf_counter() - started
    outputs: list[OutputResult] = []
    scalars: dict[str, float] = {}
    for number, product in enumerate(products):
        mark = f"[{number}]" if grouped else ""
        outputs += [replace(each, name=each.name + mark) for each in _compared(dag, product, kernel)]
        scalars |= {name + mark: value for name, value in product.inputs.items() if isinstance(value, float | int)}
    times = _times(call, kernel)
    first = products[0]
    return Trial(
        program.request.operation,
        place.type,
        torch.cuda.get_device_name() if kernel else "",
        {mode: [each.sizes[mode] for each in products] for mode in first.sizes} if grouped else first.sizes,
        str(dag.operands[0].dtype),
        str(dag.operands[1].dtype),
        [tuple(each.shapes[0]) for each in products] if grouped else tuple(first.shapes[0]),
        [tuple(each.shapes[1]) for each in products] if grouped else tuple(first.shapes[1]),
        seed,
        scalars,
        tuple(outputs),
        statistics.median(times),
        len(times),
        first_seconds,
        warning,
    )


def _product(request: Request, dag: TypedDag, shapes: Shapes, generator: torch.Generator, kernel: bool) -> _Product:
    """Return a product's random tensors, and poisoned buffers for its outputs."""
    sizes = call_sizes(request, shapes)
    operands, inputs = random_call(request, dag, shapes, generator)
    held = held_buffers(dag, sizes, generator.device)
    answers = answers_of(request, dag, operands, inputs | held, sizes["k"], kernel)
    buffers = {name: torch.empty_like(answer.rounded) for name, answer in answers.items()}
    if request.convolution is not None:
        images = [output.name for output in dag.outputs if is_image(output)]
        buffers |= {name: channels_last(buffers[name]) for name in images}
    for buffer in buffers.values():
        poison(buffer)
    return _Product(shapes, sizes, operands, inputs, answers, buffers)


def _call(program: Any, product: _Product) -> Callable[[], None]:
    def call() -> None:
        program(*product.operands, out=product.buffers, **product.inputs)

    return call


def _grouped_call(program: Any, products: Sequence[_Product]) -> Callable[[], None]:
    a, b = ([each.operands[place] for each in products] for place in range(2))
    inputs = {name: [each.inputs[name] for each in products] for name in products[0].inputs}
    buffers = {name: [each.buffers[name] for each in products] for name in products[0].buffers}

    def call() -> None:
        program(a, b, out=buffers, **inputs)

    return call


def _compared(dag: TypedDag, product: _Product, kernel: bool) -> list[OutputResult]:
    """Return the comparison of each output with the oracle."""
    k, n = product.sizes["k"], product.sizes["n"]
    slacks = {output.name: 0.0 if is_exact(dag, output.name) else slack_of(dag, k, kernel) for output in dag.outputs}
    return [
        judge(each, product.buffers[each.name], product.answers[each.name], n, slacks[each.name])
        for each in dag.outputs
    ]


def _warned(call: Callable[[], None]) -> str:
    """Return the warning that no GPU has a kernel for the call, or "". Show other warnings as usual."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", NoKernelWarning)
        call()
    found = ""
    for each in caught:
        if issubclass(each.category, NoKernelWarning):
            found = str(each.message)
        else:
            warnings.warn_explicit(each.message, each.category, each.filename, each.lineno)
    return found


def check_memory(request: Request, dag: TypedDag, shapes: Sequence[Shapes], device: torch.device) -> None:
    """Refuse sizes that exceed the memory: all tensors in their types, and the oracle's in f64.

    Raise click.UsageError.
    """
    needed = sum(_bytes_of(request, dag, each) for each in shapes)
    free = torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else available_bytes()
    if needed > free:
        raise click.UsageError(
            f"These sizes need about {needed / 1e9:.1f} GB, and {free / 1e9:.1f} GB are free on this "
            f"{'GPU' if device.type == 'cuda' else 'machine'}."
        )


def _bytes_of(request: Request, dag: TypedDag, shapes: Shapes) -> int:
    """Return the size of one product's tensors in bytes."""
    sizes = call_sizes(request, shapes)
    tiles = sizes.get("l", 1) * sizes["m"] * sizes["n"]
    operands = sum(map(math.prod, shapes))
    tensors = sum(value.is_tile for value in dag.inputs) + len(dag.outputs)
    return operands * (8 + 4 + dag.operands[0].dtype.bits // 8) + tiles * (8 * (4 + tensors) + 8 * tensors)


def _times(call: Callable[[], None], kernel: bool) -> list[float]:
    """Return the times of several calls in seconds, after one warm-up call."""
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
