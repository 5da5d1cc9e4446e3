"""Calling a grouped program: ``GroupedCaller(program, loop)(a, b, inputs, out, offsets)``.

Each group is checked as a call of its own; what is found of a combination of shapes, strides, types and alignments is
kept, since sizes of groups come again. One launch then does all groups that have something to compute.
"""

from __future__ import annotations

import ctypes
import struct
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from evt.build import build_and_use
from evt.diagnostics import Diagnostic
from evt.errors import ArgumentError, EvtError, LaunchError
from evt.ir import Input, Output, TypedDag
from evt.ir.dtype import I32
from evt.ir.node import base
from evt.plan import Layout, Signature
from evt.plan.family_grouped import GroupedPlan, plan_grouped
from evt.plan.plan import Field
from evt.reference import reference
from evt.runtime.arguments import bind, is_number
from evt.runtime.groups import Group, Groups, split
from evt.runtime.kernels import device_target, kernel_sources
from evt.runtime.library import Library, launch_failure, load_library
from evt.runtime.overlap import find_overlap
from evt.runtime.tensors import Bound

if TYPE_CHECKING:
    from evt.program import Program

#: Remembered combinations of one group before the memory is emptied.
_MAX_KNOWN = 65536

_TENSORS = frozenset({torch.Tensor, torch.nn.Parameter})
_USUAL = _TENSORS | {float, int}
_is_grad_enabled = torch.is_grad_enabled


@dataclass(slots=True)
class Known:
    """A checked group: its metadata, and the words that it decides in the rows of the plan that asked last."""

    bound: Bound
    signature: Signature
    empty: bool
    last: tuple[GroupedPlan, tuple[int, ...]] | None = None

    def sizes(self, plan: GroupedPlan) -> tuple[int, ...]:
        """The words of the plan's rows of sizes, in order."""
        last = self.last
        if last is None or last[0] is not plan:
            words = tuple(_size(self.bound, field) for field in plan.group_fields if field.kind == "size")
            last = self.last = plan, words
        return last[1]


def _size(bound: Bound, field: Field) -> int:
    """An extent, or the stride of a tensor along a mode."""
    return bound.tensors[field.tensor].strides.get(field.role, 0) if field.tensor else bound.sizes[field.role]


