"""Visitor nodes as C++: what all dialects have in common."""

from __future__ import annotations

from abc import ABC, abstractmethod

from evt.emission.expressions import (
    COMBINE,
    REGISTER,
    element,
    input_pointer,
    loaded,
    number,
    part_type,
    pointer_without_const,
    read,
    size,
    stride_type,
    stride_value,
    value_of,
)
from evt.emission.text import Assignments, NodeText
from evt.ir.dtype import I32, I64, DType
from evt.plan.epilogue.computes import Apply, BlockReduce, Compute, FirstColumns, PairInterleave, PairMember, PlaceKeys
from evt.plan.epilogue.loads import (
    AccFetch,
    Auxiliary,
    AuxLoad,
    ColumnBroadcast,
    Coordinate,
    Gather,
    HalfLoad,
    Indexed,
    MaskLoad,
    Packed,
    RandomNumbers,
    RowBroadcast,
    ScalarBroadcast,
    SourceFetch,
    VectorBroadcast,
)
from evt.plan.epilogue.results import Result
from evt.plan.epilogue.step import Step
from evt.plan.epilogue.values import Access, Destination, Number, Places, ResultShape, Single, Size, pointer_of
from evt.plan.epilogue.writes import AuxStore, BlockStore, HalfStore, MaskStore, Reduction, Scatter, VectorStore

#: The modes of coordinates, as our nodes number them.
_AXES = {"row": "0", "column": "1", "batch": "2"}
#: The mode along which a vector has values, as our nodes number it.
KEPT = {ResultShape.COLUMN: "0", ResultShape.ROW: "1", ResultShape.SCALAR: "-1"}
_RESULTS = {ResultShape.ROW: "Row", ResultShape.COLUMN: "Col", ResultShape.SCALAR: "Scalar"}


class Dialect(ABC):
    """Spells the nodes of a family: CUTLASS's by the macro of their kind, ours by their class template."""

    @abstractmethod
    def own(self, name: str, template: str, *parameters: str, arguments: Assignments = ()) -> NodeText:
        """Return a node of ours, from codegen/include/evt."""

    @abstractmethod
    def scalar_stride(self, node: ScalarBroadcast) -> tuple[str, str, str]:
        """Return the stride of a scalar: its type, the member that has it, and what makes it."""

    def spell(self, node: Step) -> NodeText:
        """Return a node as text."""
        match node:
            case AccFetch():
                return NodeText("acc", node.name)
            case SourceFetch(dtype):
                return NodeText("source", node.name, element(dtype))
            case ScalarBroadcast():
                return self.scalar(node)
            case RowBroadcast() | ColumnBroadcast():
                return self.vector(node)
            case AuxLoad() | AuxStore():
                return self.auxiliary(node)
            case Compute(output=output):
                return NodeText("compute", node.name, functor=node.functor, output=self.register(output))
            case Apply(region, output):
                return NodeText("apply", node.name, functor=region.name, output=self.register(output))
            case Coordinate(axis):
                return self.own(node.name, "Index", _AXES[axis])
            case RandomNumbers(swapped=swapped):
                template = "WideRandom" if node.wide else "Random"
                return self.own(node.name, template, "true" if swapped else "false", arguments=random_arguments(node))
            case PairMember(member, distance):
                return self.own(node.name, "Odd" if member else "Even", str(distance))
            case PairInterleave(distance, dtype):
                return self.own(node.name, "Interleave", str(distance), REGISTER[dtype])
            case PlaceKeys(axis, least):
                return self.own(node.name, "PlaceKeys", _AXES[axis], "true" if least else "false")
            case FirstColumns(width, distance):
                return self.own(node.name, "FirstColumns", str(width), str(distance))
            case BlockReduce(kind, width):
                return self.own(node.name, "BlockReduce", COMBINE[kind], str(width))
            case MaskLoad() | MaskStore() | HalfLoad() | HalfStore() | BlockStore():
                return self.packed(node)
            case Gather() | Scatter():
                return self.indexed(node)
            case VectorStore():
                return self.vector_store(node)
            case Reduction():
                return self.reduction(node)
        raise AssertionError(node)

    def register(self, output: DType | Destination) -> str:
        """Return the type that a compute node hands on."""
        return "ElementD" if output is Destination.D else REGISTER[output]

    def scalar(self, node: ScalarBroadcast) -> NodeText:
        type_, member, stride = self.scalar_stride(node)
        match node.value:
            case Number(dtype, _) as value:
                return NodeText("scalar", node.name, REGISTER[dtype], type_, arguments=(("scalars[0]", number(value)),))
            case Size() as value:
                return NodeText("scalar", node.name, REGISTER[I32], type_, arguments=(("scalars[0]", size(value)),))
            case Single(dtype, _, pointer) as value:
                arguments = (
                    ("scalars[0]", value_of(value)),
                    ("scalar_ptrs[0]", input_pointer(dtype, pointer)),
                    (member, stride),
                )
                return NodeText("scalar", node.name, element(dtype), type_, arguments=arguments)

    def vector(self, node: VectorBroadcast) -> NodeText:
        kind, member = ("row", "row") if isinstance(node, RowBroadcast) else ("column", "col")
        single = node.values if isinstance(node.values, Single) else None
        pointer = input_pointer(node.dtype, pointer_of(node.values))
        arguments = (
            (f"ptr_{member}", pointer),
            *((("null_default", value_of(single)),) if single else ()),
            (f"d{member.capitalize()}", stride_value(node.strides)),
        )
        return NodeText(
            kind,
            node.name,
            element(node.dtype),
            stride_type(node.strides),
            output=loaded(node.dtype),
            arguments=arguments,
        )

    def auxiliary(self, node: Auxiliary) -> NodeText:
        kind = "store" if isinstance(node, AuxStore) else "tile"
        arguments = (("ptr_aux", pointer_without_const(node.dtype, node.pointer)), ("dAux", stride_value(node.strides)))
        return NodeText(
            kind if node.access is Access.TILE else f"{kind}_{node.access}",
            node.name,
            element(node.dtype),
            stride_type(node.strides),
            node.alignment,
            arguments=arguments,
        )

    def packed(self, node: Packed) -> NodeText:
        template, parameters = packed_class(node)
        strides = (("stride_m", read(node.row)), ("stride_l", read(node.batch)))
        return self.own(node.name, template, *parameters, arguments=(("ptr", _packed_pointer(node)), *strides))

    def indexed(self, node: Indexed) -> NodeText:
        gathers = isinstance(node, Gather)
        pointer = input_pointer if gathers else pointer_without_const
        parameters = (
            element(node.dtype),
            _places_type(node.rows),
            _places_type(node.columns),
            stride_type(node.strides),
        )
        arguments = [("ptr", pointer(node.dtype, node.pointer)), ("stride", stride_value(node.strides))]
        for member, places in (("rows", node.rows), ("columns", node.columns)):
            if places is not None:
                indices = input_pointer(places.dtype, places.indices)
                arguments.append((member, f"{{{indices}, {read(places.batch)}, {read(places.extent)}}}"))
        return self.own(node.name, "Gather" if gathers else "Scatter", *parameters, arguments=tuple(arguments))

    def vector_store(self, node: VectorStore) -> NodeText:
        arguments = (
            ("ptr", pointer_without_const(node.dtype, node.pointer)),
            ("stride", read(node.stride)),
            ("stride_l", read(node.batch)),
        )
        return self.own(node.name, "VectorStore", element(node.dtype), KEPT[node.shape], arguments=arguments)

    def reduction(self, node: Reduction) -> NodeText:
        parameters = (COMBINE[node.kind], part_type(node))
        arguments: Assignments
        if node.atomic:
            kind, pointer = "evt::Atomic", result_pointer(node.atomic)
            arguments = (("ptr", pointer), ("stride_l", read(node.atomic.batch)))
        else:
            kind, arguments = "evt::Partial", (("ptr", parts_pointer(node)),)
        return self.own(node.name, f"{_RESULTS[node.shape]}Reduction", *parameters, kind, arguments=arguments)


