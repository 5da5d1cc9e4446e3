"""Calls of a grouped program whose offsets are on the GPU: ``RaggedCaller(request)(a, b, inputs, buffers, offsets)``.

The groups are consecutive rows of A and of all tensors with rows. B and the other inputs have a matrix, vector or
number for each group, stacked along a first dimension; an input may also be the same for all groups. The host does not
know the groups: a call is checked as one product of all rows with the first group's B.
"""

from __future__ import annotations

import struct
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

from evt.diagnostics import Diagnostic
from evt.errors import ArgumentError
from evt.ir import Input, Output
from evt.plan import LayoutClass
from evt.plan.gemm import MAX_GROUPS
from evt.request import Request
from evt.request.ragged import is_ragged, ragged_request
from evt.runtime.arguments import bind
from evt.runtime.bound import Bound
from evt.runtime.fresh import fresh_output
from evt.runtime.identity import Forms, alignments
from evt.runtime.kernels import Kernels, device_target, make_kernels, refuse_capture
from evt.runtime.layout import TensorArgument
from evt.runtime.prepare import Prepared, prepare
from evt.runtime.tensor_checks import PLAIN, plain_value, reaches_memory, signed

#: The number of combinations that are kept before all are dropped.
_MAX_PREPARED = 4096
_empty_like = torch.empty_like
_increment_version = torch._C._increment_version
#: The name of the offsets among a call's tensors: that of no input.
_OFFSETS = ""


@dataclass(frozen=True, slots=True)
class _Known:
    """A checked combination; ``prepared`` is None if no group can have elements."""

    prepared: Prepared | None
    bound: Bound


