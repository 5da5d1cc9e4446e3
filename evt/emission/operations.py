"""The operations of evt in C++: ``operation(step, names) -> str`` and ``members(step, names) -> Assignments``.

A step says which operation of codegen/include/evt/epilogue it is, with which arguments at compile time and at run time.
This module spells them by their types, for all families of kernels. A family is a record of names.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from evt.emission.expressions import (
    COMBINE,
    REGISTER,
    element,
    part_type,
    read,
    read_stride,
    size,
    stride_type,
    stride_value,
)
from evt.emission.text import Assignments
from evt.ir.dtype import I64, DType
from evt.plan.epilogue.broadcasts import RandomNumbers, VectorBroadcast
from evt.plan.epilogue.results import Result
from evt.plan.epilogue.step import Step
from evt.plan.epilogue.values import (
    Constant,
    Member,
    Number,
    Places,
    Pointer,
    Register,
    ResultShape,
    Single,
    Size,
    Strides,
    Varies,
)
from evt.plan.epilogue.writes import Reduction
from evt.plan.fields import Field

#: The modes of coordinates, by their numbers in C++.
_AXES = {"row": "0", "column": "1", "batch": "2"}
#: The mode along which a vector has values, by its number in C++.
KEPT = {ResultShape.COLUMN: "0", ResultShape.ROW: "1", ResultShape.SCALAR: "-1"}


@dataclass(frozen=True, slots=True)
class Names:
    """The names of a family of kernels.

    ``operation`` returns the C++ type of an operation with its arguments; ``element`` the type of a tensor's elements.
    ``batched``: tensors have batch strides. ``many``: vectors and scalars have strides from group to group, or from
    batch to batch. ``packed``: types say which vectors have stride 1.
    """

    operation: Callable[[str, tuple[str, ...]], str]
    element: Callable[[DType], str] = element
    batched: bool = True
    many: bool = False
    packed: bool = False


def operation(step: Step, names: Names) -> str:
    """Return the C++ type of a step's operation."""
    if isinstance(step, Reduction):
        write = "evt::Atomic" if step.atomic else "evt::Partial"
        return names.operation(step.operation, (COMBINE[step.kind], part_type(step), write))
    arguments = tuple(_constant(each, names) for each in step.constants)
    if names.packed and isinstance(step, VectorBroadcast) and step.is_packed:
        arguments += ("true",)
    return names.operation(step.operation, arguments)


def listed(name: str, arguments: tuple[str, ...]) -> str:
    """Return a class template with its arguments."""
    return f"{name}<{', '.join(arguments)}>" if arguments else name


def members(step: Step, names: Names) -> Assignments:
    """Return the assignments to the members of an operation's arguments."""
    match step:
        case RandomNumbers():
            return random_arguments(step)
        case Reduction(extent=extent, atomic=atomic):
            pointer = result_pointer(atomic) if atomic else parts_pointer(step)
            if not names.batched:
                return ("ptr", pointer), ("kept", read(extent))
            return (("ptr", pointer), *((("stride_l", read(atomic.batch)),) if atomic else ()))
    found = [(name, member) for name, member in step.members if names.batched or names.many or name != "stride_l"]
    return tuple((name, _member(member, names)) for name, member in found)


def _constant(value: Constant, names: Names) -> str:
    """Return a compile-time argument."""
    match value:
        case DType():
            return names.element(value)
        case Register(dtype):
            return REGISTER[dtype]
        case bool():
            return "true" if value else "false"
        case int():
            return str(value)
        case str():
            return _AXES.get(value) or COMBINE[value]
        case ResultShape():
            return KEPT[value]
        case Places(dtype):
            return f"evt::At<{names.element(dtype)}>"
        case None:
            return "evt::InOrder"
        case tuple():
            return stride_type(value) if names.batched else "evt::epilogue::Strides"
    raise AssertionError(value)


def _member(value: Member, names: Names) -> str:
    """Return a run-time argument."""
    match value:
        case Pointer():
            return _pointer(value, names)
        case Single(dtype):
            return f"static_cast<{REGISTER[dtype.compute]}>({read(value.number)})"
        case Size():
            return size(value)
        case Places(dtype, indices, batch, extent):
            given = _pointer(Pointer(indices, dtype, is_const=True), names)
            return f"{{{given}, {read(batch) if names.batched else '0'}, {read(extent)}}}"
        case tuple():
            return _strides(value, names)
        case Field() | Varies() | int():
            return read_stride(value)
    raise AssertionError(value)


def _strides(strides: Strides, names: Names) -> str:
    """Return strides; a kernel of one batch takes the strides of rows and columns."""
    return stride_value(strides) if names.batched else f"{{{', '.join(map(read_stride, strides[:2]))}}}"


def _pointer(pointer: Pointer, names: Names) -> str:
    """Return an address."""
    type_ = names.element(pointer.dtype)
    if pointer.is_const:
        return f"static_cast<{type_} const*>({read(pointer.field)})"
    return f"static_cast<{type_}*>({_mutable(pointer.field) if names.batched else read(pointer.field)})"


def _mutable(pointer: Field) -> str:
    return f"const_cast<void*>({read(pointer)})"


def result_pointer(result: Result) -> str:
    """Return the address of a result."""
    return f"static_cast<{result.dtype.cutlass}*>({_mutable(result.pointer)})"


def parts_pointer(step: Reduction) -> str:
    """Return the address of a reduction's parts in the workspace."""
    return f"parts<{part_type(step)}>(arguments, workspace.{step.name})"


def random_arguments(step: RandomNumbers) -> Assignments:
    """Return the arguments of the random numbers of philox.hpp."""
    arguments: list[tuple[str, str]] = []
    for member, value in (("seed", step.seed), ("offset", step.offset)):
        if isinstance(value, Number):
            arguments.append((member, f"{int(value.value) & 0xFFFFFFFF}u"))
            continue
        narrow = f"static_cast<uint32_t>(static_cast<std::int64_t>({read(value.number)}))"
        if step.wide:
            wide = f"static_cast<std::uint64_t>({read(value.number)})" if value.dtype == I64 else narrow
            pointer = f"{{{read(value.pointer)}, {'true' if value.dtype == I64 else 'false'}}}"
            arguments += [(member, wide), (f"{member}_ptr", pointer)]
            continue
        arguments += [(member, narrow), (f"{member}_ptr", f"static_cast<uint32_t const*>({read(value.pointer)})")]
    return tuple(arguments)