def result_pointer(result: Result) -> str:
    """Return where a result is stored."""
    return f"static_cast<{result.dtype.cutlass}*>(const_cast<void*>({read(result.pointer)}))"


def parts_pointer(node: Reduction) -> str:
    """Return where the parts of a reduction are in the workspace."""
    return f"parts<{part_type(node)}>(arguments, workspace.{node.name})"


def packed_class(node: Packed) -> tuple[str, tuple[str, ...]]:
    """Return the class template of a tensor of fewer columns, and its parameters."""
    match node:
        case MaskLoad():
            return "MaskLoad", ()
        case MaskStore():
            return "MaskStore", ()
        case HalfLoad(dtype=dtype, distance=distance):
            return "HalfLoad", (element(dtype), str(distance))
        case HalfStore(dtype=dtype, distance=distance):
            return "HalfStore", (element(dtype), str(distance))
        case BlockStore(dtype=dtype, width=width):
            return "BlockStore", (element(dtype), str(width))
    raise AssertionError(node)


def _places_type(places: Places | None) -> str:
    """Return what finds rows or columns in a tensor."""
    return "evt::InOrder" if places is None else f"evt::At<{element(places.dtype)}>"


def _packed_pointer(node: Packed) -> str:
    match node:
        case MaskLoad():
            return f"static_cast<std::uint8_t const*>({read(node.pointer)})"
        case MaskStore():
            return f"static_cast<std::uint8_t*>(const_cast<void*>({read(node.pointer)}))"
        case HalfLoad(dtype=dtype):
            return input_pointer(dtype, node.pointer)
        case HalfStore(dtype=dtype) | BlockStore(dtype=dtype):
            return pointer_without_const(dtype, node.pointer)
    raise AssertionError(node)


def random_arguments(node: RandomNumbers) -> Assignments:
    """Return what philox.hpp's random numbers are given."""
    arguments: list[tuple[str, str]] = []
    for member, value in (("seed", node.seed), ("offset", node.offset)):
        if isinstance(value, Number):
            arguments.append((member, f"{int(value.value) & 0xFFFFFFFF}u"))
            continue
        if node.wide:
            arguments += [
                (member, _wide_number(value)),
                (f"{member}_ptr", f"{{{read(value.pointer)}, {'true' if value.dtype == I64 else 'false'}}}"),
            ]
            continue
        arguments += [
            (member, f"static_cast<uint32_t>(static_cast<std::int64_t>({read(value.number)}))"),
            (f"{member}_ptr", f"static_cast<uint32_t const*>({read(value.pointer)})"),
        ]
    return tuple(arguments)


def _wide_number(single: Single) -> str:
    """Return a seed that a call gives by value: an i32 has no sign."""
    if single.dtype == I64:
        return f"static_cast<std::uint64_t>({read(single.number)})"
    return f"static_cast<uint32_t>(static_cast<std::int64_t>({read(single.number)}))"
