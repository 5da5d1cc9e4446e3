"""An epilogue on an accumulator fragment: straight-line code for one element, of the classes of fragment.hpp."""

from __future__ import annotations

import textwrap

from evt.emission.expressions import COMBINE, REGISTER, comment, fragment_element, literal, part_type, read
from evt.emission.multiplication import multiplication
from evt.emission.operations import KEPT, parts_pointer, random_arguments, result_pointer
from evt.emission.text import Assignments, FragmentText, NodeText, StepText
from evt.ir.dtype import B1, F32, I32, I64, DType
from evt.plan import Field, Plan
from evt.plan.epilogue.broadcasts import (
    ColumnBroadcast,
    Coordinate,
    RandomNumbers,
    RowBroadcast,
    ScalarBroadcast,
    VectorBroadcast,
)
from evt.plan.epilogue.computes import Apply, PlaceKeys
from evt.plan.epilogue.loads import AccFetch, AuxLoad, Gather, Indexed, MaskLoad, SourceFetch
from evt.plan.epilogue.step import Step
from evt.plan.epilogue.values import Access, Number, Places, ResultShape, Single, Size, Stride, Varies
from evt.plan.epilogue.writes import AuxStore, MaskStore, Reduction, Scatter, VectorStore
from evt.plan.plan import HaloConvolution, HaloProduct

_COORDINATES = {"row": "places.row(i)", "column": "tile.column(i)", "batch": "0"}
_REDUCTIONS = {
    ResultShape.ROW: "RowReduction",
    ResultShape.COLUMN: "ColumnReduction",
    ResultShape.SCALAR: "ScalarReduction",
}


def fragment(plan: Plan) -> FragmentText:
    """Return the epilogue of a plan as statements, in the order of its nodes."""
    halo = isinstance(plan.mainloop, HaloConvolution | HaloProduct)
    lanes = f"evt::{'halo' if halo else 'depthwise'}::Lanes"
    parts: dict[str, NodeText] = {}
    steps: list[StepText] = []
    values: list[tuple[str, str]] = []  # for each node: its type, and the expression that gives it
    for node in plan.steps:
        part = _part(node, lanes)
        if part is not None:
            parts[node.name] = part
        if isinstance(node, Apply):
            name = f"v{len(steps)}"
            type_ = _register(node.output)
            given = ", ".join(values[operand][1] for operand in node.operands)
            steps.append(_step(f"{type_} const {name} = {node.region.name}::apply({given});", node))
            values.append((type_, name))
        elif isinstance(node, AuxStore | MaskStore | Scatter | VectorStore | Reduction):
            values.append(values[node.operands[0]])
            if node.name in parts:
                steps.append(_step(f"{node.name}.put({values[-1][1]}, i, places);", node))
        elif isinstance(node, PlaceKeys):
            value = values[node.operands[0]][1]
            least = "true" if node.least else "false"
            values.append((REGISTER[I64], f"evt::key_of<{least}>({value}, {_COORDINATES[node.axis]})"))
        else:
            values.append(_value(plan, node))
    return FragmentText(
        source=fragment_element(plan.source.dtype) if plan.source else "void",
        destination=fragment_element(plan.destination.dtype) if plan.destination else "void",
        parts=tuple(parts.values()),
        steps=tuple(steps),
        result=values[-1],
        places=any(map(_has_place, plan.steps)),
        accumulator=REGISTER[plan.accumulator],
        multiplication=multiplication(plan) if halo else None,
    )


def _step(statement: str, node: Step) -> StepText:
    """Return a statement, in lines that are not too long."""
    lines = textwrap.wrap(statement, 112, break_long_words=False, break_on_hyphens=False)
    return StepText(tuple(lines), comment(node.origin))


def _value(plan: Plan, node: Step) -> tuple[str, str]:
    """Return the value of a node that computes nothing: its type and the expression."""
    match node:
        case AccFetch():
            return REGISTER[plan.accumulator], "acc"
        case SourceFetch(dtype):
            return _register(dtype), "source"
        case ScalarBroadcast(Number(dtype, value)):
            return REGISTER[dtype], literal(value, dtype)
        case ScalarBroadcast(Size()):
            return REGISTER[I32], f"{node.name}.get(i)"
        case ScalarBroadcast(Single(dtype)) | RowBroadcast(dtype):
            return _register(dtype), f"{node.name}.get(i)"
        case ColumnBroadcast(dtype) | AuxLoad(dtype) | Gather(dtype):
            return _register(dtype), f"{node.name}.get(i, fetched.{node.name})"
        case MaskLoad():
            return REGISTER[B1], f"{node.name}.get(i, fetched.{node.name})"
        case RandomNumbers():
            return REGISTER[F32], f"{node.name}.get(i, places)"
        case Coordinate(axis):
            return REGISTER[I32], _COORDINATES[axis]
    raise AssertionError(node)


def _register(dtype: object) -> str:
    assert isinstance(dtype, DType)
    return REGISTER[dtype.compute]


def _has_place(node: Step) -> bool:
    """Return whether a node has to know which rows its elements are in."""
    if isinstance(node, AuxStore):
        return node.access is Access.DIRECT
    if isinstance(node, Coordinate | PlaceKeys):
        return node.axis == "row"
    placed = ColumnBroadcast | AuxLoad | MaskLoad | MaskStore | Indexed | RandomNumbers | VectorStore | Reduction
    return isinstance(node, placed)


