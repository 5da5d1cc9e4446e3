"""Calling a program: ``Caller(request)(A, B, inputs, out)``.

The first call with a combination of shapes, strides, dtypes and alignments checks everything, plans, builds and loads;
the result is kept as a :class:`Prepared` launch. Later calls with the same combination only fill in addresses and
numbers: that path is written for speed, and ``evt bench --host`` measures it.
"""

from __future__ import annotations

import struct
import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any

import torch
from torch.autograd import forward_ad

from evt.diagnostics import Diagnostic
from evt.errors import ArgumentError, InternalError
from evt.ir import Reduce
from evt.request import Request, read_request, traced
from evt.runtime.arguments import bind
from evt.runtime.bound import Bound
from evt.runtime.cpu_fallback import run_reference
from evt.runtime.given import buffers_of, given_buffers, given_inputs, joined_buffers
from evt.runtime.identity import Forms, alignments
from evt.runtime.kernels import (
    BuiltKernel,
    CallKey,
    Kernels,
    call_key,
    device_target,
    is_atomic,
    make_kernels,
    measured_best,
    plan_kernels,
    refuse_capture,
)
from evt.runtime.memory_format import contiguous_image
from evt.runtime.no_kernel import KernelWarnings
from evt.runtime.overlap import find_overlap
from evt.runtime.planar import with_planes
from evt.runtime.prepare import Prepared, prepare
from evt.runtime.results import gather
from evt.runtime.tensor_checks import (
    NUMBERS,
    PLAIN,
    is_traced,
    is_watched,
    mode_depth,
    plain,
    plain_value,
    reaches_memory,
    signed,
    tracing_fault,
    transforming,
)
from evt.untraced import untraced

#: The number of combinations that are kept before all are dropped, so that ever-changing shapes do not fill memory.
_MAX_PREPARED = 4096
#: The same for combinations with addresses: layers share a program, and the allocator gives them varying addresses.
_MAX_LAUNCHED = 1024

_is_deterministic = torch.are_deterministic_algorithms_enabled
_empty_like = torch.empty_like
_increment_version = torch._C._increment_version  # torch.autograd.graph's function first checks its argument
_NOTHING: Mapping[str, Any] = {}


