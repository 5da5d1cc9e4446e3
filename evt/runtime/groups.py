"""A grouped call as one call for each group: ``split(request, a, b, inputs, out, offsets) -> Groups``.

An argument with one tensor for each group is a list, or one tensor stacked along a first dimension. With ``offsets``
the rows of all groups are consecutive in one tensor, and group i has the rows from offsets[i] to offsets[i + 1]. With
an offset for each B, the offsets are the ends of the groups, and further rows belong to no group.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence, Sized
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, TypeGuard

import torch

from evt.diagnostics import Diagnostic, hint
from evt.errors import ArgumentError
from evt.ir import Input
from evt.ir.node import base, index_of
from evt.reference.int4 import PREPARED_DIMENSIONS
from evt.request import Request
from evt.runtime.given import buffers_of, given_buffers, given_inputs, is_absent, joined_buffers
from evt.runtime.tensor_checks import PLAIN, fault, plain_value


@dataclass(slots=True)
class Group:
    """The arguments of one group."""

    a: Any
    b: Any
    inputs: dict[str, Any]
    buffers: dict[str, Any] = field(default_factory=dict)

    def values(self) -> tuple[Any, ...]:
        """Return all values, in the order of A, B, inputs and buffers."""
        return (self.a, self.b, *self.inputs.values(), *self.buffers.values())

    def tensors(self) -> list[torch.Tensor]:
        """Return the plain tensors among the values."""
        return [value for value in self.values() if type(value) in PLAIN]

    def named_tensors(self) -> list[tuple[str, torch.Tensor]]:
        """Return the tensors that have elements, by name; the buffers come last."""
        named = [("A", self.a), ("B", self.b), *self.inputs.items(), *self.buffers.items()]
        return [(name, value) for name, value in named if isinstance(value, torch.Tensor) and value.numel()]

    def make_plain(self) -> None:
        """Replace every value by its :func:`plain_value`."""
        self.a, self.b = plain_value("A", self.a), plain_value("B", self.b)
        for values, written in ((self.inputs, False), (self.buffers, True)):
            for name, value in values.items():
                values[name] = plain_value(name, value, written=written)


@dataclass(frozen=True, slots=True)
class Groups:
    """The groups of a call.

    ``offsets`` has the first row of each group and the end of the last one, or is empty. ``total`` is the number of
    rows of tensors that have the rows of all groups. ``wholes`` are the buffers, by output, that the call gave as one
    tensor.
    """

    members: tuple[Group, ...]
    offsets: tuple[int, ...]
    total: int
    wholes: Mapping[str, torch.Tensor]

    def rows(self, whole: torch.Tensor, dim: int) -> list[torch.Tensor]:
        """Return each group's part of a tensor that has all groups' rows."""
        return _rows(whole, dim, self.offsets)


def split(request: Request, a: object, b: object, inputs: Mapping[str, object], out: object, offsets: object) -> Groups:
    """Divide a grouped call. Raise ArgumentError for arguments that do not divide; check the groups no further."""
    known = [*request.inputs, *request.outputs]
    for name in inputs:
        if name not in known:
            message = f"the program has no input `{name}`"
            raise ArgumentError(Diagnostic("E0602", message, help=hint(name, known, "inputs and outputs")))
    buffers = given_buffers(_buffers(request, inputs, out))
    read = given_inputs(request.dag, {name: inputs[name] for name in inputs if name not in request.outputs})
    for name, value in [("A", a), ("B", b), *read.items(), *buffers.items(), ("offsets", offsets)]:
        refused = fault(name, value, written=name in buffers) if isinstance(value, torch.Tensor) else None
        if refused is not None:
            raise ArgumentError(refused)
    bounds, total = _offsets(request, offsets, a, b)
    splitter = _Splitter(request, _count(a, b, bounds), bounds, total)
    operands = [splitter.operand(name, value) for name, value in (("A", a), ("B", b))]
    given = {name: splitter.input(request.dag.input[name], value) for name, value in read.items()}
    written = {name: splitter.buffer(name, value) for name, value in buffers.items()}
    members = (
        Group(
            operands[0][index],
            operands[1][index],
            given_inputs(request.dag, {name: values[index] for name, values in given.items()}),
            {name: values[index] for name, values in written.items()},
        )
        for index in range(splitter.count)
    )
    wholes = {name: value for name, value in buffers.items() if isinstance(value, torch.Tensor)}
    return Groups(tuple(members), bounds, total, wholes)


def _offsets(request: Request, offsets: object, a: object, b: object) -> tuple[tuple[int, ...], int]:
    """Return where each group begins and the last one ends, and the rows of A; () and 0 without offsets."""
    if offsets is None:
        return (), 0
    if isinstance(offsets, torch.Tensor):
        if offsets.device.type != "cpu":
            message = f"`offsets` is on {offsets.device}; reading it would wait for the device"
            raise ArgumentError(Diagnostic("E0605", message, help="pass a list, or a tensor on the CPU"))
        offsets = offsets.tolist()
    try:
        bounds = tuple(map(operator.index, offsets))  # type: ignore[call-overload]
    except TypeError:
        raise ArgumentError(Diagnostic("E0607", "`offsets` are not a list of whole numbers")) from None
    are_ends = _is_sized(b) and len(b) == len(bounds)
    if are_ends:
        bounds = (0, *bounds)
    falls = [f"{end} follows {start}" for start, end in pairwise(bounds) if end < start]
    if not bounds or bounds[0] != 0 or falls:
        found = falls[0] if falls else f"the first one is {bounds[0]}" if bounds else "there are none"
        expected = "the end of each group" if are_ends else "the first row of each group, and the end of the last one"
        help_text = "" if are_ends else "if there is an offset for each B, offsets are the ends of the groups"
        raise ArgumentError(Diagnostic("E0604", f"`offsets` ({expected}) must ascend from 0: {found}", help=help_text))
    modes = request.operand_modes[0]
    if are_ends and isinstance(a, torch.Tensor) and a.dim() == 2:
        return bounds, max(a.shape[modes.index("m")], bounds[-1])
    return bounds, bounds[-1]


#: The numbers of dimensions of stacked operands: matrices, or prepared weights of 4 bits.
_STACKED = 3, PREPARED_DIMENSIONS + 1


def _is_sized(b: object) -> TypeGuard[Sized]:
    """Return whether B has a matrix for each group."""
    return isinstance(b, list | tuple) or (isinstance(b, torch.Tensor) and b.dim() in _STACKED)


def _count(a: object, b: object, offsets: tuple[int, ...]) -> int:
    if offsets:
        return len(offsets) - 1
    for value in (a, b):
        if isinstance(value, list | tuple):
            return len(value)
    for value in (a, b):
        if isinstance(value, torch.Tensor) and value.dim() == 3:
            return len(value)
    raise ArgumentError(Diagnostic("E0607", "A and B are neither lists of tensors nor stacked tensors [g, ...]"))


def _buffers(request: Request, inputs: Mapping[str, object], out: object) -> dict[str, object]:
    """Return output buffers by name, from ``out=`` or keywords."""
    outputs = request.outputs
    given: Mapping[str, object] = {}
    if out is not None:
        is_single = len(outputs) == 1 and not isinstance(out, Mapping)
        wanted = f"one list of tensors for each of {', '.join(outputs)}"
        given = {outputs[0]: out} if is_single else buffers_of(outputs, out, wanted)
    for name in given:
        if name not in outputs:
            message = f"the program has no output `{name}`"
            raise ArgumentError(Diagnostic("E0602", message, help=f"outputs: {', '.join(outputs)}"))
    named = {name: inputs[name] for name in outputs if name in inputs and not _is_left_out(inputs[name])}
    return joined_buffers(named, {name: value for name, value in given.items() if not _is_left_out(value)})


def _is_left_out(buffers: object) -> bool:
    """Return whether no group gives a buffer."""
    return buffers is None or (isinstance(buffers, list | tuple) and all(each is None for each in buffers))


@dataclass(frozen=True)
class _Splitter:
    request: Request
    count: int
    offsets: tuple[int, ...]
    total: int

    def operand(self, name: str, value: object) -> Sequence[Any]:
        modes = self.request.operand_modes["AB".index(name)]
        if self.offsets and "m" in modes:
            if isinstance(value, torch.Tensor) and value.dim() == 2:
                return self.rows(name, value, modes.index("m"))
            raise ArgumentError(Diagnostic("E0604", f"with `offsets`, `{name}` is one tensor [{', '.join(modes)}]"))
        if isinstance(value, torch.Tensor) and value.dim() in _STACKED:
            return self.checked(name, value.unbind(0))
        if isinstance(value, list | tuple):
            return self.checked(name, value)
        raise ArgumentError(
            Diagnostic(
                "E0607",
                f"`{name}` is {_describe(value)}; expected a list of tensors, or a stacked tensor [g, ...]",
            )
        )

    def input(self, declared: Input, value: object) -> Sequence[Any]:
        """Return an input's value for each group: an element of a list or a stacked tensor, or the same for all."""
        name, modes = declared.name, declared.modes
        if isinstance(value, list | tuple):
            return self.checked(name, value, declared)
        if not isinstance(value, torch.Tensor):
            return [value] * self.count
        if not modes or (declared.flexible and value.numel() == 1):
            single = value.dim() == 0 or (value.numel() == 1 and self.count != 1)
            return [value] * self.count if single else self.checked(name, value.unbind(0))
        if value.dim() > len(modes):
            return self.checked(name, value.unbind(0))
        if self.offsets and _has_rows(modes) and value.dim() == len(modes):
            return self.rows(name, value, _mode(modes))
        return [value] * self.count

    def buffer(self, name: str, value: object) -> Sequence[Any]:
        modes = self.request.dag.output[name].modes
        if isinstance(value, torch.Tensor):
            if self.offsets and _has_rows(modes) and value.dim() == len(modes):
                return self.rows(name, value, _mode(modes))
            if self.offsets and any(map(index_of, modes)) and value.dim() == len(modes):
                return [value] * self.count  # an index names the rows of all groups in it
            if value.dim() == len(modes) + 1:
                return self.checked(name, value.unbind(0))
        if isinstance(value, list | tuple):
            for index, each in enumerate(value):
                if each is None:
                    message = f"the buffer `{name}` of group {index} is None"
                    raise ArgumentError(Diagnostic("E0608", message, help="give one to every group, or to none"))
            return self.checked(name, value)
        message = f"the buffer `{name}` is {_describe(value)}; expected a tensor for each of {self.count} groups"
        raise ArgumentError(Diagnostic("E0608", message))

    def rows(self, name: str, whole: torch.Tensor, dim: int) -> list[torch.Tensor]:
        if whole.shape[dim] != self.total:
            end = f"`offsets` end at {self.offsets[-1]}" if self.total == self.offsets[-1] else f"A has {self.total}"
            message = f"`{name}` has {whole.shape[dim]} rows; {end}"
            raise ArgumentError(Diagnostic("E0604", message))
        return _rows(whole, dim, self.offsets)

    def checked(self, name: str, values: Sequence[Any], declared: Input | None = None) -> Sequence[Any]:
        """Return one value for each group; None leaves out a tensor with a default in all groups or in none."""
        if len(values) != self.count:
            message = f"`{name}` is given for {len(values)} groups; there are {self.count}"
            raise ArgumentError(Diagnostic("E0604", message))
        left_out = [index for index, each in enumerate(values) if each is None]
        if declared is not None and is_absent(declared, {}) and 0 < len(left_out) < len(values):
            given = next(index for index, each in enumerate(values) if each is not None)
            message = f"`{name}` is given in group {given} and left out of group {left_out[0]}"
            raise ArgumentError(Diagnostic("E0601", message, help="give it to every group, or to none"))
        return values


def _rows(whole: torch.Tensor, dim: int, offsets: Sequence[int]) -> list[torch.Tensor]:
    return [whole.narrow(dim, start, end - start) for start, end in pairwise(offsets)]


def _has_rows(modes: Sequence[str]) -> bool:
    """Return whether a tensor has the product's rows, in their order."""
    return any(base(mode) == "m" and not index_of(mode) for mode in modes)


def _mode(modes: Sequence[str]) -> int:
    return [base(mode) for mode in modes].index("m")


def _describe(value: object) -> str:
    if isinstance(value, torch.Tensor):
        return f"a tensor of {value.dim()} dimensions"
    return "None" if value is None else f"of type {type(value).__name__}"
