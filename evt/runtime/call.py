"""Calling a program: ``Caller(program)(A, B, inputs, out)``.

The first call with a combination of shapes, strides, dtypes and alignments checks everything, plans, builds and loads;
what it found is kept as a :class:`Prepared` launch. Later calls with the same combination only fill in pointers and
scalars.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from evt.build import KernelSource, build
from evt.diagnostics import Diagnostic
from evt.emission import emit
from evt.errors import ArgumentError, LaunchError
from evt.ir import Output
from evt.optimise import optimise
from evt.plan import Plan, Problem, choose_route, default_configs, find_target, plan
from evt.plan.config import best_config
from evt.plan.rules import Route
from evt.reference import reference
from evt.runtime.arguments import Bound, bind, is_number
from evt.runtime.library import Library, launch_failure, load_library

if TYPE_CHECKING:
    from evt.program import Program

#: Remembered combinations before the memory is emptied; a workload with ever-changing shapes must not grow it.
_MAX_PREPARED = 4096

_Tensor = torch.Tensor
_raw_stream: Callable[[int], int] = getattr(
    torch._C, "_cuda_getCurrentRawStream", lambda index: torch.cuda.current_stream(index).cuda_stream
)


@dataclass(frozen=True, slots=True)
class Allocation:
    """A fresh output: what torch.empty is called with."""

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype


@dataclass(frozen=True, slots=True)
class Prepared:
    """A launch that only lacks pointers and scalars.

    ``values`` are the members of evt_arguments with zeros at ``pointers`` and defaults at ``numbers``, which are
    (position, tensor or scalar name).
    """

    library: Library
    device: int
    values: tuple[Any, ...]
    pointers: tuple[tuple[int, str], ...]
    numbers: tuple[tuple[int, str], ...]
    allocations: tuple[Allocation, ...]
    spans: Mapping[str, int]
    in_place: frozenset[tuple[str, str]]

    def launch(self, tensors: Mapping[str, torch.Tensor], numbers: Mapping[str, float]) -> None:
        """Launch on the current stream. Raises LaunchError."""
        values = list(self.values)
        for position, name in self.pointers:
            tensor = tensors.get(name)
            if tensor is not None:
                values[position] = tensor.data_ptr()
        for position, name in self.numbers:
            number = numbers.get(name)
            if number is not None:
                values[position] = number
        library, index = self.library, self.device
        arguments = library.pack.pack(*values)
        if torch.cuda.current_device() == index:
            code = library.run(arguments, library.size, _raw_stream(index))  # type: ignore[operator]
        else:
            with torch.cuda.device(index):
                code = library.run(arguments, library.size, _raw_stream(index))  # type: ignore[operator]
        if code:
            raise launch_failure(code)


class Caller:
    """The callable side of a program; safe to call from several threads."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self._prepared: dict[object, Prepared | None] = {}
        self._lock = threading.Lock()

    def __call__(self, a: torch.Tensor, b: torch.Tensor, inputs: Mapping[str, Any], out: object) -> Any:
        buffers = self._buffers(inputs, out)
        tensors: dict[str, torch.Tensor] = {"A": a, "B": b}
        numbers: dict[str, float] = {}
        key: list[object] = [torch.is_grad_enabled()]
        alignment = 0
        try:
            for name, value in inputs.items():
                if isinstance(value, _Tensor):
                    tensors[name] = value
                elif name not in buffers:
                    numbers[name] = value
                    key.append(name)
            if buffers:
                tensors.update(buffers)
                key.append(tuple(buffers))
            for name, tensor in tensors.items():
                key += (name, tensor.shape, tensor.stride(), tensor.dtype, tensor.get_device(), tensor.requires_grad)
                alignment |= tensor.data_ptr()
            if alignment & 15:
                key += [tensor.data_ptr() & 15 for tensor in tensors.values()]
            known = self._prepared.get(tuple(key))
        except (AttributeError, TypeError, RuntimeError):  # not tensors, or tensors without storage: bind says which
            known = None
        if known is None:
            ready = self._prepare(tuple(key), a, b, inputs, buffers)
            if not isinstance(ready, Prepared):
                return self._result(ready)
            known = ready
        elif any(not is_number(number) for number in numbers.values()):
            bind(self.program, a, b, _without(inputs, buffers), buffers)
        if buffers:
            _check_overlap(known, tensors, buffers)
        device = a.device
        for allocation in known.allocations:
            tensors[allocation.name] = torch.empty(allocation.shape, dtype=allocation.dtype, device=device)
        known.launch(tensors, numbers)
        return self._result(tensors)

    def _result(self, tensors: Mapping[str, torch.Tensor]) -> Any:
        """One output: a tensor; several: a namedtuple."""
        outputs = self.program.outputs
        if len(outputs) == 1:
            return tensors[outputs[0]]
        return self.program.result_type(*(tensors[name] for name in outputs))

    def _buffers(self, inputs: Mapping[str, Any], out: object) -> dict[str, Any]:
        """Output buffers, given as ``out=`` or by output name."""
        outputs = self.program.outputs
        buffers = {name: inputs[name] for name in outputs if name in inputs}
        if out is None:
            return buffers
        if buffers:
            raise ArgumentError(
                Diagnostic("E0602", f"`out` and `{next(iter(buffers))}` both name output buffers", help="give one")
            )
        if isinstance(out, Mapping):
            return dict(out)
        if len(outputs) == 1 and isinstance(out, _Tensor):
            return {outputs[0]: out}
        if isinstance(out, tuple | list) and len(out) == len(outputs):
            return dict(zip(outputs, out, strict=True))
        raise ArgumentError(
            Diagnostic(
                "E0608",
                f"`out` is {type(out).__name__}; expected "
                + ("a tensor" if len(outputs) == 1 else f"a tuple of {len(outputs)} tensors ({', '.join(outputs)})"),
            )
        )

    def _prepare(
        self, key: object, a: Any, b: Any, inputs: Mapping[str, Any], buffers: Mapping[str, Any]
    ) -> Prepared | Mapping[str, torch.Tensor]:
        """Check, plan, build and load; or the answer itself where no kernel is launched."""
        inputs = _without(inputs, buffers)
        bound = bind(self.program, a, b, inputs, buffers)
        sizes = bound.sizes
        if bound.device.type == "cpu" or 0 in sizes.values():  # an empty product is all zeros: no kernel
            return _evaluate(bound, a, b, inputs, buffers)
        given = {"A": a, "B": b, **inputs, **buffers}
        tensors = {name: value for name, value in given.items() if isinstance(value, _Tensor)}
        with self._lock:
            prepared = prepare(bound, tensors, tuple(buffers))
            if len(self._prepared) >= _MAX_PREPARED:
                self._prepared.clear()
            self._prepared[key] = prepared
        return prepared


