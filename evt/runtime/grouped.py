"""Calling a grouped program: ``GroupedCaller(request)(a, b, inputs, out, offsets)``.

Each group is checked as a separate call; the result for a combination of shapes, strides, types and alignments is kept,
since the sizes of groups repeat. One launch then computes all groups that have work.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any

import torch
from torch.autograd import forward_ad
from torch.autograd.graph import increment_version

from evt.compilation import build_and_use
from evt.diagnostics import Diagnostic
from evt.errors import ArgumentError, EvtError
from evt.ir import Input, Output, TypedDag
from evt.ir.node import OFFSETS, base
from evt.measured import Timing, applicable, is_measured, measurements, size_class
from evt.plan import LayoutClass, Plan, Problem, Signature, Target, plan, survey
from evt.plan.plan import GroupedPlan
from evt.reference import reference
from evt.request import LOOP, Request, common_signature, optimised_for, options
from evt.request.ragged import ragged_request, selects_ragged
from evt.runtime.arguments import bind
from evt.runtime.bound import Bound
from evt.runtime.call import Caller
from evt.runtime.given import split_held
from evt.runtime.groups import Group, Groups, split
from evt.runtime.identity import Forms, alignments
from evt.runtime.kernels import device_target, refuse_capture
from evt.runtime.library import Library, load_library
from evt.runtime.no_kernel import KernelWarnings
from evt.runtime.overlap import MemoryRange, check_groups, find_overlap
from evt.runtime.plans import kernel_sources
from evt.runtime.results import gather
from evt.runtime.table import Known, launch, make_table
from evt.runtime.tensor_checks import reaches_memory, tracing_fault, write
from evt.runtime.values import WHOLE
from evt.untraced import untraced

#: The number of combinations of one group that are kept before all are dropped.
_MAX_KNOWN = 65536


class GroupedCaller:
    """The callable side of a grouped program; groups of equal types share one typed graph."""

    def __init__(self, request: Request) -> None:
        #: The program of one group.
        self.request = request.member
        #: Launches a kernel for each group: where that was asked for, or measured to be the fastest.
        self._loop = Caller(self.request)
        self._inputs, self._outputs = self.request.inputs, self.request.outputs
        #: The outputs that are stored by an index: groups may share a buffer.
        self._scattered = {output.name for output in request.dag.outputs if output.is_indexed}
        self._forms = Forms()
        self._looped = request.settings.route == LOOP
        self._grouped, self._is_ragged = request, selects_ragged(request)
        #: The route that the user selected, if it is not for groups of rows.
        self._other = None if self._is_ragged else request.settings.route
        self._forced = request.is_forced
        self._gather = gather(request.outputs)
        #: Whether some input is i32; its numbers are checked individually.
        self._exact = any(value.dtype in WHOLE for value in request.dag.inputs)
        self._known: dict[object, Known] = {}
        self._signatures: dict[Signature, Signature] = {}
        self._kernels: dict[object, _Kernels] = {}
        self._warn = KernelWarnings()
        self._lock = threading.Lock()

    @untraced
    def __call__(self, a: Any, b: Any, inputs: Mapping[str, object], out: object, offsets: object) -> Any:
        if isinstance(offsets, torch.Tensor) and offsets.device.type == "cuda":
            return self._call_ragged(a, b, {**inputs, OFFSETS: offsets}, out)
        if traced := tracing_fault():
            raise ArgumentError(traced)
        groups = split(self.request, a, b, inputs, out, offsets)
        if groups.offsets and not groups.members:
            ends = torch.empty(0, dtype=torch.int32, device=getattr(a, "device", None))
            return self._ragged(a, b, {**inputs, OFFSETS: ends}, out)
        given = [dict(group.buffers) for group in groups.members]
        known = [self._bind(index, group) for index, group in enumerate(groups.members)]
        self._check_alike(known)
        self._check_overlap(groups.members, known)
        fresh = self._allocate(groups, known)
        if self._looped:
            self._launch_each(groups.members)
        else:
            if fresh:  # the metadata so far assumes packed outputs, not parts of larger ones
                known = [self._bind(index, group) for index, group in enumerate(groups.members)]
            self._run(groups.members, known)
        wholes = {**groups.wholes, **fresh}
        results = [
            wholes[name]
            if name in wholes
            else [mine.get(name, group.buffers[name]) for mine, group in zip(given, groups.members, strict=True)]
            for name in self.request.outputs
        ]
        return self._gather(results)

    def _call_ragged(self, a: Any, b: Any, inputs: Mapping[str, object], out: object) -> Any:
        """Call the program of groups of rows, whose ends the host does not read."""
        if self._other is not None:
            message = f"`offsets` is on the GPU, and the route {self._other} reads it on the host"
            raise ArgumentError(Diagnostic("E0605", message, help="leave out the route, or pass a list"))
        return self._ragged(a, b, inputs, out)

    @cached_property
    def _ragged(self) -> Caller:
        return Caller(ragged_request(self._grouped))

    # Checks

    def _bind(self, index: int, group: Group) -> Known:
        """Return the group's checked metadata. Raise ArgumentError and ProgramError that name the group."""
        key, addresses = self._key(group)
        if key is None:
            group.make_plain()
            key, addresses = self._key(group)
        known = self._known.get(key)
        if known is not None:
            if addresses in known.places:
                return known
            if all(map(reaches_memory, group.tensors())):
                known.places.remember(addresses)
                return known
        try:
            bound = bind(self.request, group.a, group.b, group.inputs, group.buffers)
        except EvtError as error:
            said = (replace(each, message=f"group {index}: {each.message}") for each in error.diagnostics)
            raise type(error)(said) from None
        if bound.sizes["l"] != 1:
            message = f"group {index}: A and B are batched; a group has one matrix product"
            raise ArgumentError(Diagnostic("E0604", message))
        with self._lock:
            signature = _without_vectors(bound)
            signature = self._signatures.setdefault(signature, signature)
            known = Known(replace(bound, values={}), signature, 0 in bound.sizes.values())  # without keeping tensors
            if len(self._known) >= _MAX_KNOWN:
                self._known.clear()
            if key is not None:
                self._known[key] = known
        return known

    def _key(self, group: Group) -> tuple[object, tuple[int, ...]]:
        """Return the key of a group, and its tensors' addresses; None if only :func:`bind` can decide."""
        values = (
            group.a,
            group.b,
            *map(group.inputs.get, self._inputs),
            *map(group.buffers.get, self._outputs),
        )
        found = None
        if forward_ad._current_level < 0:
            found = self._forms.identify(values, 2 + len(group.inputs) + len(group.buffers))
        if found is None or found[-1]:
            return None, ()
        form, _, addresses, facts, _ = found
        numbers = form.numbers(values) if self._exact else ()
        return (form, *numbers, *alignments(addresses), *facts), tuple(addresses)

    def _check_alike(self, known: Sequence[Known]) -> None:
        """Check that all groups are the same program on one device."""
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
        """Refuse buffers that share memory within a group (except element by element), or between groups."""
        if not groups or not groups[0].buffers:
            return
        ranges: list[MemoryRange] = []
        for index, (group, each) in enumerate(zip(groups, known, strict=True)):
            if each.empty and not any(buffer.numel() for buffer in group.buffers.values()):
                continue
            tensors = group.named_tensors()
            names, addresses = [name for name, _ in tensors], [tensor.data_ptr() for _, tensor in tensors]
            buffers = [name for name in names if name in group.buffers]
            each.overlap = each.overlap or find_overlap(each.bound, tensors, buffers)
            each.overlap.check(addresses, len(buffers), partial(list, names))
            found = each.overlap.ranges(index, names, addresses, len(buffers))
            ranges += [place for place in found if place.name not in self._scattered]
        check_groups(ranges)

    # Results

    def _allocate(self, groups: Groups, known: Sequence[Known]) -> dict[str, torch.Tensor]:
        """Allocate buffers that the call does not give; with offsets, return the tensors that the groups share."""
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
                buffers = [torch.empty_like(each.prototype(output)) for each in known]
            for group, buffer in zip(groups.members, buffers, strict=True):
                group.buffers[output.name] = buffer
        return wholes

    def _whole(self, output: Output, dim: int, groups: Groups, known: Sequence[Known]) -> torch.Tensor:
        shapes = [list(each.prototype(output).shape) for each in known]
        for shape in shapes:
            shape[dim] = groups.total
        if any(shape != shapes[0] for shape in shapes):
            message = f"with `offsets`, the groups of `{output.name}` must have the same n"
            raise ArgumentError(Diagnostic("E0604", message, help="pass lists of tensors"))
        return known[0].prototype(output).new_empty(shapes[0])

    # Running

    def _run(self, groups: Sequence[Group], known: Sequence[Known]) -> None:
        if not groups:
            return
        device = known[0].bound.device
        self._judge(known)
        busy = []
        for index, (group, each) in enumerate(zip(groups, known, strict=True)):
            if device.type == "cpu" or each.empty:
                self._evaluate(group, each.bound)
            else:
                busy.append(index)
        if not busy:
            return
        if self._is_ragged:
            message = "the selected route takes `offsets` on the GPU"
            raise ArgumentError(Diagnostic("E0605", message, help="leave out the route, or move it: offsets.cuda()"))
        members = [groups[index] for index in busy]
        checked = [known[index] for index in busy]
        index = checked[0].bound.index
        varies = _flexible(busy, checked)
        signature = self._signature(busy, checked)
        kernel = self._kernel(checked, signature)
        if kernel is None:
            self._launch_each(members)
            return
        plan, library = kernel
        try:
            table = make_table(plan, members, checked)
        except OverflowError:  # an int beyond the range of double
            for group in members:
                bind(self.request, group.a, group.b, group.inputs, group.buffers)
            raise
        with torch.cuda.device(index):
            launch(plan, library, table, len(members), varies, device)
        increment_version([buffer for group in members for buffer in group.buffers.values()])  # autograd may save them

    def _launch_each(self, groups: Sequence[Group]) -> None:
        """Launch a kernel for each group."""
        for group in groups:
            self._loop.run(group.a, group.b, group.inputs, group.buffers)

    def _judge(self, known: Sequence[Known]) -> None:
        """Warn once about a call that the CPU computes and the grouped kernel would not."""
        if known[0].bound.device.type != "cpu":
            return
        busy = [(index, each) for index, each in enumerate(known) if not each.empty]
        if not busy:
            return
        indices, checked = zip(*busy, strict=True)

        def made(target: Target) -> Plan:
            problem = self._problem(checked[0].bound, self._signature(indices, checked), target)
            return plan(problem, config=self.request.settings.config)

        kind = checked[0].bound.dag, frozenset(each.signature for each in checked)
        self._warn(kind, made, checked[0].bound)

    def _evaluate(self, group: Group, bound: Bound) -> None:
        """Compute a group with the reference: on the CPU, and for an empty product, which is all zeros."""
        if not any(buffer.numel() for buffer in group.buffers.values()):
            return
        group.make_plain()  # removes dimension names, which no kernel sees
        try:
            _, held = split_held(bound.dag, group.buffers)
            results = reference(bound.dag, group.a, group.b, {**group.inputs, **held})
        except OverflowError:  # an int beyond the range of double
            bind(self.request, group.a, group.b, group.inputs, group.buffers)
            raise
        for name, buffer in group.buffers.items():
            write(buffer, results[name])

    def _signature(self, indices: Sequence[int], known: Sequence[Known]) -> Signature:
        """Return the layouts that all groups have in common: one contiguous mode, the least alignment."""
        found = {id(each.signature): each.signature for each in known}
        if len(found) == 1:
            return known[0].signature
        for name in ("A", "B", known[0].bound.dag.primary.name):
            modes = [_contiguous(each.signature, name) for each in known]
            for index, mode in zip(indices, modes, strict=True):
                if mode != modes[0]:
                    message = f"`{name}` is contiguous along {mode} in group {index}, {modes[0]} in group {indices[0]}"
                    help_text = 'use route="loop"'
                    if name in ("A", "B"):
                        help_text = f"pass {name}.contiguous() in every group, or {help_text}"
                    raise ArgumentError(Diagnostic("E0606", message, help=help_text))
        common = common_signature(list(found.values()))
        with self._lock:
            return self._signatures.setdefault(common, common)

    def _kernel(self, known: Sequence[Known], signature: Signature) -> tuple[GroupedPlan, Library] | None:
        """Return the kernel for groups, or None if a kernel for each group was measured to be faster."""
        bound = known[0].bound
        # Both are the same objects at every call; hashing a graph would cost more than everything else.
        key = id(bound.dag), id(signature), torch.cuda.get_device_capability(bound.index)
        with self._lock:
            found = self._kernels.get(key)
            if found is None:
                refuse_capture()
                problem = self._problem(bound, signature, device_target(bound.index))
                found = self._kernels[key] = _Kernels(problem, (bound.dag, signature), self._is_measured(problem))
            best = found.best(known) if found.measured else None
            if best is not None and best.route == LOOP:
                return None
            config = self.request.settings.config if best is None else best.config
            return found.made.get(config) or found.make(config)

    def _is_measured(self, problem: Problem) -> bool:
        """Return whether measurements choose among a problem's kernels; they do not override the user's choice."""
        return not self._forced and is_measured(problem)

    def forget(self) -> None:
        """Choose again: another kernel may be the best one now."""
        with self._lock:
            for found in self._kernels.values():
                found.choices.clear()
                found.measured = self._is_measured(found.problem)
        if "_ragged" in self.__dict__:
            self._ragged.forget()

    def _problem(self, bound: Bound, signature: Signature, target: Target) -> Problem:
        optimised = optimised_for(self.request, bound.dag.operands, bound.absent)
        read = signature.only({*optimised.input, *optimised.output})
        return Problem(optimised, read, target, options(self.request.settings, False), grouped=True)

    def ask(
        self, a: object, b: object, inputs: Mapping[str, object], offsets: object
    ) -> tuple[Callable[[Target], Problem], list[Group], list[Bound]]:
        """Return the planner's problem for a call on a target, and the groups of the call that have work.

        These have no buffers.
        """
        groups = split(self.request, a, b, inputs, None, offsets)
        known = [self._bind(index, group) for index, group in enumerate(groups.members)]
        self._check_alike(known)
        self._allocate(groups, known)
        known = [self._bind(index, group) for index, group in enumerate(groups.members)]
        busy = [index for index, each in enumerate(known) if not each.empty]
        checked = [known[index] for index in busy]

        def problem(target: Target) -> Problem:
            return self._problem(checked[0].bound, self._signature(busy, checked), target)

        members = [replace(groups.members[index], buffers={}) for index in busy]
        return problem, members, [each.bound for each in checked]