class Caller:
    """The callable side of a program; safe to call from several threads.

    ``caller(a, b, inputs, out)`` is a user's call. :meth:`run` is the call of an operator, which PyTorch traces,
    transforms and differentiates before it calls. Both end in :meth:`_launch`, which runs plain tensors and numbers.
    """

    def __init__(self, request: Request) -> None:
        self.request = request
        self.inputs = request.inputs
        self._outputs = request.outputs
        self._gather = gather(request.outputs)
        self._reduces = any(isinstance(op, Reduce) for op, _ in request.dag.table)
        self._forms = Forms()
        #: By everything that decides about a launch, and by that and the addresses at which the memory was checked.
        self._prepared: dict[object, Prepared] = {}
        self._launched: dict[object, Prepared] = {}
        #: The kernels of calls from compiled graphs, each the best one for its sizes.
        self._built: dict[CallKey, BuiltKernel | Kernels] = {}
        #: By the layer: the kernels, and the calls that are expected.
        self._kernels: dict[object, Kernels] = {}
        self._expected: dict[object, list[Bound]] = {}
        self._warn = KernelWarnings()
        self._lock = threading.Lock()

    @untraced
    def __call__(self, a: torch.Tensor, b: torch.Tensor, inputs: Mapping[str, Any], out: object = None) -> Any:
        """Run the program as users call it."""
        buffers = _NOTHING if out is None else buffers_of(self._outputs, out)
        if not (mode_depth() or transforming() or forward_ad._current_level >= 0):
            results = self._launch(a, b, inputs, buffers)
            if results is not None:
                return self._gather(results)
        return self._gather(self._unusual(a, b, inputs, buffers))

    @untraced
    def run(
        self, a: torch.Tensor, b: torch.Tensor, inputs: Mapping[str, Any], buffers: Mapping[str, Any] = _NOTHING
    ) -> list[Any]:
        """Return the outputs of a call that nothing traces, transforms or differentiates any more."""
        results = self._launch(a, b, inputs, buffers)
        return self._launch_plain(a, b, inputs, buffers) if results is None else results

    def _launch(
        self, a: torch.Tensor, b: torch.Tensor, inputs: Mapping[str, Any], buffers: Mapping[str, Any]
    ) -> list[Any] | None:
        """Return the outputs of a call on plain tensors and numbers; None if a value is anything else.

        A tensor without values and a negative view are not plain. Autograd records the call if it follows a tensor.
        """
        results: list[Any] = [*map(buffers.get, self._outputs)] if buffers else [None] * len(self._outputs)
        values = (a, b, *map(inputs.get, self.inputs), *results)
        found = self._forms.identify(values, 2 + len(inputs) + len(buffers))
        if found is None:
            return None
        form, tensors, addresses, facts, followed = found
        if followed:
            return None if buffers else self._differentiable(a, b, inputs)
        deterministic = self._reduces and _is_deterministic()
        key = (form, deterministic, *addresses, *facts)
        known = self._launched.get(key)
        if known is None:
            if tensors[0].device.type == "meta":
                return None
            combination = (form, deterministic, *alignments(addresses), *facts)
            known = self._prepared.get(combination)
            if known is None or not all(map(reaches_memory, tensors)):
                bound = bind(self.request, a, b, inputs, buffers)
                if _needs_no_kernel(bound):
                    self._judge(bound)
                    overlap = find_overlap(bound, self._tensors(values), buffers)
                    overlap.check(addresses, len(buffers), partial(self._names, values))
                    return run_reference(self.request, bound, buffers)
                known = self._prepare(bound, self._tensors(values), self._numbers(values))
                if len(self._prepared) >= _MAX_PREPARED:
                    self._prepared.clear()
                self._prepared[combination] = known
            known.overlap.check(addresses, len(buffers), partial(self._names, values))
            if len(self._launched) >= _MAX_LAUNCHED:
                self._launched.clear()
            self._launched[key] = known
        converted = known.convert(tensors, addresses) if known.copied else ()
        slots = [*addresses, *form.numbers(values), *known.constants]
        for position, prototype in known.allocations:
            fresh = results[position] = _empty_like(prototype)
            slots.append(fresh.data_ptr())
        if known.workspace is not None:
            workspace = _empty_like(known.workspace)  # the allocator keeps it for this stream until the kernel is done
            slots.append(workspace.data_ptr())
        for slot, least, most in known.integers:
            if not least <= slots[slot] <= most or slots[slot] % 1:
                bind(self.request, a, b, inputs, buffers)  # raises the diagnostics
        for slot in known.wide:
            slots[slot] = signed(slots[slot])
        try:
            known.launch(slots)
        except (OverflowError, struct.error):  # an int beyond the range of double
            bind(self.request, a, b, inputs, buffers)
            raise
        if buffers:
            _increment_version(tensors[-len(buffers) :])  # autograd may have saved their contents
        for made, buffer in converted:
            if buffer is not None:
                buffer.copy_(made)
        for position in known.contiguous:
            results[position] = contiguous_image(results[position])
        return results

    def _launch_plain(self, a: Any, b: Any, inputs: Mapping[str, Any], buffers: Mapping[str, Any]) -> list[Any]:
        """Return the outputs of a call on values that have a plain equivalent. Raise ArgumentError for other values."""
        given = [("A", a), ("B", b), *inputs.items(), *buffers.items()]
        usual = [(name, plain_value(name, value, written=name in buffers)) for name, value in given]
        unknown = any(type(value) not in PLAIN | NUMBERS for _, value in usual)
        if unknown or forward_ad._current_level >= 0 or tracing_fault():
            bind(self.request, a, b, inputs, buffers)  # raises the diagnostics, if there are any
        values: list[tuple[str, Any]] = [(name, int(each) if type(each) is bool else each) for name, each in usual]
        (_, plain_a), (_, plain_b), *others = values
        results = self._launch(plain_a, plain_b, dict(others[: len(inputs)]), dict(others[len(inputs) :]))
        if results is None:
            bind(self.request, a, b, inputs, buffers)
            raise InternalError(Diagnostic("E0902", "a call was neither launched nor refused"))
        return [buffers.get(name, made) for name, made in zip(self._outputs, results, strict=True)]

    def _unusual(
        self, a: torch.Tensor, b: torch.Tensor, inputs: Mapping[str, Any], buffers: Mapping[str, Any]
    ) -> list[Any]:
        """Return the outputs of a call that :meth:`_launch` does not know, or may not be given.

        It names buffers by keyword, passes None, wrong names or unusual values, or PyTorch has to see it.
        """
        named = {name: inputs[name] for name in self._outputs if name in inputs}
        written = joined_buffers(given_buffers(named), given_buffers(buffers))
        read = given_inputs(self.request.dag, {name: value for name, value in inputs.items() if name not in named})
        values = (a, b, *read.values(), *written.values())
        if is_traced(values) or (isinstance(a, torch.Tensor) and a.device.type == "meta"):
            return self._traced(a, b, read, written)
        if len(read) + len(written) < len(inputs) + len(buffers) or named:
            found = None if forward_ad._current_level >= 0 or mode_depth() else self._launch(a, b, read, written)
            if found is not None:
                return found
        if (
            torch.is_grad_enabled()
            and not written
            and any(getattr(each, "requires_grad", None) is True for each in values)
        ):
            if any(type(each) not in PLAIN | NUMBERS for each in values):
                with torch.no_grad():  # raises the diagnostics, but for gradients
                    bind(self.request, a, b, read, written)
                a, b, read = plain(a), plain(b), {name: plain(value) for name, value in read.items()}
            return self._differentiable(a, b, read)
        return self._launch_plain(a, b, read, written)

    def _traced(
        self, a: Any, b: Any, inputs: Mapping[str, Any], buffers: Mapping[str, Any], run: Any = None
    ) -> list[Any]:
        """Run PyTorch's operators for a call on tensors without values, inside of a transform, or with gradients."""
        from evt.runtime.operator import call_traced

        result = call_traced(traced(self.request), a, b, dict(buffers) or None, inputs, run)
        return [result] if len(self._outputs) == 1 else list(result)

    def _differentiable(self, a: Any, b: Any, inputs: Mapping[str, Any]) -> list[Any]:
        """Return the outputs of a call that autograd records.

        PyTorch's operator records the call if PyTorch watches it, or if the tensors have no values.
        """
        from evt.runtime.autograd import run_recorded

        by_operator = is_watched() or a.device.type == "meta"
        return self._traced(a, b, inputs, {}, None if by_operator else partial(run_recorded, run=run_values))

    def _names(self, values: Sequence[Any]) -> list[str]:
        return [name for name, _ in self._tensors(values)]

    def _tensors(self, values: Sequence[Any]) -> list[tuple[str, torch.Tensor]]:
        """Return the tensors among a call's values, by name."""
        names = ("A", "B", *self.inputs, *self._outputs)
        return [(name, value) for name, value in zip(names, values, strict=True) if type(value) in PLAIN]

    def _numbers(self, values: Sequence[Any]) -> list[str]:
        """Return the names of the numbers among a call's values."""
        return [name for name, value in zip(self.inputs, values[2:], strict=False) if type(value) in NUMBERS]

    def prepare(self, given: Mapping[str, torch.Tensor], *, alone: bool = False) -> Prepared | None:
        """Return the launch of a call on tensors alone, buffers for all outputs among them, in the order of its slots.

        ``alone``: the sizes of the call never change, so only its best kernel is built. Return None if the call is not
        a kernel launch on these tensors. Raise the errors of the call.
        """
        if any(each.is_neg() for each in given.values()):
            return None
        buffers = {name: given[name] for name in self._outputs}
        bound = bind(self.request, given["A"], given["B"], {name: given[name] for name in self.inputs}, buffers)
        return None if _needs_no_kernel(bound) else self._prepare(bound, list(given.items()), [], alone)

    def _prepare(
        self,
        bound: Bound,
        tensors: Sequence[tuple[str, torch.Tensor]],
        numbers: Sequence[str],
        alone: bool = False,
    ) -> Prepared:
        """Plan, build and load the kernels for a new combination of tensors and numbers, in the order of its slots."""
        buffers = [name for name, _ in tensors if name in self._outputs]
        with self._lock:
            bound = self._with_planes(bound, fresh=not buffers)
            return prepare(self.request, bound, self._kernels_of(bound, alone), tensors, numbers, buffers)

    def _with_planes(self, bound: Bound, *, fresh: bool) -> Bound:
        """Return the call whose kernel stores contiguous images, unless a compilation has built another kernel."""
        if bound.convolution is None:
            return bound
        atomic, target = is_atomic(self.request), device_target(bound.index)
        made = with_planes(self.request, bound, target, atomic, fresh=fresh)
        if made is bound or call_key(measured_best(self.request, bound, atomic), bound, target, atomic) in self._built:
            return bound
        return made

    def provide(self, key: CallKey, kernel: BuiltKernel) -> None:
        """Give a call the kernel that a compilation has built for it."""
        with self._lock:
            self._built.setdefault(key, kernel)

    def _kernels_of(self, bound: Bound, alone: bool) -> Kernels:
        """Return the kernels of a call; plan, build and load them if there are none that run the call."""
        atomic = is_atomic(self.request)
        request = measured_best(self.request, bound, atomic)
        key = call_key(request, bound, device_target(bound.index), atomic)
        found = self._built.get(key)
        if isinstance(found, BuiltKernel):
            refuse_capture()
            found = found.load() if found.path.exists() else None  # another process may have removed it
        if found is None and alone:
            refuse_capture()
            found = make_kernels(request, bound, device_target(bound.index), atomic, alone=True)
        if found is None:
            return self._kernels_of_layer(request, bound, atomic)
        self._built[key] = found
        return found

    def _kernels_of_layer(self, request: Request, bound: Bound, atomic: bool) -> Kernels:
        """Return the kernels of a call's layer."""
        layer, forced = (bound.dag, bound.signature, bound.layer), (request.settings.route, request.settings.config)
        key = *layer, atomic, torch.cuda.get_device_capability(bound.index), forced
        kernels = self._kernels.get(key, Kernels())
        if not kernels.run(bound):
            refuse_capture()
            target = device_target(bound.index)
            if not kernels.plans:
                for each in self._expected.get(layer, ()):
                    kernels = kernels.with_others(make_kernels(request, each, target, atomic))
            if not kernels.run(bound):
                kernels = kernels.with_others(make_kernels(request, bound, target, atomic))
            self._kernels[key] = kernels
        return kernels

    def expect(self, bound: Bound) -> None:
        """Build the kernels for this call, too, at the first call of its layer."""
        with self._lock:
            layer = bound.dag, bound.signature, bound.layer
            self._expected.setdefault(layer, []).append(replace(bound, values={}))  # without keeping tensors

    def forget(self) -> None:
        """Prepare every combination again: another kernel may be the best one now."""
        with self._lock:
            self._prepared.clear()
            self._launched.clear()

    def _judge(self, bound: Bound) -> None:
        """Warn once about a call that the CPU computes and no kernel would."""
        if not bound.is_empty:
            self._warn((bound.dag, bound.signature), lambda target: plan_kernels(self.request, bound, target), bound)


