"""The visitor nodes of CUTLASS: the steps of an epilogue for which each of its generations has a node.

``cutlass_2x``, ``cutlass_3x`` and ``cutlass_grouped`` return a step's node, or None: an operation of evt takes it.
"""

from __future__ import annotations

from evt.emission.expressions import (
    REGISTER,
    element,
    input_pointer,
    loaded,
    number,
    pointer_without_const,
    size,
    stride_type,
    stride_value,
    value_of,
)
from evt.emission.operations import Names, listed, operation
from evt.emission.text import Assignments, NodeText
from evt.ir.dtype import I32, DType
from evt.plan import Field
from evt.plan.epilogue.broadcasts import ColumnBroadcast, RowBroadcast, ScalarBroadcast, VectorBroadcast
from evt.plan.epilogue.computes import Apply, Compute
from evt.plan.epilogue.loads import AccFetch, Auxiliary, Packed, SourceFetch
from evt.plan.epilogue.step import Step
from evt.plan.epilogue.values import Access, Destination, Number, Single, Size, Varies, pointer_of
from evt.plan.epilogue.writes import AuxStore


def cutlass_2x(step: Step) -> NodeText | None:
    """Return the node of CUTLASS 2.x. Its thread map gives the elements of each thread."""
    name = step.name
    match step:
        case AccFetch():
            return NodeText(name, "visitors::VisitorAccFetch")
        case ScalarBroadcast():
            # VisitorScalarBroadcast takes only strides of the type int.
            strides = stride_type(step.strides, "int"), stride_value(step.strides, "(int)")
            return _scalar(step, "visitors::VisitorScalarBroadcast", strides[0], ("dScalar", strides[1]))
        case ColumnBroadcast(dtype) if not step.is_flexible:
            type_ = f"visitors::VisitorColBroadcast<ThreadMap, {element(dtype)}, {stride_type(step.strides)}>"
            return NodeText(name, type_, _vector(step))
        case Auxiliary(dtype, access=Access.TILE):
            given = f"{element(dtype)}, {'kRoundStyle, ' * isinstance(step, AuxStore)}{stride_type(step.strides)}"
            kind = "Store" if isinstance(step, AuxStore) else "Load"
            return NodeText(name, f"visitors::VisitorAux{kind}<ThreadMap, {given}>", _auxiliary(step))
        case Compute(output=output):
            type_ = f"visitors::VisitorCompute<{step.functor}, {_output(output)}, float, kRoundStyle>"
            return NodeText(name, type_)
        case Apply(region, output):
            return NodeText(name, f"evt::threadblock::Apply<{region.name}, {_output(output)}>")
    return None


def cutlass_3x(step: Step) -> NodeText | None:
    """Return the node of CUTLASS 3.x."""
    name = step.name
    match step:
        case AccFetch():
            return NodeText(name, "fusion::Sm90AccFetch")
        case SourceFetch(dtype):
            return NodeText(name, f"fusion::Sm90SrcFetch<{element(dtype)}>")
        case ScalarBroadcast():
            stride = stride_type(step.strides)
            return _scalar(step, "fusion::Sm90ScalarBroadcast", stride, ("dScalar[0]", stride_value(step.strides)))
        case VectorBroadcast():
            return NodeText(name, _broadcast(step, element(step.dtype)), _vector(step))
        case Auxiliary(access=Access.TILE):
            return _staged(step)
        case Auxiliary():
            return NodeText(name, _direct(step, stride_type(step.strides), "\n    "), _auxiliary(step))
        case Compute(output=output):
            return NodeText(name, f"fusion::Sm90Compute<{step.functor}, {_output(output)}, float, kRoundStyle>")
        case Apply(region, output):
            return NodeText(name, f"evt::fusion::Apply<{region.name}, {_output(output)}>")
    return None


def _broadcast(step: VectorBroadcast, element: str) -> str:
    """Return the type of a vector's broadcast; for groups, ``element`` is a pointer."""
    given = f"0, TileShape, {element}, {loaded(step.dtype)}, {stride_type(step.strides)}"
    return f"fusion::Sm90{'RowBroadcast' if isinstance(step, RowBroadcast) else 'ColBroadcast'}<{given}" + (
        ">" if isinstance(step, RowBroadcast) else ", 1>"
    )