@dataclass(slots=True)
class _Kernels:
    """The kernels for groups of one graph, layout and kind of GPU, by configuration.

    ``measured``: whether anything was measured of the problem; ``choices`` are the kernels to take, by GPU and class of
    sizes. ``kept`` keeps the objects alive whose ids are the key.
    """

    problem: Problem
    kept: object
    measured: bool
    made: dict[str | None, tuple[GroupedPlan, Library]] = field(default_factory=dict)
    choices: dict[object, Timing | None] = field(default_factory=dict)

    def best(self, known: Sequence[Known]) -> Timing | None:
        """Return the kernel that was measured to be the best for groups of such sizes, or None."""
        sizes, index = size_class([each.bound.sizes for each in known]), known[0].bound.index
        key = index, *sizes.items()
        if key not in self.choices:
            found = measurements(self.problem, sizes, torch.cuda.get_device_name(index))
            self.choices[key] = applicable(survey(self.problem), found[0]) if found else None
        return self.choices[key]

    def make(self, config: str | None) -> tuple[GroupedPlan, Library]:
        """Plan, build and load the kernel of a configuration; None is the general one."""
        refuse_capture()
        made = plan(self.problem, config=config)
        assert isinstance(made, GroupedPlan)
        sources = kernel_sources([made])
        (library,) = build_and_use(sources, lambda at, path: load_library(path, made, sources[at].name))
        self.made[config] = made, library
        return self.made[config]


def _flexible(indices: Sequence[int], known: Sequence[Known]) -> dict[str, bool]:
    """Return for each flexible input (``[m?]``) whether it is a vector in all groups, or in none.

    One element may be either. Raise ArgumentError where groups differ.
    """
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
    """Return a group's signature; kernels read vectors one element at a time, so their alignment does not count."""
    values: tuple[Input | Output, ...] = (*bound.dag.inputs, *bound.dag.outputs)
    signature, tiles = bound.signature, [value.name for value in values if value.is_tile]
    tensors = ((name, layout if name in tiles else replace(layout, alignment=1)) for name, layout in signature.tensors)
    return replace(signature, tensors=tuple(tensors))


def _contiguous(signature: Signature, name: str) -> str | None:
    if name in ("A", "B"):
        return (signature.a if name == "A" else signature.b).contiguous
    return dict(signature.tensors).get(name, LayoutClass(None, 1)).contiguous


def _types(dag: TypedDag) -> str:
    operands = [f"{operand.name}: {operand.dtype}" for operand in dag.operands]
    return ", ".join([*operands, *(f"{value.name}: {value.dtype}" for value in dag.inputs)])
