"""The members of the parameters of an own kernel, and their values: ``structs(plan) -> tuple[Struct, ...]``.

Emission writes the members into the kernel's text, so that the compiler says where they are. The launcher fills them.
A member is named as C++ names it, such as ``epilogue.in_bias.ptr``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from evt.ir.dtype import I64
from evt.ir.node import PLACES
from evt.launch import depthwise, gemm, gemv, halo, wgrad
from evt.launch.padded import part_of
from evt.plan import Field, Plan
from evt.plan.epilogue.broadcasts import RandomNumbers, ScalarBroadcast
from evt.plan.epilogue.loads import Auxiliary
from evt.plan.epilogue.results import Combined, Given, Operand, Result, ResultIndex
from evt.plan.epilogue.step import Step
from evt.plan.epilogue.values import Access, Member, Number, Places, Pointer, ResultShape, Single, Size, Varies
from evt.plan.epilogue.writes import Reduction
from evt.plan.gemv import Gemv
from evt.plan.overwritten import overwritten
from evt.plan.plan import DepthwiseConvolution, FilterGradient, OwnProduct, PaddedCopy, RowCopy


@dataclass(frozen=True, slots=True)
class InWorkspace:
    """The address of a reduction's parts, or of a copy of an operand, in the workspace."""

    name: str


@dataclass(frozen=True, slots=True)
class Pitch:
    """The elements from one row of a copy to the next."""

    copy: RowCopy


@dataclass(frozen=True, slots=True)
class PaddedChannels:
    """The channels of the pixels of a padded copy."""

    copy: PaddedCopy


@dataclass(frozen=True, slots=True)
class PartialSums:
    """The address of the partial sums of a filter gradient in the workspace."""


@dataclass(frozen=True, slots=True)
class PartCount:
    """The number of parts of a reduction: all parts, or the parts of each image."""

    reduction: str
    of_images: bool = False


@dataclass(frozen=True, slots=True)
class Quotient:
    """An extent divided by the columns that share a result."""

    extent: Field
    divisor: int


@dataclass(frozen=True, slots=True)
class IsAligned:
    """Whether an address is a multiple of 16 bytes."""

    pointer: Field


@dataclass(frozen=True, slots=True)
class IsOverwritten:
    """Whether a call gives the same address for an output and for a matrix that is read, of some pairs."""

    pairs: tuple[tuple[Field, Field], ...]


@dataclass(frozen=True, slots=True)
class LowWord:
    """The low 32 bits of a number, without a sign, in a member of 32 or 64 bits."""

    number: Field


@dataclass(frozen=True, slots=True)
class Shaped:
    """A value that the sizes decide: see :mod:`evt.launch.shape`."""


Value: TypeAlias = (
    Field
    | int
    | InWorkspace
    | Pitch
    | PaddedChannels
    | PartialSums
    | PartCount
    | Quotient
    | IsAligned
    | IsOverwritten
    | LowWord
    | Shaped
)
Members: TypeAlias = tuple[tuple[str, Value], ...]
SHAPED = Shaped()
#: The kernel that multiplies before the kernel with the epilogue.
MULTIPLY = "multiply"
#: The kernel that copies operands.
COPY = "copy"
#: The kernel that copies the operands of a convolution.
PAD = "pad"


@dataclass(frozen=True, slots=True)
class Struct:
    """The parameters of a kernel: the end of the kernel's name, their C++ type, and their members.

    ``jobs`` are the names of a small kernel's jobs.
    """

    kernel: str
    type: str
    members: Members
    jobs: tuple[str, ...] = ()


def structs(plan: Plan) -> tuple[Struct, ...]:
    """Return the parameters of the kernels of a plan, in the order of their launches."""
    before = [reduction for reduction in plan.reductions if reduction.atomic]
    members = (*_of_kernel(plan), *_of_epilogue(plan))
    first = [Struct(MULTIPLY, "Params", members)] * isinstance(plan.mainloop, FilterGradient)
    found = [*first, Struct("kernel", "Params", members)]
    if before:
        initial = [(f"{each.name}.{name}", value) for each in before for name, value in _of_initial(each)]
        found.insert(0, Struct("initialise", "InitialJobs", tuple(initial), tuple(each.name for each in before)))
    if plan.row_copies:
        copied = [(f"{each.name}.{name}", value) for each in plan.row_copies for name, value in _of_copy(each)]
        found.insert(0, Struct(COPY, "CopyJobs", tuple(copied), tuple(each.name for each in plan.row_copies)))
    if plan.copies:
        padded = [(f"{part_of(each)}.{name}", value) for each in plan.copies for name, value in _of_padded(each)]
        found.insert(0, Struct(PAD, "PadJobs", tuple(padded), tuple(part_of(each) for each in plan.copies)))
    if plan.results:
        final = [(f"{each.name}.{name}", value) for each in plan.results for name, value in _of_final(plan, each)]
        found.append(Struct("finish", "FinalJobs", tuple(final), tuple(each.name for each in plan.results)))
    return tuple(found)


