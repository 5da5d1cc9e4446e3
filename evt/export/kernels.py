"""The kernels of an exported program: ``kernels_of(program, targets, prefix) -> (Kernel, ...)``.

A kernel's requirements come from planning: it requires a layout of a tensor only if another layout would have made
another kernel.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from evt.diagnostics import Diagnostic
from evt.emission import Emitted, emitted
from evt.errors import ArgumentError, EvtError, TargetError
from evt.ir import Input, Operand, Output, TypedDag
from evt.ir.dtype import B1, PACKED_OPERANDS
from evt.ir.node import base, is_divided
from evt.plan import (
    TARGETS,
    LayoutClass,
    Plan,
    Problem,
    Signature,
    Sizes,
    Target,
    convolution_class,
    natural_signature,
    survey,
)
from evt.plan.signature import bytes_of
from evt.plan.sizes import LARGEST_OPERAND, UNKNOWN
from evt.request import Request, optimised_for, options, typed_for
from evt.request.graphs import operands_of

#: The largest number of kernels of a program for one target; each compiles for a minute.
_MOST = 16


@dataclass(frozen=True)
class Layouts:
    """The layouts that get kernels: by default packed tensors in the order of their subscripts, aligned to 16 bytes.

    ``contiguous`` are the modes of a tensor that may be contiguous, one kernel for each; ``shared`` are the tensors
    that all batches may share; ``alignments`` are alignments of all tensors, in bytes.
    """

    contiguous: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    shared: tuple[str, ...] = ()
    alignments: tuple[int, ...] = (16,)


@dataclass(frozen=True)
class Named:
    """A program to export: its name, and the types of A and B if the program leaves them open.

    ``layouts`` are the layouts that get kernels, or the signature of a single call; ``sizes`` are that call's sizes.
    """

    name: str
    request: Request
    a: str | None = None
    b: str | None = None
    layouts: Layouts | Signature = field(default_factory=Layouts)
    sizes: Sizes = UNKNOWN

    @property
    def dag(self) -> TypedDag:
        """The program with types, with all of its inputs."""
        return typed_for(self.request, operands_of(self.request, self.a, self.b))

    @property
    def values(self) -> dict[str, Operand | Input | Output]:
        """A and B, the inputs and the outputs, by their names."""
        return values_of(self.dag)


def values_of(dag: TypedDag) -> dict[str, Operand | Input | Output]:
    """Return A and B, the inputs and the outputs of a graph, by their names."""
    values: tuple[Operand | Input | Output, ...] = (*dag.operands, *dag.inputs, *dag.outputs)
    return {value.name: value for value in values}


@dataclass(frozen=True, slots=True)
class Need:
    """The requirements of a kernel on a tensor: its contiguous mode, the elements of an access, and its batch mode."""

    name: str
    contiguous: str
    alignment: int
    batch: Literal["any", "strided", "shared"]


@dataclass(frozen=True, slots=True)
class Kernel:
    """An exported kernel.

    ``capabilities`` are the compute capabilities of the GPUs that run it; ``absent`` are the inputs that it is compiled
    without; ``limits`` are the limits on a convolution's problems. ``most_batches`` is 0 without a limit.
    """

    target: Target
    plan: Plan
    emitted: Emitted
    absent: tuple[str, ...]
    needs: tuple[Need, ...]
    limits: tuple[str, ...]
    most_batches: int

    @property
    def capabilities(self) -> tuple[int, ...]:
        """The compute capabilities that run the kernel; 90 means 9.0."""
        own = self.target
        if own.variant:
            return (own.number,)
        later = (each for each in TARGETS.values() if each.number // 10 == own.number // 10)
        fitting = (each for each in later if each.number >= own.number)
        return tuple(each.number for each in fitting if self.plan.shared_memory <= each.shared_memory)


def kernels_of(program: Named, targets: Sequence[Target], prefix: str) -> tuple[Kernel, ...]:
    """Return the kernels of a program, the best first; ``prefix`` is the prefix of their functions.

    Raise ProgramError and TargetError for programs that a target cannot compile; ArgumentError for layouts that the
    program's tensors cannot have, and for programs that cannot be exported.
    """
    _check(program)
    found = []
    for target in sorted(targets, key=lambda each: -each.number):
        variants: dict[str, Kernel] = {}
        for problem, absent in _problems(program, target):
            made = _kernel(program.request, problem, absent, f"{prefix}_{target.name}")
            variants.setdefault(made.emitted.text, made)
        if len(variants) > _MOST:
            message = f"`{program.name}` has {len(variants)} kernels for {target.name}; at most {_MOST} are exported"
            raise ArgumentError(Diagnostic("E0607", message, help="ask for fewer layouts, or drop defaults of tensors"))
        for number, made in enumerate(variants.values()):
            name = made.emitted.name + (f"_{number + 1}" if len(variants) > 1 else "")
            found.append(replace(made, emitted=emitted(made.plan, name)))
    return tuple(found)


def _check(program: Named) -> None:
    """Raise ArgumentError for a program that cannot be exported."""
    request, layouts = program.request, program.layouts
    if request.convolution is not None and request.convolution.groups > 1:
        message = (
            f"`{program.name}` is a convolution of {request.convolution.groups} groups, whose kernels depend on sizes"
        )
        raise TargetError(Diagnostic("E0502", message, help="export convolutions of one group"))
    if request.dag.scales:
        message = f"`{program.name}` has factors for blocks of k, which an extension does not check"
        raise TargetError(Diagnostic("E0502", message, help="print the kernel: `evt emit`"))
    if any(each.dtype in PACKED_OPERANDS for each in request.dag.operands):
        message = f"`{program.name}` has an operand of 4 bits, whose layout an extension does not check"
        raise TargetError(Diagnostic("E0502", message, help="print the kernel: `evt emit`"))
    if isinstance(layouts, Signature):
        return
    modes = {name: value.modes for name, value in program.values.items()}
    for name in (*layouts.contiguous, *layouts.shared):
        if name in modes and request.convolution is not None:
            message = f"`{program.name}` is a convolution: its tensors have the channels last, and no batch mode"
            raise ArgumentError(Diagnostic("E0607", message, help="export it in a separate command"))
    for name, wanted in layouts.contiguous.items():
        for mode in wanted:
            if name in modes and mode not in map(base, modes[name]):
                message = f"`{name}` of `{program.name}` has no mode `{mode}`"
                known = ", ".join(modes[name])
                raise ArgumentError(Diagnostic("E0607", message, help=f"its modes are {known}"))


def _problems(program: Named, target: Target) -> Iterator[tuple[Problem, tuple[str, ...]]]:
    """Yield the planner's problems for a target, the most common first, each with its absent inputs."""
    request, layouts = program.request, program.layouts
    operands = operands_of(request, program.a, program.b)
    asked = options(request.settings, request.settings.deterministic is False)
    if isinstance(layouts, Signature):
        dag = optimised_for(request, operands)
        yield Problem(dag, layouts.only({*dag.input, *dag.output}), target, asked, sizes=program.sizes), ()
        return
    optional = [each.name for each in request.dag.inputs if is_optional(each)]
    of = None
    if request.convolution is not None:
        of = convolution_class(request.convolution, None, operands[0].dtype)
    for count in range(len(optional) + 1):
        for absent in itertools.combinations(optional, count):
            dag = optimised_for(request, operands, absent)
            for signature in _signatures(natural_signature(dag, of), dag, layouts):
                yield Problem(dag, signature, target, asked), absent