def _staged(step: Auxiliary) -> NodeText:
    """Return a load or store through shared memory. The descriptors of the template frame have the layout of a tile."""
    type_, stride, descriptor = element(step.dtype), stride_type(step.strides), f"descriptor_of_{step.name}"
    if isinstance(step, AuxStore):
        kind, copy = "Store", "CopyOpR2S"
        node = f"fusion::Sm90AuxStore<\n    kStagesD, EpilogueTile, {type_}, kRoundStyle, {stride}"
    else:
        kind, copy = "Load", "CopyOpS2R"
        node = f"fusion::Sm90AuxLoad<\n    kStagesC, EpilogueTile, {type_}, {stride}"
    node = f"{node},\n    {descriptor}::SmemLayoutAtom, {descriptor}::{copy}>"
    aliases = ((descriptor, f"{kind}Descriptor<{stride}, {type_}>"),)
    return NodeText(step.name, node, _auxiliary(step), aliases=aliases)


def _direct(step: Auxiliary, stride: str, begin: str = "") -> str:
    """Return the type of a load from or a store to global memory."""
    if isinstance(step, AuxStore):
        given = f"{element(step.dtype)}, kRoundStyle, {stride}"
        return f"fusion::Sm90AuxStore<{begin}0, void, {given}, void, void, {step.alignment}>"
    return f"fusion::Sm90AuxLoad<{begin}0, void, {element(step.dtype)}, {stride}, void, void, {step.alignment}>"


def _scalar(step: ScalarBroadcast, node: str, stride: str, strides: tuple[str, str]) -> NodeText:
    """Return the broadcast of a scalar; ``strides`` assigns its strides."""
    arguments: Assignments
    match step.value:
        case Number(dtype, _) as value:
            type_, arguments = REGISTER[dtype], (("scalars[0]", number(value)),)
        case Size() as value:
            type_, arguments = REGISTER[I32], (("scalars[0]", size(value)),)
        case Single(dtype, _, pointer) as value:
            type_ = element(dtype)
            pointers = ("scalar_ptrs[0]", input_pointer(dtype, pointer))
            arguments = (("scalars[0]", value_of(value)), pointers, strides)
    return NodeText(step.name, f"{node}<{type_}, {stride}>", arguments)


def _vector(step: VectorBroadcast) -> Assignments:
    member = "row" if isinstance(step, RowBroadcast) else "col"
    return (
        (f"ptr_{member}", input_pointer(step.dtype, pointer_of(step.values))),
        *((("null_default", value_of(step.values)),) if isinstance(step.values, Single) else ()),
        (f"d{member.capitalize()}", stride_value(step.strides)),
    )


def _auxiliary(step: Auxiliary) -> Assignments:
    return ("ptr_aux", pointer_without_const(step.dtype, step.pointer)), ("dAux", stride_value(step.strides))


def _output(output: DType | Destination) -> str:
    """Return the type of a compute node's result."""
    return "ElementD" if output is Destination.D else REGISTER[output]


# Groups: an array for each member, which a node indexes by the group.


def row(word: str, field: Field) -> str:
    """Return a row of the table on the device, as an array of a type."""
    return f"row<{word}>(arguments, row_{field.name})"


def cutlass_grouped(step: Step, names: Names) -> NodeText | None:
    """Return the node of a grouped kernel of CUTLASS 3.x, or the operation of evt that indexes by the group."""
    match step:
        case ScalarBroadcast(value=Size(extent)):
            arguments: Assignments = (("extents", row("std::int64_t", extent)),)
            return NodeText(step.name, names.operation("GroupSize", ()), arguments)
        case ScalarBroadcast(value=Single(dtype, _, pointer)):
            arguments = (("pointers", row(f"{element(dtype)} const*", pointer)),)
            return NodeText(step.name, names.operation("GroupScalar", (element(dtype),)), arguments)
        case VectorBroadcast(dtype):
            member = "row" if isinstance(step, RowBroadcast) else "col"
            arguments = ((f"ptr_{member}", row(f"{element(dtype)} const*", pointer_of(step.values))),)
            if any(isinstance(stride, Varies) for stride in step.strides):
                arguments = (*arguments, (f"d{member.capitalize()}", stride_value(step.strides)))
            return NodeText(step.name, _broadcast(step, f"{element(dtype)}*"), arguments)
        case Auxiliary(pointer=pointer):
            return _of_group(step, _direct(step, stride_type(step.strides, "std::int64_t")), pointer, step.strides[:2])
        case Packed(pointer=pointer):
            return _of_group(step, operation(step, names), pointer, (step.row,))
    return cutlass_3x(step)


def _of_group(step: Step, inner: str, pointer: Field, strides: tuple[object, ...]) -> NodeText:
    """Return the node ``inner`` for the tensor of the tile's group."""
    given = zip(("strides_m", "strides_n"), strides, strict=False)
    rows = ((member, row("std::int64_t", stride)) for member, stride in given if isinstance(stride, Field))
    arguments = (("pointers", row("void*", pointer)), *rows)
    return NodeText(step.name, listed("evt::fusion::GroupTensor", (inner,)), arguments)