def _part(node: Step, lanes: str) -> NodeText | None:
    """Return the part of the epilogue that a node needs, if it is more than an expression.

    ``lanes`` is the class that tells which elements the lanes of a warp have.
    """
    match node:
        case ScalarBroadcast(Single() as value):
            return _named(node, "Scalar", value.dtype, _single(value))
        case ScalarBroadcast(Size(extent)):
            return _named(node, "Scalar", I32, (("number", f"static_cast<int32_t>({read(extent)})"),))
        case RowBroadcast(dtype):
            return _named(node, "RowVector", dtype, _vector(node, node.strides[1]))
        case ColumnBroadcast(dtype):
            return _named(node, "ColumnVector", dtype, _vector(node, node.strides[0]), fetched=True)
        case AuxLoad(dtype):
            return _named(node, "MatrixLoad", dtype, _matrix(node), fetched=True)
        case AuxStore(dtype, access=Access.DIRECT):
            return _named(node, "MatrixStore", dtype, _matrix(node))
        case MaskLoad() | MaskStore():
            return _mask(node, lanes)
        case Gather() | Scatter():
            return _indexed(node)
        case VectorStore(shape, dtype):
            pointer = _pointer(dtype, node.pointer, "")
            return _named(node, "VectorStore", dtype, (pointer, ("stride", read(node.stride))), KEPT[shape])
        case RandomNumbers(wide=wide):
            kind = "WideRandom" if wide else "Random"
            return NodeText(node.name, f"evt::fragment::{kind}", random_arguments(node), comment(node.origin))
        case Reduction():
            return _reduction(node, lanes)
    return None


def _reduction(node: Reduction, lanes: str) -> NodeText:
    name, write = _REDUCTIONS[node.shape], "evt::Atomic" if node.atomic else "evt::Partial"
    types = [COMBINE[node.kind], part_type(node), write]
    if node.shape is not ResultShape.SCALAR:
        types.append(lanes)
    pointer = result_pointer(node.atomic) if node.atomic else parts_pointer(node)
    return NodeText(
        node.name,
        f"evt::fragment::{name}<{', '.join(types)}>",
        (("pointer", pointer), ("kept", read(node.extent))),
        comment(node.origin),
        finished=True,
    )


def _mask(node: MaskLoad | MaskStore, lanes: str) -> NodeText:
    loads = isinstance(node, MaskLoad)
    pointer = _pointer(B1, node.pointer, " const" if loads else "")
    kind, arguments = "MaskLoad" if loads else "MaskStore", (pointer, ("row_stride", read(node.row)))
    return NodeText(node.name, f"evt::fragment::{kind}<{lanes}>", arguments, comment(node.origin), fetched=loads)


def _indexed(node: Gather | Scatter) -> NodeText:
    loads, (rows, columns, _) = isinstance(node, Gather), node.strides
    arguments = [_pointer(node.dtype, node.pointer, " const" if loads else "")]
    arguments += [("row_stride", _stride(rows)), ("column_stride", _stride(columns))]
    found: list[str] = []
    for member, places in (("rows", node.rows), ("columns", node.columns)):
        found.append(_places(places))
        if places is not None:
            _, indices = _pointer(places.dtype, places.indices)
            arguments.append((member, f"{{{indices}, {read(places.extent)}}}"))
    kind = "Gather" if loads else "Scatter"
    return _named(node, kind, node.dtype, tuple(arguments), *found, fetched=loads)


def _places(places: Places | None) -> str:
    """Return the expression that finds rows or columns in a tensor."""
    inside = f"At<{fragment_element(places.dtype)}>" if places else "InOrder"
    return f"evt::fragment::{inside}"


def _named(
    node: Step, kind: str, dtype: DType, arguments: Assignments, *parameters: str, fetched: bool = False
) -> NodeText:
    type_ = f"evt::fragment::{kind}<{', '.join((fragment_element(dtype), *parameters))}>"
    return NodeText(node.name, type_, arguments, comment(node.origin), fetched=fetched)


def _pointer(dtype: DType, pointer: Field, const: str = " const") -> tuple[str, str]:
    return "pointer", f"static_cast<{fragment_element(dtype)}{const}*>({read(pointer)})"


def _single(value: Single) -> Assignments:
    """Return a value by pointer, or by value where that is null."""
    number = f"static_cast<{_register(value.dtype)}>({read(value.number)})"
    return _pointer(value.dtype, value.pointer), ("number", number)


def _vector(node: VectorBroadcast, stride: Stride) -> Assignments:
    values = node.values
    given = _single(values) if isinstance(values, Single) else (_pointer(node.dtype, values),)
    return (*given, ("stride", _stride(stride)))


def _matrix(node: AuxLoad | AuxStore) -> Assignments:
    rows, columns, _ = node.strides
    pointer = _pointer(node.dtype, node.pointer, " const" if isinstance(node, AuxLoad) else "")
    return pointer, ("row_stride", _stride(rows)), ("column_stride", _stride(columns))


def _stride(stride: Stride) -> str:
    return read(stride.given if isinstance(stride, Varies) else stride)