class GroupedCaller:
    """The callable side of a grouped program; ``loop`` launches a kernel for each group.

    ``program`` is one group's, whose ``infer`` gives equal groups the same object.
    """

    def __init__(self, program: Program, loop: bool) -> None:
        self.program = program
        self.loop = loop
        #: Whether numbers are whole ones, which are checked one by one.
        self._exact = any(value.dtype == I32 for value in program.dag.inputs)
        self._known: dict[object, Known] = {}
        self._signatures: dict[Signature, Signature] = {}
        self._kernels: dict[object, tuple[GroupedPlan, Library, object]] = {}
        self._lock = threading.Lock()

    def __call__(self, a: object, b: object, inputs: Mapping[str, object], out: object, offsets: object) -> Any:
        groups = split(self.program, a, b, inputs, out, offsets)
        known = [self._bind(index, group) for index, group in enumerate(groups.members)]
        self._check_alike(known)
        self._check_overlap(groups.members, known)
        fresh = self._allocate(groups, known)
        if self.loop:
            for group in groups.members:
                self.program(group.a, group.b, out=group.buffers, **group.inputs)
        else:
            if fresh:  # what is known now is of packed outputs, not of parts of larger ones
                known = [self._bind(index, group) for index, group in enumerate(groups.members)]
            self._run(groups.members, known)
        wholes = {**groups.wholes, **fresh}
        results = [
            wholes[name] if name in wholes else [group.buffers[name] for group in groups.members]
            for name in self.program.outputs
        ]
        return results[0] if len(results) == 1 else self.program.result_type(*results)

    # Checks

    def _bind(self, index: int, group: Group) -> Known:
        """The group's metadata, checked. Raises ArgumentError and ProgramError that name the group."""
        values = (group.a, group.b, *group.inputs.values(), *group.buffers.values())
        if any(type(value) not in _USUAL for value in values):
            _make_plain(group)
            values = (group.a, group.b, *group.inputs.values(), *group.buffers.values())
        try:
            key: object = (
                _is_grad_enabled(),
                *group.inputs,
                *group.buffers,
                *(
                    (v.shape, v.stride(), v.dtype, v.get_device(), v.requires_grad, v.data_ptr() & 15)
                    if type(v) in _TENSORS
                    else v
                    if self._exact
                    else type(v)
                    for v in values
                ),
            )
            known = self._known.get(key)
        except (RuntimeError, TypeError):  # a tensor without memory or shape, an unusual value: bind says so
            key = known = None
        if known is not None:
            return known
        try:
            bound = bind(self.program, group.a, group.b, group.inputs, group.buffers)
        except EvtError as error:
            said = (replace(each, message=f"group {index}: {each.message}") for each in error.diagnostics)
            raise type(error)(said) from None
        if bound.sizes["l"] != 1:
            message = f"group {index}: A and B are batched; a group has one matrix product"
            raise ArgumentError(Diagnostic("E0604", message))
        with self._lock:
            signature = _without_vectors(bound)
            signature = self._signatures.setdefault(signature, signature)
            known = Known(bound, signature, 0 in bound.sizes.values())
            if len(self._known) >= _MAX_KNOWN:
                self._known.clear()
            if key is not None:
                self._known[key] = known
        return known

    def _check_alike(self, known: Sequence[Known]) -> None:
        """All groups must be the same program on one device."""
        if not known:
            return
        first = known[0].bound
        for index, each in enumerate(known):
            if each.bound.device != first.device:
                message = f"group {index} is on {each.bound.device}, group 0 on {first.device}"
                raise ArgumentError(Diagnostic("E0605", message))
            if each.bound.dag is not first.dag:
                mine, theirs = (_types(bound.dag) for bound in (each.bound, first))
                message = f"group {index} has {mine}, group 0 {theirs}; all groups must have the same types"
                raise ArgumentError(Diagnostic("E0603", message))

    def _check_overlap(self, groups: Sequence[Group], known: Sequence[Known]) -> None:
        """Refuse buffers that share memory within a group (but element by element), or between groups."""
        if not groups or not groups[0].buffers:
            return
        spans = []
        for index, (group, each) in enumerate(zip(groups, known, strict=True)):
            named = [("A", group.a), ("B", group.b), *group.inputs.items(), *group.buffers.items()]
            tensors = [(name, value) for name, value in named if isinstance(value, torch.Tensor) and value.numel()]
            buffers = [name for name, _ in tensors if name in group.buffers]
            if each.empty and not buffers:
                continue
            overlap = find_overlap(each.bound, tensors, buffers)
            addresses = [tensor.data_ptr() for _, tensor in tensors]
            overlap.check(addresses, len(buffers), partial(list, [name for name, _ in tensors]))
            for (name, _), start, size in zip(tensors, addresses, overlap.spans, strict=True):
                spans.append((start, start + size, index, name in group.buffers, name))
        open_spans: list[tuple[int, int, int, bool, str]] = []
        for span in sorted(spans):
            start, _, index, written, name = span
            open_spans = [other for other in open_spans if other[1] > start]
            for _, _, other_index, other_written, other in open_spans:
                if other_index != index and (written or other_written):
                    message = f"`{name}` of group {index} shares memory with `{other}` of group {other_index}"
                    raise ArgumentError(Diagnostic("E0609", message, help="pass buffers of their own"))
            open_spans.append(span)

    # Results

    def _allocate(self, groups: Groups, known: Sequence[Known]) -> dict[str, torch.Tensor]:
        """Give every group buffers for what the call gave none; with offsets parts of one tensor, which is returned."""
        wholes: dict[str, torch.Tensor] = {}
        if not known:
            return wholes
        for output in known[0].bound.dag.outputs:
            if output.name in groups.members[0].buffers:
                continue
            modes = [base(mode) for mode in output.modes]
            if groups.offsets and "m" in modes:
                whole = self._whole(output, modes.index("m"), groups, known)
                wholes[output.name] = whole
                buffers = groups.rows(whole, modes.index("m"))
            else:
                buffers = [_empty(each.bound, output, each.bound.output_shape(output)) for each in known]
            for group, buffer in zip(groups.members, buffers, strict=True):
                group.buffers[output.name] = buffer
        return wholes

    def _whole(self, output: Output, dim: int, groups: Groups, known: Sequence[Known]) -> torch.Tensor:
        shapes = [list(each.bound.output_shape(output)) for each in known]
        for shape in shapes:
            shape[dim] = groups.offsets[-1]
        if any(shape != shapes[0] for shape in shapes):
            message = f"with `offsets`, the groups of `{output.name}` must have the same n"
            raise ArgumentError(Diagnostic("E0604", message, help="pass lists of tensors"))
        return _empty(known[0].bound, output, shapes[0])

    # Running

    def _run(self, groups: Sequence[Group], known: Sequence[Known]) -> None:
        if not groups:
            return
        device = known[0].bound.device
        busy = []
        for index, (group, each) in enumerate(zip(groups, known, strict=True)):
            if device.type == "cpu" or each.empty:
                self._evaluate(group, each.bound)
            else:
                busy.append(index)
        if not busy:
            return
        members = [groups[index] for index in busy]
        checked = [known[index] for index in busy]
        index = device.index if device.index is not None else torch.cuda.current_device()
        varies = _flexible(busy, checked)
        signature = self._signature(busy, checked)
        plan, library = self._kernel(checked[0].bound.dag, signature, index)
        try:
            table = make_table(plan, members, checked)
        except OverflowError:  # an int that no double holds
            for group in members:
                bind(self.program, group.a, group.b, group.inputs, group.buffers)
            raise
        with torch.cuda.device(index):
            launch(plan, library, table, len(members), varies, device)

    def _evaluate(self, group: Group, bound: Bound) -> None:
        """The reference's answer: on the CPU, and for an empty product, which is all zeros."""
        results = reference(bound.dag, group.a, group.b, group.inputs)
        for name, buffer in group.buffers.items():
            buffer.copy_(results[name].reshape(buffer.shape))

    def _signature(self, indices: Sequence[int], known: Sequence[Known]) -> Signature:
        """The layouts that all groups have in common: one contiguous mode, the least alignment."""
        found = {id(each.signature): each.signature for each in known}
        if len(found) == 1:
            return known[0].signature
        for name in ("A", "B", "D"):
            modes = [_contiguous(each.signature, name) for each in known]
            for index, mode in zip(indices, modes, strict=True):
                if mode != modes[0]:
                    message = f"`{name}` is contiguous along {mode} in group {index}, {modes[0]} in group {indices[0]}"
                    help_text = f'pass {name}.contiguous() in every group, or use route="loop"'
                    raise ArgumentError(Diagnostic("E0606", message, help=help_text))
        signatures = list(found.values())
        names = [name for name, _ in signatures[0].tensors]
        common = Signature(
            _common([each.a for each in signatures]),
            _common([each.b for each in signatures]),
            tuple((name, _common([each[name] for each in signatures])) for name in names),
        )
        with self._lock:
            return self._signatures.setdefault(common, common)

    def _kernel(self, dag: TypedDag, signature: Signature, device: int) -> tuple[GroupedPlan, Library]:
        # Both are the same objects at every call; hashing a graph would cost more than all the rest.
        key = id(dag), id(signature), torch.cuda.get_device_capability(device)
        with self._lock:
            found = self._kernels.get(key)
            if found is None:
                _refuse_capture()
                settings, options = self.program.settings, self.program.options()
                optimised, target = self.program.optimise(dag), device_target(device)
                plan = plan_grouped(optimised, signature, target, config=settings.config, options=options)
                (library,) = build_and_use(kernel_sources([plan]), lambda _, path: load_library(path, plan))
                found = self._kernels[key] = plan, library, (dag, signature)
        return found[:2]


