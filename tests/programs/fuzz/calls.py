"""A problem's call with tensors in larger buffers, and the kernel that evt plans for it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from evt.compilation import KernelSource
from evt.ir.dtype import DType
from evt.ir.node import OFFSETS
from evt.plan import Problem, Target, survey
from evt.plan.survey import Survey
from evt.request import Request, typed_for, typed_graph
from evt.request.ragged import ragged_request
from evt.runtime.arguments import bind
from evt.runtime.groups import split
from evt.runtime.kernels import call_problem
from evt.runtime.plans import check_batches, check_sizes, kernel_sources

from ..call import Data, arguments, buffers, problems
from ..checks import make, operand_types
from ..interface import is_image, memory_modes, reductions
from ..outputs import shape_of
from ..tree import Input, Output, Program
from ..views import Views
from . import offsets
from .memory import MARGIN, POISON, Freedom, Kept, Placement, place


@dataclass(frozen=True)
class Member:
    """The tensors of one product: A and B, inputs (numbers too), buffers of outputs."""

    a: Kept
    b: Kept
    inputs: Mapping[str, Kept | float | int]
    outputs: Mapping[str, Kept]

    @property
    def read(self) -> Iterator[tuple[str, Kept]]:
        """The tensors that a kernel only reads."""
        yield from (("A", self.a), ("B", self.b))
        yield from ((name, value) for name, value in self.inputs.items() if isinstance(value, Kept))


@dataclass(frozen=True)
class Call:
    """A program's call: one member, or one for each group; groups of consecutive rows are one."""

    program: Program
    op: Any
    members: tuple[Member, ...]

    @property
    def grouped(self) -> bool:
        return self.program.operation == "grouped_gemm" and not self.program.by_offsets

    def results(self) -> list[dict[str, torch.Tensor]]:
        """Return the outputs of each problem."""
        found = [{name: kept.tensor for name, kept in each.outputs.items()} for each in self.members]
        if not self.program.by_offsets:
            return found
        outputs = {each.name: each for each in self.program.outputs}
        return [
            {name: offsets.part(self.program, outputs[name], value, group) for name, value in found[0].items()}
            for group in range(len(self.program.groups))
        ]

    def given(self) -> tuple[Any, Any, dict[str, Any], Any]:
        """Return A, B, the inputs and ``out`` as evt gets them."""
        members = [(m.a.tensor, m.b.tensor, _tensors(m.inputs), _tensors(m.outputs)) for m in self.members]
        if not self.grouped:
            a, b, inputs, out = members[0]
            return a, b, inputs, out if len(out) > 1 else next(iter(out.values()))
        of_a, of_b = ([each[index] for each in members] for index in (0, 1))
        given, into = (
            {name: [tensors[name] for tensors in each] for name in each[0]}
            for each in ([each[2] for each in members], [each[3] for each in members])
        )
        return of_a, of_b, given, into if len(into) > 1 else next(iter(into.values()))

    def poisoned(self, byte: int) -> Call:
        """Return the call with other buffers for its outputs, of other poison."""
        outputs = [{name: kept.poisoned(byte) for name, kept in each.outputs.items()} for each in self.members]
        members = (replace(each, outputs=new) for each, new in zip(self.members, outputs, strict=True))
        return replace(self, members=tuple(members))

    def run(self) -> None:
        a, b, inputs, out = self.given()
        op = self.op
        if self.program.by_offsets and a.device.type == "cpu":  # the host reads the ends
            kept = tuple(each for each in self.program.settings if each[0] not in ("route", "config"))
            op = make(replace(self.program, settings=kept))
            for each in self.program.inputs:
                if "l" in each.modes and isinstance(whole := inputs.get(each.name), torch.Tensor):
                    count = len(self.program.groups)
                    inputs[each.name] = [offsets.part(self.program, each, whole, group) for group in range(count)]
        op(a, b, out=out, **inputs)

    def problem(self, target: Target) -> tuple[Problem, Mapping[str, int]]:
        """Return the planner's problem of the call on a target, and its extents. Raise EvtError."""
        a, b, inputs, out = self.given()
        request = self.op.request
        if self.grouped:
            caller = self.op._caller
            groups = split(caller.request, a, b, inputs, out, None)
            known = [caller._bind(index, group) for index, group in enumerate(groups.members)]
            busy = [index for index, each in enumerate(known) if not each.empty]
            checked = [known[index] for index in busy]
            return caller._problem(checked[0].bound, caller._signature(busy, checked), target), {}
        named = out if isinstance(out, dict) else {self.op.outputs[0]: out}
        if self.program.by_offsets:
            request, inputs = ragged_request(request), {**inputs, OFFSETS: inputs.pop(offsets.OFFSETS)}
        bound = bind(request, a, b, inputs, named)
        return call_problem(request, bound, target, request.settings.deterministic is False), bound.sizes

    def survey(self, target: Target) -> Survey:
        """Return the survey of the call's kernels on the program's route and configuration."""
        problem, sizes = self.problem(target)
        settings = self.op.request.settings
        found = survey(problem, settings.route, settings.config)
        if not self.grouped:
            check_batches(found.problem.dag, found.chosen.route, found.problem.target, sizes["l"])
            check_sizes(found.plan, sizes)
        return found

    def source(self, target: Target) -> KernelSource:
        (source,) = kernel_sources([self.survey(target).plan])
        return source


def _tensors(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value.tensor if isinstance(value, Kept) else value for name, value in values.items()}