def _without(inputs: Mapping[str, Any], names: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in inputs.items() if name not in names}


def _evaluate(
    bound: Bound, a: torch.Tensor, b: torch.Tensor, inputs: Mapping[str, Any], buffers: Mapping[str, torch.Tensor]
) -> dict[str, torch.Tensor]:
    """The reference's answer, written into the caller's buffers where there are any."""
    results = reference(bound.dag, a, b, inputs)
    for name, buffer in buffers.items():
        results[name] = buffer.copy_(results[name].reshape(buffer.shape))
    return results


def prepare(bound: Bound, tensors: Mapping[str, torch.Tensor], buffers: tuple[str, ...]) -> Prepared:
    """Plan, build and load the kernel of a bound call, and fill in all that the call's metadata decides."""
    device = bound.device.index if bound.device.index is not None else torch.cuda.current_device()
    major, minor = torch.cuda.get_device_capability(device)
    dag = optimise(bound.dag)
    problem = Problem(dag, bound.signature, find_target(f"sm{major}{minor}"))
    route = choose_route(problem)
    _check_grid(bound, route)
    plans = _plans(problem, route)
    libraries = _libraries(plans)
    multiprocessors = torch.cuda.get_device_properties(device).multi_processor_count
    sizes = bound.sizes
    choice = best_config(
        tuple(each.config for each in plans), sizes["m"], sizes["n"], sizes["l"], multiprocessors
    )
    values, pointers, numbers = _members(bound, plans[choice])
    allocations = tuple(
        Allocation(output.name, bound.output_shape(output), _torch_dtype(output))
        for output in bound.dag.outputs
        if output.name not in buffers
    )
    return Prepared(
        libraries[choice],
        device,
        values,
        pointers,
        numbers,
        allocations,
        _spans(tensors),
        _in_place(bound, buffers),
    )