def make_table(plan: GroupedPlan, groups: Sequence[Group], known: Sequence[Known]) -> bytes:
    """The rows of the plan's table, one after the other, of a word for each group."""
    rows: list[bytes] = []
    sizes = list(zip(*(each.sizes(plan) for each in known), strict=True))
    taken = 0
    defaults = {value.name: value.default for value in known[0].bound.dag.inputs}
    for field in plan.group_fields:
        name = field.tensor
        if field.kind == "size":
            rows.append(struct.pack(f"={len(groups)}q", *sizes[taken]))
            taken += 1
            continue
        values = [_value(group, name) for group in groups]
        if field.kind == "pointer":
            addresses = [value.data_ptr() if isinstance(value, torch.Tensor) else 0 for value in values]
            rows.append(struct.pack(f"={len(groups)}Q", *addresses))
        else:
            default = defaults[name] or 0.0
            numbers = [float(value) if is_number(value) else default for value in values]
            rows.append(struct.pack(f"={len(groups)}d", *numbers))
    return b"".join(rows)


def _value(group: Group, name: str) -> Any:
    if name in ("A", "B"):
        return group.a if name == "A" else group.b
    return group.buffers[name] if name in group.buffers else group.inputs.get(name)


def launch(
    plan: GroupedPlan, library: Library, table: bytes, groups: int, varies: Mapping[str, bool], device: torch.device
) -> None:
    """Launch on the current stream of the current device. Raises LaunchError."""
    address = ctypes.cast(ctypes.c_char_p(table), ctypes.c_void_p).value or 0
    workspace = 0

    def arguments() -> bytes:
        values = {"table": address, "workspace": workspace, "groups": groups}
        words = [
            int(varies[field.role.removeprefix("varies ")])
            if field.role.startswith("varies ")
            else values.get(field.role, 0)
            for field in plan.fields
        ]
        return struct.pack(f"={library.form}", *words)

    needed = library.workspace(arguments())
    memory = torch.empty(needed, dtype=torch.uint8, device=device)  # the allocator keeps it until the kernel is done
    workspace = memory.data_ptr()
    packed = arguments()
    code = library.run(packed, len(packed), torch.cuda.current_stream().cuda_stream)
    if code:
        raise launch_failure(code)


