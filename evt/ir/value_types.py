"""The rules of value types: ``value_type(dag, op, operands) -> ValueType``, from the types of a node's operands.

A value varies over the union of its operands' modes; this broadcasts a bias to a matrix. Arithmetic is in f32, in i32
if every operand is an integer, in f64 if one operand is f64. A comparison gives b1. Constants take the type of their
operation. A cast gives its type.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from itertools import chain

from evt.functions import TABLE, Fact
from evt.ir.dag import Dag
from evt.ir.dtype import B1, F32, F64, I32, DType, accumulator
from evt.ir.node import (
    ELEMENT_MODES,
    MODES,
    MOMENTS,
    PLACES,
    Acc,
    Apply,
    Cast,
    Const,
    Element,
    Extent,
    Feed,
    Index,
    Input,
    Interleave,
    Load,
    Node,
    Pick,
    Random,
    Reduce,
    ReduceBlocks,
    Scale,
    Store,
    ValueType,
    base,
    direct,
    divisor,
    index_of,
    within,
)


def value_type(dag: Dag, op: Node, operands: Sequence[ValueType]) -> ValueType:
    """Return the type of one node. ``dag`` has resolved types of operands and inputs."""
    modes = value_modes(dag.input, op, [value.modes for value in operands])
    match op:
        case Acc():
            return ValueType.of(accumulator(dag.operands[0].dtype), modes)
        case Element(name):
            return ValueType.of(next(operand.dtype for operand in dag.operands if operand.name == name), modes)
        case Const():
            return ValueType.of(I32 if op.is_integer else constants_type(dag), modes, True)
        case Load(name):
            dtype = dag.input[name].dtype
            assert dtype is not None
            return ValueType.of(dtype, modes)
        case Apply(function):
            constant = all(value.constant for value in operands)
            predicate = TABLE[function].result == "predicate"
            return ValueType.of(B1 if predicate else domain(dag, function, operands), modes, constant)
        case Cast(dtype):
            return ValueType.of(dtype, modes)
        case Reduce(kind) if kind in PLACES:
            return ValueType.of(I32, modes)
        case Reduce(kind) if kind in MOMENTS:
            return ValueType.of(F64 if reduced_type(dag, operands[0]) == F64 else F32, modes)
        case Reduce() | ReduceBlocks():
            return ValueType.of(reduced_type(dag, operands[0]), modes)
        case Pick() | Store() | Feed() | Scale():
            return ValueType.of(operands[0].dtype, modes, operands[0].constant)
        case Interleave():
            return ValueType.of(interleaved_type(dag, operands), modes, all(value.constant for value in operands))
        case Index() | Extent():
            return ValueType.of(I32, modes)
        case Random():
            return ValueType.of(F32, modes)


def value_modes(inputs: Mapping[str, Input], op: Node, operands: Sequence[tuple[str, ...]]) -> tuple[str, ...]:
    """Return the modes over which a node varies, from the modes of its operands."""

    def columns(name: str) -> tuple[str, ...]:
        return canonical((*(mode for mode in operands[0] if base(mode) != "n"), name))

    match op:
        case Acc():
            return ("m", "n")
        case Element(name):
            return ELEMENT_MODES[name]
        case Load(name):
            loaded = inputs[name].modes
            indices = (inputs[index].modes for index in map(index_of, loaded) if index in inputs)
            return canonical((*map(direct, loaded), *chain.from_iterable(indices)))
        case Const(_, modes) if modes:
            return modes
        case Reduce(_, modes):
            # The kernel writes every remaining row or column, regardless of the operand's modes.
            own = next((mode for mode in operands[0] if base(mode) == "n"), "n")
            over = set(map(base, modes))
            left = [mode for mode in ("m", own, *operands[0]) if base(mode) not in over]
            return canonical((*left, *within(modes, operands[0])))
        case ReduceBlocks(_, width):
            return columns(f"n/{width * max(map(divisor, operands[0]), default=1)}")
        case Pick(_, block):
            return columns(f"n/2@{block}")
        case Interleave():
            kept = {mode for modes in operands for mode in modes if base(mode) != "n"}
            return canonical((*kept, "n"))
        case Index(mode):
            return (mode,)
        case Extent():
            return ()
        case Random():
            return MODES
        case _ if all(modes == operands[0] for modes in operands[1:]):
            return operands[0] if operands else ()
        case _:
            return canonical(mode for modes in operands for mode in modes)


def domain(dag: Dag, function: str, operands: Sequence[ValueType]) -> DType:
    """Return the type that a function computes in. All operands except conditions are converted to it."""
    row = TABLE[function]
    if row.source:
        return F32  # a user's C++
    values = [x for slot, x in enumerate(operands) if slot not in row.conditions] if row.conditions else operands
    if not values:
        return B1
    varying = {value.dtype.compute.name for value in values if not value.constant}
    if not varying:
        return constants_type(dag)
    if "f64" in varying:
        return F64
    if "f32" not in varying and Fact.INTEGER in row.facts and not any(value.dtype.is_float for value in values):
        return I32
    return F32


def interleaved_type(dag: Dag, operands: Sequence[ValueType]) -> DType:
    """Return the type of interleaved columns: the type in which one of two values is selected."""
    return domain(dag, "where", [ValueType.of(B1, ()), *operands])


def constants_type(dag: Dag) -> DType:
    """Return the compute type of operations on constants only: f32, or f64 with an f64 accumulator."""
    return F64 if accumulator(dag.operands[0].dtype) == F64 else F32


def cast_constant_type(value: ValueType, dtype: DType) -> DType:
    """Return the compute type of a constant that is cast to or stored as a type. f64 takes the constant unrounded."""
    return F64 if dtype == F64 else value.dtype.compute


def reduced_type(dag: Dag, value: ValueType) -> DType:
    """Return the type of a reduction of a value: f32, f64 or i32."""
    compute = value.dtype.compute
    if value.constant:
        return constants_type(dag)
    return I32 if compute == B1 else compute


def canonical(modes: Iterable[str]) -> tuple[str, ...]:
    """Return the modes without repeats, in the order of MODES and k.

    The least divided of several modes with one base remains, and the half with a distance.
    """
    return _canonical(tuple(dict.fromkeys(modes)))


@cache
def _canonical(present: tuple[str, ...]) -> tuple[str, ...]:
    found: list[str] = []
    for mode in (*MODES, "k"):
        same = [each for each in present if base(each) == mode]
        if same:
            found.append(min(same, key=lambda each: (divisor(each), "@" not in each)))
    return tuple(found)