def _needs_no_kernel(bound: Bound) -> bool:
    """Return whether the reference computes the call: on the CPU, and for an empty product, which is all zeros."""
    return bound.device.type == "cpu" or bound.is_empty


@lru_cache(maxsize=4096)
def caller_of(program: str) -> Caller:
    """Return the caller of a program, the same object each time. Raise ArgumentError (E0613, E0657)."""
    return Caller(read_request(program))


def run_values(
    a: torch.Tensor,
    b: torch.Tensor,
    tensors: Sequence[torch.Tensor],
    program: str,
    names: Sequence[str] | None = None,
    floats: Sequence[float] | None = None,
    integers: Sequence[int] | None = None,
) -> list[torch.Tensor]:
    """Run a program as ``torch.ops.evt.run`` does, on tensors that have values."""
    caller = caller_of(program)
    return caller.run(a, b, named_values(caller.request, tensors, names, floats, integers))


def named_values(
    request: Request,
    tensors: Sequence[torch.Tensor],
    names: Sequence[str] | None = None,
    floats: Sequence[float] | None = None,
    integers: Sequence[int] | None = None,
) -> dict[str, Any]:
    """Return the values of a call of an operator by name; without ``names`` they are the inputs in order.

    Raise ArgumentError if values and names do not match (E0607), or a name is not an input's (E0602). The buffer of a
    scattered output counts as an input, since its other rows are read.
    """
    values = (*tensors, *(floats or ()), *(integers or ()))
    own = request.inputs if names is None else names
    if len(values) != len(own):
        message = f"the number of values is {len(values)}, and of their names {len(own)}: {', '.join(own) or 'none'}"
        raise ArgumentError(Diagnostic("E0607", message, help=f"the program's inputs are {', '.join(request.inputs)}"))
    dag = request.dag
    for place, name in enumerate(own):
        if name not in dag.input and not (name in dag.output and dag.output[name].is_indexed):
            known = ", ".join(request.inputs) or "none"
            raise ArgumentError(Diagnostic("E0602", f"the program has no input `{name}`", help=f"inputs: {known}"))
        if name in own[:place]:
            raise ArgumentError(Diagnostic("E0602", f"the call names `{name}` twice", help="name each value once"))
    return dict(zip(own, values, strict=True))
