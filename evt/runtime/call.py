"""Calling a program: ``Caller(program)(A, B, inputs, out)``.

The first call with a combination of shapes, strides, dtypes and alignments checks everything, plans, builds and loads;
what it found is kept as a :class:`Prepared` launch. Later calls with the same combination only fill in pointers and
scalars: that path is written for speed, and ``evt bench --host`` measures it.
"""

from __future__ import annotations

import struct
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import torch

from evt.build import KernelSource, build
from evt.diagnostics import Diagnostic
from evt.emission import emit
from evt.errors import ArgumentError, LaunchError
from evt.ir import Output
from evt.optimise import optimise
from evt.plan import Plan, Problem, Target, choose_route, default_configs, find_config, find_target, plan
from evt.plan.config import best_config
from evt.plan.rules import Route
from evt.reference import reference
from evt.runtime.arguments import Bound, bind
from evt.runtime.library import Library, launch_failure, load_library

if TYPE_CHECKING:
    from evt.program import Program

#: Remembered combinations before the memory is emptied; a workload with ever-changing shapes must not grow it.
_MAX_PREPARED = 4096

_Tensor = torch.Tensor
_is_grad_enabled = torch.is_grad_enabled
# The public functions check for initialisation on every call, which a CUDA tensor has already proven.
_raw_stream: Callable[[int], int] = getattr(
    torch._C, "_cuda_getCurrentRawStream", lambda index: torch.cuda.current_stream(index).cuda_stream
)
_current_device: Callable[[], int] = getattr(torch._C, "_cuda_getDevice", torch.cuda.current_device)


@dataclass(frozen=True, slots=True)
class Prepared:
    """A launch that only lacks pointers and scalars.

    A call's *slots* are the addresses of A, B, each input and each output, then each input's number, in the
    program's order. ``pick`` takes from them the leading members of evt_arguments, ``pack`` makes these bytes, and
    ``sizes`` are the bytes of the rest. ``allocations`` are (output's position, shape, dtype) of fresh outputs.
    ``spans`` are bytes by slot, and ``in_place`` the (output, input) slots that may be the same memory.
    """

    run: Callable[[bytes, int, int], int]
    length: int
    device: int
    pick: Callable[[Sequence[Any]], tuple[Any, ...]]
    pack: Callable[..., bytes]
    sizes: bytes
    allocations: tuple[tuple[int, tuple[int, ...], torch.dtype], ...]
    spans: tuple[int, ...]
    in_place: frozenset[tuple[int, int]]

    def launch(self, slots: Sequence[Any]) -> None:
        """Launch on the current stream. Raises LaunchError."""
        arguments = self.pack(*self.pick(slots)) + self.sizes
        index = self.device
        if _current_device() == index:
            code = self.run(arguments, self.length, _raw_stream(index))
        else:
            with torch.cuda.device(index):
                code = self.run(arguments, self.length, _raw_stream(index))
        if code:
            raise launch_failure(code)