def _plans(problem: Problem, route: Route) -> tuple[Plan, ...]:
    return tuple(
        plan(problem.dag, problem.signature, problem.target, route=route.name, config=config)
        for config in default_configs(problem, route)
    )


def _libraries(plans: tuple[Plan, ...]) -> list[Library]:
    sources = [KernelSource(emit(each), each.target.gencode) for each in plans]
    return [load_library(path, each) for path, each in zip(build(sources), plans, strict=True)]


def _check_grid(bound: Bound, route: Route) -> None:
    if route.family == "2x" and bound.sizes["l"] > 65535:
        raise LaunchError(
            Diagnostic(
                "E0804",
                f"{bound.sizes['l']} batches: the route evt-2x takes at most 65535",
                help="align A, B and D to 16 bytes for the route evt-3x, or split the batch",
            )
        )


_Slots = tuple[tuple[int, str], ...]


def _members(bound: Bound, chosen: Plan) -> tuple[tuple[Any, ...], _Slots, _Slots]:
    """The members of evt_arguments that the metadata decides, and where pointers and numbers go."""
    values: list[Any] = []
    pointers: list[tuple[int, str]] = []
    numbers: list[tuple[int, str]] = []
    for position, member in enumerate(chosen.fields):
        value: Any = 0
        if member.kind == "pointer":
            pointers.append((position, member.tensor))
        elif member.kind == "number":
            numbers.append((position, member.tensor))
            value = bound.dag.input[member.tensor].default or 0.0
        elif not member.tensor:
            value = bound.sizes.get(member.role, 0)
        elif member.tensor in bound.tensors:
            value = bound.tensors[member.tensor].strides.get(member.role, 0)
        values.append(value)
    return tuple(values), tuple(pointers), tuple(numbers)


def _torch_dtype(output: Output) -> torch.dtype:
    assert output.dtype is not None
    dtype: torch.dtype = getattr(torch, output.dtype.torch)
    return dtype


def _spans(tensors: Mapping[str, torch.Tensor]) -> dict[str, int]:
    """Bytes from each tensor's first element to the end of its last."""
    return {
        name: (1 + sum((size - 1) * stride for size, stride in zip(t.shape, t.stride(), strict=True)))
        * t.element_size()
        for name, t in tensors.items()
    }


def _in_place(bound: Bound, buffers: Iterable[str]) -> frozenset[tuple[str, str]]:
    """(buffer, input) pairs that may be the same memory: every element is read before it is written.

    That holds for an input of the buffer's own modes, strides and width, read once per batch.
    """
    pairs = set()
    for buffer in buffers:
        output, written = bound.dag.output[buffer], bound.tensors[buffer]
        for value in bound.dag.inputs:
            read = bound.tensors.get(value.name)
            if (
                read is not None
                and value.is_tile
                and output.dtype is not None
                and value.dtype is not None
                and value.dtype.bits == output.dtype.bits
                and read.strides == written.strides
                and read.layout.batch == "strided"
            ):
                pairs.add((buffer, value.name))
    return frozenset(pairs)


def _check_overlap(known: Prepared, tensors: Mapping[str, torch.Tensor], buffers: Mapping[str, Any]) -> None:
    """Refuse a buffer that shares memory with another tensor, unless element by element (E0609)."""
    ranges = {name: (t.data_ptr(), t.data_ptr() + known.spans[name]) for name, t in tensors.items()}
    for buffer in buffers:
        start, end = ranges[buffer]
        for name, (other_start, other_end) in ranges.items():
            if name == buffer or other_start >= end or start >= other_end:
                continue
            if start == other_start and (buffer, name) in known.in_place:
                continue
            raise ArgumentError(
                Diagnostic(
                    "E0609",
                    f"the buffer `{buffer}` shares memory with `{name}`",
                    help=f"pass a buffer of its own; in place works for a tile input with the strides of `{buffer}`",
                )
            )