def made_call(program: Program, layouts: int, device: str, op: Any = None, margin: int = MARGIN) -> Call:
    """Return a program's call on a device, with poison in its outputs. Raise EvtError."""
    op = op or make(program)
    request = getattr(op, "_member", op).request
    if program.by_offsets:
        return Call(program, op, (_member_of_rows(program, request, problems(program), layouts, device, margin),))
    members = (_member(program, request, each, layouts, device, margin) for each in problems(program))
    return Call(program, op, tuple(members))


def _member(program: Program, request: Request, data: Data, layouts: int, device: str, margin: int) -> Member:
    views = Views(program, data)
    a, b, given = arguments(program, data)

    def placed(name: str, value: torch.Tensor, freedom: Freedom) -> Placement:
        return place(value, freedom, name, layouts, program.seed, margin)

    def kept(name: str, value: torch.Tensor, freedom: Freedom) -> Kept:
        return Kept.of(value, placed(name, value, freedom), device, POISON[0])

    inputs: dict[str, Kept | float | int] = {}
    for value in program.inputs:
        if value.name in given:
            found = given[value.name]
            if isinstance(found, torch.Tensor):
                found = kept(value.name, found, _of_input(program, value, views, found.dim()))
            inputs[value.name] = found
    held, over = buffers(program, data), reductions(program)
    types = _types_of_outputs(program, request)
    outputs = {}
    for output in program.outputs:
        dtype, kept_before = types[output.name], held.get(output.name)
        if kept_before is None:
            shape = shape_of(program, data, output, dtype.name, over.get(output.name, frozenset()))
            like = torch.empty(shape, dtype=getattr(torch, dtype.torch), device="meta")
        else:
            like = kept_before
        where = placed(output.name, like, _of_output(program, output, like.dim()))
        outputs[output.name] = Kept.of(kept_before, where, device, POISON[0])
    return Member(kept("A", a, _of_operand(program, a)), kept("B", b, _of_operand(program, b)), inputs, outputs)


def _types_of_outputs(program: Program, request: Request) -> dict[str, DType]:
    absent = [each.name for each in program.inputs if each.given == "absent" and each.modes]
    dag = typed_for(request, typed_graph(request, *operand_types(program)).operands, tuple(absent))
    return {each.name: each.dtype for each in dag.outputs if each.dtype is not None}


def _member_of_rows(
    program: Program, request: Request, groups: list[Data], layouts: int, device: str, margin: int
) -> Member:
    """Return the tensors of groups of consecutive rows; the kernel writes no row behind them."""
    views = Views(program, groups[0])
    a, b, given = offsets.whole_arguments(program, groups)

    def kept(name: str, value: torch.Tensor, freedom: Freedom) -> Kept:
        return Kept.of(value, place(value, freedom, name, layouts, program.seed, margin), device, POISON[0])

    inputs: dict[str, Kept | float | int] = {}
    for name, value in given.items():
        if isinstance(value, torch.Tensor):
            of_input = next((each for each in program.inputs if each.name == name), None)
            freedom = Freedom(0) if of_input is None else _of_input(program, of_input, views, value.dim())
            inputs[name] = kept(name, value, freedom)
        else:
            inputs[name] = value
    types, outputs = _types_of_outputs(program, request), {}
    for output in program.outputs:
        dtype, axis = types[output.name], offsets.axis_of_rows(program, output)
        shape = [*offsets.whole_shape(program, groups, output, dtype.name)]
        like = torch.empty(shape, dtype=getattr(torch, dtype.torch), device="meta")
        whole = place(like, _of_output(program, output, like.dim()), output.name, layouts, program.seed, margin)
        if axis is not None:
            shape[axis] = sum(offsets.rows_of(program))
        made = Kept.of(None, replace(whole, shape=tuple(shape)), device, POISON[0])
        outputs[output.name] = replace(made, whole=whole)
    return Member(kept("A", a, _of_operand(program, a)), kept("B", b, _of_operand(program, b)), inputs, outputs)


def _of_operand(program: Program, value: torch.Tensor) -> Freedom:
    if program.geometry is not None:
        return Freedom(image=True)
    if value.dtype == torch.int32:  # words of packed elements
        return Freedom(value.dim() - 1, dense=True)
    unit = value.dim() - (1 if value.stride(-1) == 1 else 2)
    return Freedom(unit, chained=value.dim() > 3 or (program.operation == "linear" and value.dim() > 2))


def _of_input(program: Program, value: Input, views: Views, rank: int) -> Freedom:
    modes = ("l", *value.modes) if value.given == "batched" else value.modes
    fixed = value.flexible or value.type == "b1" or "n/2" in value.modes or value.name in views.unit
    tile = {"m", "n"} <= set(modes)
    image = program.geometry is not None and tile and value.type != "b1" and not value.indexed
    return _freedom(program, rank, tile, fixed, image)


def _of_output(program: Program, output: Output, rank: int) -> Freedom:
    modes = memory_modes(output, reductions(program).get(output.name, frozenset()))
    tile = {"m", "n"} <= {each.partition("/")[0] for each in modes}
    return _freedom(program, rank, tile, output.type == "b1" or not tile, is_image(program, output))


def _freedom(program: Program, rank: int, tile: bool, fixed: bool, image: bool) -> Freedom:
    several = len(program.sizes.batch) > 1 or len(program.sizes.rows) > 1
    chained = several or (program.geometry is not None and not image) or not tile
    return Freedom(rank - 1 if fixed and rank else None, image, chained, sparse=not fixed and not chained)