def is_optional(value: Input) -> bool:
    """Return whether an input is a tensor that a call may omit: a separate kernel is compiled without it."""
    return value.default is not None and not (value.is_scalar or value.flexible)


def _signatures(natural: Signature, dag: TypedDag, layouts: Layouts) -> Iterator[Signature]:
    """Yield the requested signatures."""
    values = values_of(dag)
    names = [*(each.name for each in dag.operands), *(name for name, _ in natural.tensors)]
    own = dict(zip(names, (natural.a, natural.b, *(layout for _, layout in natural.tensors)), strict=True))
    for alignment in sorted(layouts.alignments, reverse=True):
        choices = []
        for name, layout in own.items():
            dtype = values[name].dtype
            assert dtype is not None
            narrow = replace(layout, alignment=max(1, min(layout.alignment, alignment // bytes_of(dtype))))
            modes = layouts.contiguous.get(name) or (layout.contiguous,)
            alike = [replace(narrow, contiguous=mode) for mode in modes]
            alike += [replace(each, batch="shared") for each in alike if name in layouts.shared]
            choices.append(alike)
        for a, b, *rest in itertools.product(*choices):
            yield replace(natural, a=a, b=b, tensors=tuple(zip(names[2:], rest, strict=True)))


def _kernel(request: Request, problem: Problem, absent: tuple[str, ...], name: str) -> Kernel:
    """Return the kernel of a problem. Raise TargetError if there is none."""
    found = survey(problem, request.settings.route, request.settings.config).printed
    plan = found.plan
    made = emitted(plan, name)
    most = found.chosen.max_batches

    def same(other: Problem) -> bool:
        """Return whether another problem has an equal kernel."""
        try:
            alike = survey(other, request.settings.route, request.settings.config).printed
            return emitted(alike.plan, name).text == made.text
        except EvtError:
            return False

    signature = problem.signature
    a, b = problem.program.operands
    needs = [Need(a.name, signature.a.contiguous or "", signature.a.alignment, signature.a.batch)]
    needs += [Need(b.name, signature.b.contiguous or "", signature.b.alignment, signature.b.batch)]
    values = values_of(problem.program)
    for name_of, layout in signature.tensors:
        value = values[name_of]
        if value.dtype == B1 or any(
            map(is_divided, value.modes)
        ):  # a tensor with separate columns is never accessed in vectors
            needs.append(Need(name_of, "n", 1, "any"))
            continue
        if isinstance(value, Input) and value.flexible:
            layout = replace(layout, contiguous=base(value.modes[-1]))
        free = same(_with(problem, name_of, replace(layout, alignment=1)))
        other = replace(layout, batch="strided" if layout.batch == "shared" else "shared")
        anyhow = same(_with(problem, name_of, other))
        needs.append(
            Need(name_of, layout.contiguous or "", 1 if free else layout.alignment, "any" if anyhow else layout.batch)
        )
    limits: tuple[str, ...] = ()
    if signature.convolution is not None:
        limits = tuple(limit for limit, other in _beyond(problem) if not same(other))
    return Kernel(problem.target, plan, made, absent, tuple(needs), limits, most or 0)


def _beyond(problem: Problem) -> Iterator[tuple[str, Problem]]:
    """Yield the limits that a convolution's kernel may have, each with a problem beyond the limit."""

    def of(**facts: bool) -> Problem:
        changed = replace(problem.convolution, **facts)  # type: ignore[arg-type]
        return replace(problem, signature=replace(problem.signature, convolution=changed))

    yield "operands_below_2_gib", replace(problem, sizes=replace(problem.sizes, operand_bytes=LARGEST_OPERAND))
    yield "filters_up_to_32", of(large_filter=True)
    yield "im2col", of(im2col=False)


def _with(problem: Problem, name: str, layout: LayoutClass) -> Problem:
    """Return a problem with another layout of one tensor."""
    tensors = tuple((each, layout if each == name else own) for each, own in problem.signature.tensors)
    return replace(problem, signature=replace(problem.signature, tensors=tensors))