def _of_kernel(plan: Plan) -> Iterator[tuple[str, Value]]:
    """Yield the members of the kernel's own parameters."""
    a, b = (each.original if isinstance(each, PaddedCopy) else each for each in (plan.mainloop.a, plan.mainloop.b))
    pointers: dict[str, Value]
    if isinstance(plan.mainloop, DepthwiseConvolution):
        names: tuple[str, ...] = depthwise.MEMBERS
        pointers = {"filters.pointer": b.pointer, "packed": IsAligned(b.pointer)}
    elif isinstance(plan.mainloop, OwnProduct):
        names, pointers = gemm.members(plan), dict[str, Value](gemm.pointers(plan))
        pairs = overwritten(plan)
        pointers["once"] = 1 if plan.reductions else IsOverwritten(pairs) if pairs else 0
    elif isinstance(plan.mainloop, Gemv):
        names, pointers = gemv.MEMBERS, {"a": plan.mainloop.a.pointer, "b": plan.mainloop.b.pointer}
    elif isinstance(plan.mainloop, FilterGradient):
        names, pointers = wgrad.MEMBERS, {**wgrad.pointers(plan), **dict.fromkeys(wgrad.SUMS, PartialSums())}
    else:
        names = halo.members(plan)
        pointers = {"operands.a": a.pointer, "operands.b": b.pointer}
    if plan.destination and "d" in names:
        pointers["d"] = plan.destination.pointer
    for name in names:
        yield name, pointers.get(name, SHAPED)
    for factor in plan.factors:
        for each in factor.inputs:
            member = f"{factor.member}.{each.pointer.name}"
            values: tuple[Value, ...] = (each.pointer, *each.strides)
            names = tuple(f"{member}.{name}" for name in ("pointer", "outer", "depth", "group"))
            yield from zip(names, values, strict=True)


# The epilogue.


def _of_epilogue(plan: Plan) -> Iterator[tuple[str, Value]]:
    many = isinstance(plan.mainloop, OwnProduct) and plan.mainloop.has_many
    of = "combined." if isinstance(plan.mainloop, FilterGradient) else ""
    for step in plan.steps:
        if has_part(step):
            for name, value in _of_step(step, many):
                yield f"{of}epilogue.{step.name}.{name}", value


def has_part(step: Step) -> bool:
    """Return whether a step is an object of the epilogue; the kernel itself moves some matrices."""
    if isinstance(step, Auxiliary):
        return step.access is Access.DIRECT
    return bool(step.header) and not (isinstance(step, ScalarBroadcast) and isinstance(step.value, Number))


def _of_step(step: Step, many: bool) -> Iterator[tuple[str, Value]]:
    match step:
        case RandomNumbers():
            yield from _of_random(step)
        case Reduction(extent=extent, atomic=atomic):
            yield "ptr", atomic.pointer if atomic else InWorkspace(step.name)
            yield "kept", extent
        case _:
            for name, member in step.members:
                if many or name != "stride_l":  # there is one batch
                    yield from _of_member(name, member)


def _of_member(name: str, member: Member) -> Iterator[tuple[str, Value]]:
    match member:
        case Pointer(field):
            yield name, field
        case Single():
            yield name, member.number
        case Size(extent):
            yield name, extent
        case Places(_, indices, _, extent):
            yield f"{name}.index", indices
            yield f"{name}.extent", extent
        case tuple():
            for part, stride in zip("mn", member[:2], strict=True):
                yield f"{name}.{part}", stride.given if isinstance(stride, Varies) else stride
        case Varies(given):
            yield name, given
        case Field() | int():
            yield name, member