class RaggedCaller:
    """The calls of a grouped program with offsets on the GPU; safe from several threads."""

    def __init__(self, request: Request) -> None:
        self.request = ragged_request(request)
        self._inputs, self._outputs = request.inputs, request.outputs
        #: The route that the user selected, if it takes other groups.
        self._other = "" if is_ragged(request) else request.settings.route
        self._forms = Forms()
        self._known: dict[object, _Known] = {}
        self._launched: dict[object, _Known] = {}
        self._kernels: dict[object, Kernels] = {}
        self._lock = threading.Lock()

    def __call__(
        self, a: Any, b: Any, inputs: Mapping[str, Any], buffers: Mapping[str, Any], offsets: torch.Tensor
    ) -> list[torch.Tensor]:
        """Return the outputs. Raise ArgumentError, ProgramError, TargetError, BuildError, LaunchError."""
        values: Sequence[Any] = self._values(a, b, inputs, buffers, offsets)
        given = 3 + len(inputs) + len(buffers)
        found = self._forms.identify(values, given)
        if found is None or found[-1]:
            values = [
                plain_value(name, value, written=name in buffers)
                for name, value in zip(self._names, values, strict=True)
            ]
            self._refuse_others(values)
            with torch.no_grad():
                found = self._forms.identify(values, given)
            assert found is not None
        form, tensors, addresses, facts, _ = found
        key = (form, *addresses, *facts)
        known = self._launched.get(key)
        if known is None:
            combination = (form, *alignments(addresses), *facts)
            known = self._known.get(combination)
            if known is None or not all(map(reaches_memory, tensors)):
                known = self._check(values)
                _keep(self._known, combination, known)
            if known.prepared is not None:
                names = [name for name, value in zip(self._names, values, strict=True) if type(value) in PLAIN]
                known.prepared.overlap.check(addresses, len(buffers), partial(list, names))
            _keep(self._launched, key, known)
        if known.prepared is None:
            return self._empty(known.bound, buffers)
        return self._launch(known.prepared, form.numbers(values), addresses, buffers)

    @property
    def _names(self) -> tuple[str, ...]:
        return ("A", "B", _OFFSETS, *self._inputs, *self._outputs)

    def _values(
        self, a: Any, b: Any, inputs: Mapping[str, Any], buffers: Mapping[str, Any], offsets: torch.Tensor
    ) -> tuple[Any, ...]:
        return (a, b, offsets, *map(inputs.get, self._inputs), *map(buffers.get, self._outputs))

    def _launch(
        self, known: Prepared, numbers: Sequence[float], addresses: Sequence[int], buffers: Mapping[str, Any]
    ) -> list[torch.Tensor]:
        results: list[Any] = [*map(buffers.get, self._outputs)]
        slots = [*addresses, *numbers, *known.constants]
        for position, prototype in known.allocations:
            fresh = results[position] = _empty_like(prototype)
            slots.append(fresh.data_ptr())
        if known.workspace is not None:
            workspace = _empty_like(known.workspace)  # the allocator keeps it until the kernel is done
            slots.append(workspace.data_ptr())
        for slot in known.wide:
            slots[slot] = signed(slots[slot])
        try:
            known.launch(slots)
        except (OverflowError, struct.error):
            message = "a number is beyond the range of a double"
            raise ArgumentError(Diagnostic("E0607", message)) from None
        if buffers:
            _increment_version([buffers[name] for name in buffers])  # autograd may have saved their contents
        return results

    def _empty(self, bound: Bound, buffers: Mapping[str, Any]) -> list[torch.Tensor]:
        """Return outputs without elements, or unchanged buffers."""
        outputs = bound.dag.outputs
        return [buffers[each.name] if each.name in buffers else fresh_output(bound, each) for each in outputs]

    # Checks

    def _refuse_others(self, values: Sequence[Any]) -> None:
        """Raise ArgumentError for a value that is no tensor and no number."""
        for name, value in zip(self._names, values, strict=True):
            if value is None or isinstance(value, int | float):
                continue
            if not isinstance(value, torch.Tensor):
                kind = "a list" if isinstance(value, list | tuple) else f"of type {type(value).__name__}"
                message = f"`{name}` is {kind}; with `offsets` on the GPU it is one tensor"
                raise ArgumentError(Diagnostic("E0607", message, help="stack the groups: torch.stack(...)"))

    def _check(self, values: Sequence[Any]) -> _Known:
        """Check a combination, and prepare its launch."""
        self._refuse_others(values)
        given = {name: value for name, value in zip(self._names, values, strict=True) if value is not None}
        if self._other:
            message = f"`offsets` is on the GPU, and the route {self._other} reads it on the host"
            raise ArgumentError(Diagnostic("E0605", message, help="leave out the route, or pass a list"))
        bound = bind_groups(self.request, given)
        if 0 in (bound.sizes["m"], bound.sizes["n"], bound.sizes["l"]):
            return _Known(None, bound)
        if bound.sizes["k"] == 0:
            raise ArgumentError(Diagnostic("E0604", "with `offsets` on the GPU, k must be at least 1"))
        buffers = [name for name in self._outputs if name in given]
        tensors = [(name, value) for name, value in given.items() if isinstance(value, torch.Tensor)]
        numbers = [name for name, value in given.items() if not isinstance(value, torch.Tensor)]
        with self._lock:
            kernels = self._kernels_of(bound)
            return _Known(prepare(self.request.dag, bound, kernels, tensors, numbers, buffers), bound)

    def _kernels_of(self, bound: Bound) -> Kernels:
        key = bound.dag, bound.signature, torch.cuda.get_device_capability(bound.index)
        found = self._kernels.get(key)
        if found is None:
            refuse_capture()
            found = self._kernels[key] = make_kernels(self.request, bound, device_target(bound.index))
        return found

    def forget(self) -> None:
        """Prepare every combination again."""
        with self._lock:
            self._known.clear()
            self._launched.clear()


def _keep(found: dict[object, _Known], key: object, value: _Known) -> None:
    if len(found) >= _MAX_PREPARED:
        found.clear()
    found[key] = value