class Caller:
    """The callable side of a program; safe to call from several threads."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self._inputs = program.inputs
        self._outputs = program.outputs
        self._numbers = [value.default or 0.0 for value in program.dag.inputs]
        self._prepared: dict[object, Prepared] = {}
        self._kernels: dict[object, Kernels] = {}
        self._lock = threading.Lock()

    def __call__(self, a: torch.Tensor, b: torch.Tensor, inputs: Mapping[str, Any], out: object) -> Any:
        buffers = {}
        if out is not None or not inputs.keys().isdisjoint(self._outputs):
            buffers = self._buffers(inputs, out)
            inputs = {name: value for name, value in inputs.items() if name not in buffers}
        results: list[Any] = [buffers.get(name) for name in self._outputs]
        addresses: list[int] = []
        numbers = self._numbers.copy()
        key: list[object] = [_is_grad_enabled()]
        known = None
        try:
            given = 0
            for index, value in enumerate((a, b, *map(inputs.get, self._inputs), *results)):
                if isinstance(value, _Tensor):
                    addresses.append(value.data_ptr())
                    key += (
                        value.shape,
                        value.stride(),
                        value.dtype,
                        value.get_device(),
                        value.requires_grad,
                    )
                    given += 1
                else:
                    addresses.append(0)
                    key.append(value is None)
                    if type(value) is float or type(value) is int:
                        numbers[index - 2] = float(value)
                        given += 1
            if given == 2 + len(inputs) + len(buffers):  # otherwise there is a name or a value that bind explains
                low = 0
                for address in addresses:
                    low |= address
                if low & 15:
                    key += [address & 15 for address in addresses]
                known = self._prepared.get(tuple(key))
        except (AttributeError, TypeError, RuntimeError, IndexError, OverflowError):  # bind says what is wrong
            pass
        if known is None:
            ready = self._prepare(tuple(key), a, b, inputs, buffers)
            if not isinstance(ready, Prepared):
                return self._result([ready[name] for name in self._outputs])
            known = ready
            numbers = [
                default if (value := inputs.get(name)) is None or isinstance(value, _Tensor) else float(value)
                for name, default in zip(self._inputs, self._numbers, strict=True)
            ]
            values = (a, b, *map(inputs.get, self._inputs), *results)
            addresses = [value.data_ptr() if isinstance(value, _Tensor) else 0 for value in values]
        if buffers:
            self._check_overlap(known, addresses)
        first = len(addresses) - len(results)
        for position, shape, dtype in known.allocations:
            fresh = results[position] = torch.empty(shape, dtype=dtype, device=a.device)
            addresses[first + position] = fresh.data_ptr()
        known.launch(addresses + numbers)
        return self._result(results)

    def _result(self, results: Sequence[torch.Tensor]) -> Any:
        """One output: a tensor; several: a namedtuple."""
        return results[0] if len(results) == 1 else self.program.result_type(*results)

    def _buffers(self, inputs: Mapping[str, Any], out: object) -> dict[str, Any]:
        """Output buffers, given as ``out=`` or by output name."""
        outputs = self._outputs
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
        wanted = "a tensor" if len(outputs) == 1 else f"a tuple of {len(outputs)} tensors ({', '.join(outputs)})"
        raise ArgumentError(Diagnostic("E0608", f"`out` is of type {type(out).__name__}; expected {wanted}"))

    def _check_overlap(self, known: Prepared, addresses: Sequence[int]) -> None:
        """Refuse a buffer that shares memory with another tensor, unless element by element (E0609)."""
        spans = known.spans
        for buffer in range(len(addresses) - len(self._outputs), len(addresses)):
            start = addresses[buffer]
            end = start + spans[buffer]
            for other, address in enumerate(addresses):
                if other == buffer or address >= end or start >= address + spans[other]:
                    continue
                if address == start and (buffer, other) in known.in_place:
                    continue
                names = ("A", "B", *self._inputs, *self._outputs)
                raise ArgumentError(
                    Diagnostic(
                        "E0609",
                        f"the buffer `{names[buffer]}` shares memory with `{names[other]}`",
                        help="pass a buffer of its own; only a tile input of the same strides may be overwritten",
                    )
                )

    def _prepare(
        self, key: object, a: Any, b: Any, inputs: Mapping[str, Any], buffers: Mapping[str, Any]
    ) -> Prepared | Mapping[str, torch.Tensor]:
        """Check, plan, build and load; or the answer itself where no kernel is launched."""
        bound = bind(self.program, a, b, inputs, buffers)
        if bound.device.type == "cpu" or 0 in bound.sizes.values():  # an empty product is all zeros: no kernel
            return _evaluate(bound, a, b, inputs, buffers)
        given = {"A": a, "B": b, **inputs, **buffers}
        tensors = {name: value for name, value in given.items() if isinstance(value, _Tensor)}
        with self._lock:
            prepared = self._make_ready(bound, tensors, frozenset(buffers))
            if len(self._prepared) >= _MAX_PREPARED:
                self._prepared.clear()
            self._prepared[key] = prepared
        return prepared

    def _make_ready(
        self, bound: Bound, tensors: Mapping[str, torch.Tensor], buffers: frozenset[str]
    ) -> Prepared:
        device = bound.device.index if bound.device.index is not None else torch.cuda.current_device()
        kernels = self._kernels_for(bound, device_target(device))
        multiprocessors = torch.cuda.get_device_properties(device).multi_processor_count
        chosen, library = kernels.best(bound.sizes, multiprocessors)
        slots = ("A", "B", *self._inputs, *self._outputs)
        numbers = {name: len(slots) + index for index, name in enumerate(self._inputs)}
        picked, sizes = [], []
        for member in chosen.fields:
            match member.kind:
                case "pointer":
                    picked.append(slots.index(member.tensor))
                case "number":
                    picked.append(numbers[member.tensor])
                case "size" if member.tensor:
                    sizes.append(bound.tensors[member.tensor].strides.get(member.role, 0))
                case "size":
                    sizes.append(bound.sizes.get(member.role, 0))  # 0: a scheduler setting, chosen by the launcher
        form = library.form
        leading = form[: len(picked)]
        in_place = {(slots.index(buffer), slots.index(name)) for buffer, name in _in_place(bound, buffers)}
        return Prepared(
            library.run,
            struct.calcsize(f"={form}"),
            device,
            itemgetter(*picked),
            struct.Struct(f"={leading}").pack,
            struct.pack(f"={form[len(picked) :]}", *sizes),
            tuple(
                (position, bound.output_shape(output), _torch_dtype(output))
                for position, output in enumerate(bound.dag.outputs)
                if output.name not in buffers
            ),
            tuple(_span(tensors[name]) if name in tensors else 0 for name in slots),
            frozenset(in_place),
        )

    def _kernels_for(self, bound: Bound, target: Target) -> Kernels:
        """Plan, build and load, once for a signature."""
        key = (bound.dag.operands, bound.signature, target, bound.sizes["l"] > 65535)
        kernels = self._kernels.get(key)
        if kernels is None:
            plans = plan_kernels(self.program, bound, target)
            paths = build(kernel_sources(plans))
            libraries = tuple(load_library(path, each) for path, each in zip(paths, plans, strict=True))
            kernels = self._kernels[key] = Kernels(plans, libraries)
        return kernels


def _evaluate(
    bound: Bound, a: torch.Tensor, b: torch.Tensor, inputs: Mapping[str, Any], buffers: Mapping[str, torch.Tensor]
) -> dict[str, torch.Tensor]:
    """The reference's answer, written into the caller's buffers where there are any."""
    results = reference(bound.dag, a, b, inputs)
    for name, buffer in buffers.items():
        results[name] = buffer.copy_(results[name].reshape(buffer.shape))
    return results


@dataclass(frozen=True)
class Kernels:
    """The kernels of one signature: a plan and a library for each configuration."""

    plans: tuple[Plan, ...]
    libraries: tuple[Library, ...]

    def best(self, sizes: Mapping[str, int], multiprocessors: int) -> tuple[Plan, Library]:
        configs = tuple(each.config for each in self.plans)
        choice = best_config(configs, sizes[self.plans[0].rows], sizes[self.plans[0].columns], sizes["l"], multiprocessors)
        return self.plans[choice], self.libraries[choice]


def plan_kernels(program: Program, bound: Bound, target: Target) -> tuple[Plan, ...]:
    """The plans of all configurations that serve a bound call. Raises TargetError."""
    problem = Problem(optimise(bound.dag), bound.signature, target)
    route = choose_route(problem, program.route)
    _check_grid(bound, route)
    configs = [find_config(problem, route, program.config)] if program.config else default_configs(problem, route)
    return tuple(
        plan(problem.dag, problem.signature, target, route=route.name, config=config) for config in configs
    )


def kernel_sources(plans: Iterable[Plan]) -> list[KernelSource]:
    """What evt.build makes libraries of."""
    return [KernelSource(emit(each), each.target.gencode) for each in plans]


def device_target(index: int) -> Target:
    """The target of a CUDA device. Raises TargetError for one that evt does not know."""
    major, minor = torch.cuda.get_device_capability(index)
    return find_target(f"sm{major}{minor}")


def _check_grid(bound: Bound, route: Route) -> None:
    if route.family == "2x" and bound.sizes["l"] > 65535:
        raise LaunchError(
            Diagnostic(
                "E0804",
                f"{bound.sizes['l']} batches: the route evt-2x takes at most 65535",
                help="align A, B and D to 16 bytes for the route evt-3x, or split the batch",
            )
        )


def _torch_dtype(output: Output) -> torch.dtype:
    assert output.dtype is not None
    dtype: torch.dtype = getattr(torch, output.dtype.torch)
    return dtype


def _span(tensor: torch.Tensor) -> int:
    """Bytes from a tensor's first element to the end of its last."""
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return (last + 1) * tensor.element_size()


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