def _of_random(step: RandomNumbers) -> Iterator[tuple[str, Value]]:
    for member, value in (("seed", step.seed), ("offset", step.offset)):
        if isinstance(value, Number):
            yield member, int(value.value) & 0xFFFFFFFF
            continue
        yield member, value.number if value.dtype == I64 else LowWord(value.number)
        if step.wide:
            yield f"{member}_ptr.ptr", value.pointer
            yield f"{member}_ptr.is_wide", int(value.dtype == I64)
        else:
            yield f"{member}_ptr", value.pointer


# The small kernels.


def _of_copy(copy: RowCopy) -> Members:
    return (
        ("from", copy.matrix.pointer),
        ("to", InWorkspace(copy.name)),
        ("batches", copy.batches or 1),
        ("rows", copy.rows),
        ("columns", copy.columns),
        ("stride_batch", copy.matrix.batch),
        ("stride_row", copy.matrix.leading),
        ("pitch", Pitch(copy)),
    )


def _of_padded(copy: PaddedCopy) -> Iterator[tuple[str, Value]]:
    outer, *inner = zip(copy.extents, copy.original.strides, strict=True)
    slices = inner if len(inner) == 3 else [(1, 0), *inner]  # a two-dimensional image is one slice
    yield "from", copy.original.pointer
    yield "to", InWorkspace(part_of(copy))
    for name, (extent, stride) in zip(("outer", "slice", "row", "pixel"), (outer, *slices), strict=True):
        yield name if name == "outer" else f"{name}s", extent
        yield f"stride_{name}", stride
    yield "channels", copy.channels
    yield "before", 0
    yield "padded_pixels", copy.extents[-1]
    yield "padded_channels", PaddedChannels(copy)


def _of_initial(reduction: Reduction) -> Members:
    result = reduction.atomic
    assert result is not None
    batches: Value = 1  # own kernels have one batch
    return ("ptr", result.pointer), ("kept", reduction.extent), ("batches", batches), ("stride_l", result.batch)


def _of_final(plan: Plan, result: Result) -> Iterator[tuple[str, Value]]:
    nodes = {node.name: node for node in plan.reductions}
    yield "out", result.pointer
    kept = result.extent
    yield "kept", Quotient(kept, result.divisor) if isinstance(kept, Field) and result.divisor > 1 else kept
    yield "batches", _images(plan) if result.of_images else 1
    yield "out_stride_l", result.batch
    yield "over_batch", int(result.over_batch)
    if result.region is None:
        (operand,) = result.operands
        assert isinstance(operand, Combined)
        yield "parts_ptr", InWorkspace(operand.reduction)
        yield "parts", PartCount(operand.reduction, result.of_images)
        return
    for index, each in enumerate(result.operands):
        for name, value in _of_operand(nodes, each, result.of_images):
            yield f"operands.{'rest.' * index}first.{name}", value


def _images(plan: Plan) -> Field:
    """Return the number of images of a convolution."""
    return next(field for field in plan.fields if field.role == "images")


def _of_operand(nodes: Mapping[str, Reduction], operand: Operand, of_images: bool) -> Iterator[tuple[str, Value]]:
    match operand:
        case Combined(name):
            node = nodes[name]
            held = "keys." if node.kind in PLACES else "moments." if operand.moment else ""
            yield f"{held}ptr", InWorkspace(name)
            yield f"{held}parts", PartCount(name, of_images)
            yield f"{held}kept", node.extent
        case Given(_, values, stride, batch):
            if isinstance(values, Single):
                yield "value", values.number
                yield "ptr", values.pointer
            else:
                yield "ptr", values
            yield "stride", stride
            yield "stride_l", batch
        case Size(extent):
            yield "value", extent
        case Number(_, value):
            yield "value", int(value)
        case ResultIndex():
            pass


# Reductions.


def part_count(reduction: Reduction, tiles: tuple[int, int]) -> int:
    """Return the parts that a reduction writes for tiles of rows and strips of columns."""
    number, strips = tiles
    match reduction.shape:
        case ResultShape.ROW:
            return number
        case ResultShape.COLUMN:
            return strips
        case ResultShape.SCALAR:
            return number * strips


def part_bytes(reduction: Reduction) -> int:
    """Return the bytes of a part."""
    return reduction.part_bytes