def bind_groups(request: Request, given: Mapping[str, Any]) -> Bound:
    """Check a call of a :func:`ragged_request`; ``given`` are its tensors and numbers by name, the offsets as "".

    Raise ArgumentError and ProgramError.
    """
    offsets, b = given[_OFFSETS], given["B"]
    groups = _groups(given["A"], b, offsets)
    stacked = {value.name: given[value.name] for value in request.dag.inputs if _is_stacked(value, given, groups)}
    stacked["B"] = b
    first = {name: value[0] if groups else value.new_empty(value.shape[1:]) for name, value in stacked.items()}
    alone = {**given, **first}
    inputs = {name: alone[name] for name in request.inputs if name in alone}
    buffers = {name: alone[name] for name in request.outputs if name in alone}
    bound = bind(request, alone["A"], alone["B"], inputs, buffers)
    if offsets.device != bound.device:
        message = f"`offsets` is on {offsets.device}, A is on {bound.device}"
        raise ArgumentError(Diagnostic("E0605", message, help=f"move it: offsets.to('{bound.device}')"))
    return _by_group(bound, groups, stacked)


def _groups(a: Any, b: Any, offsets: torch.Tensor) -> int:
    """Return the number of groups. Raise ArgumentError (E0603, E0604) for offsets, A and B that do not fit."""
    if offsets.dtype != torch.int32:
        message = f"`offsets` is {offsets.dtype}; offsets on the GPU are torch.int32"
        raise ArgumentError(Diagnostic("E0603", message, help="convert it: offsets.to(torch.int32)"))
    for name, value, count in (("A", a, 2), ("B", b, 3)):
        if not isinstance(value, torch.Tensor) or value.dim() != count:
            shape = f"of {value.dim()} dimensions" if isinstance(value, torch.Tensor) else "no tensor"
            wanted = "one tensor with the rows of all groups" if name == "A" else "a stacked tensor [groups, ...]"
            raise ArgumentError(Diagnostic("E0604", f"`{name}` is {shape}; with `offsets` on the GPU it is {wanted}"))
    groups = len(b)
    if offsets.dim() != 1 or len(offsets) != groups or not offsets.is_contiguous():
        message = f"`offsets` has shape {list(offsets.shape)}, and B has {groups} groups"
        help_text = "offsets on the GPU are the ends of the groups, packed, as torch._grouped_mm has them"
        raise ArgumentError(Diagnostic("E0604", message, help=help_text))
    if groups > MAX_GROUPS:
        raise ArgumentError(Diagnostic("E0604", f"there are {groups} groups; at most {MAX_GROUPS}"))
    return groups


def _is_stacked(value: Input, given: Mapping[str, Any], groups: int) -> bool:
    """Return whether a call gives an input for each group. Raise ArgumentError (E0604) for another number of groups."""
    tensor = given.get(value.name)
    if "l" not in value.modes or not isinstance(tensor, torch.Tensor):
        return False
    if tensor.dim() < len(value.modes) or (value.flexible and tensor.numel() == 1):
        return False
    if len(value.modes) == 1 and tensor.numel() == 1 and groups != 1:
        return False
    if len(tensor) != groups:
        message = f"`{value.name}` is given for {len(tensor)} groups; there are {groups}"
        raise ArgumentError(Diagnostic("E0604", message))
    return True


def _by_group(bound: Bound, groups: int, stacked: Mapping[str, torch.Tensor]) -> Bound:
    """Return the call of all groups from the call of the first group."""
    listed: tuple[Input | Output, ...] = (*bound.dag.inputs, *bound.dag.outputs)
    values = {value.name: value for value in listed}
    tensors: dict[str, TensorArgument] = {}
    for name, argument in bound.tensors.items():
        step = stacked[name].stride(0) if name in stacked and groups > 1 else 0
        strides, layout = {**argument.strides, "l": step}, argument.layout
        if name == "B":
            strides["l"] = step or stacked[name].stride(0)
            layout = _aligned(layout, step)
        elif name in values and not values[name].is_tile:
            layout = replace(layout, alignment=1)  # vectors are read one element at a time
        tensors[name] = replace(argument, strides=strides, layout=layout)
    return replace(bound, sizes={**bound.sizes, "l": groups}, tensors=tensors, ragged=True)


def _aligned(layout: LayoutClass, step: int) -> LayoutClass:
    """Return the layout of B with a step from group to group."""
    return replace(layout, alignment=min(layout.alignment, step & -step)) if step else layout