def _flexible(indices: Sequence[int], known: Sequence[Known]) -> dict[str, bool]:
    """Of each flexible input, whether it is a vector: in all groups, or in none; one element may be either."""
    result: dict[str, bool] = {}
    for value in known[0].bound.dag.inputs:
        if not value.flexible:
            continue
        (mode,) = (base(mode) for mode in value.modes if mode != "l")
        found: dict[bool, int] = {}
        for index, each in zip(indices, known, strict=True):
            if each.bound.sizes[mode] > 1:
                tensor = each.bound.tensors.get(value.name)
                found.setdefault(tensor is not None and tensor.strides[mode] != 0, index)
        if len(found) > 1:
            message = f"`{value.name}` is a vector in group {found[True]} and a single value in group {found[False]}"
            raise ArgumentError(Diagnostic("E0604", message))
        result[value.name] = next(iter(found), False)
    return result


def _without_vectors(bound: Bound) -> Signature:
    """A group's signature; of vectors, kernels read one element at a time, whatever the alignment."""
    values: tuple[Input | Output, ...] = (*bound.dag.inputs, *bound.dag.outputs)
    signature, tiles = bound.signature, [value.name for value in values if value.is_tile]
    tensors = ((name, layout if name in tiles else replace(layout, alignment=1)) for name, layout in signature.tensors)
    return replace(signature, tensors=tuple(tensors))


def _contiguous(signature: Signature, name: str) -> str | None:
    if name in ("A", "B"):
        return (signature.a if name == "A" else signature.b).contiguous
    return dict(signature.tensors).get(name, Layout(None, 1)).contiguous


def _common(layouts: Sequence[Layout]) -> Layout:
    contiguous = {layout.contiguous for layout in layouts}
    if len(contiguous) > 1:
        return Layout(None, 1)
    return replace(layouts[0], alignment=min(layout.alignment for layout in layouts))


def _types(dag: TypedDag) -> str:
    operands = [f"{operand.name}: {operand.dtype}" for operand in dag.operands]
    return ", ".join([*operands, *(f"{value.name}: {value.dtype}" for value in dag.inputs)])


def _empty(bound: Bound, output: Output, shape: Sequence[int]) -> torch.Tensor:
    assert output.dtype is not None
    return torch.empty(tuple(shape), dtype=getattr(torch, output.dtype.torch), device=bound.device)


def _make_plain(group: Group) -> None:
    """Tensors without their subclasses."""
    group.a, group.b = _plain(group.a), _plain(group.b)
    for values in (group.inputs, group.buffers):
        for name, value in values.items():
            values[name] = _plain(value)


def _plain(value: Any) -> Any:
    if isinstance(value, torch.Tensor) and type(value) not in _TENSORS:
        return value.as_subclass(torch.Tensor)
    return value


def _refuse_capture() -> None:
    """A kernel is built and loaded outside CUDA graph capture: loading may synchronise, which ends the capture."""
    if torch.cuda.is_available() and torch.cuda.is_current_stream_capturing():
        raise LaunchError(
            Diagnostic(
                "E0803",
                "a program's first call with these types and layouts is inside CUDA graph capture",
                help="call it once before the capture, which builds and loads its kernel",
            )
        )
