"""Type inference: ``infer(dag, operands) -> TypedDag``.

Undeclared types follow the language's contract: D has the type of A (bf16 for 8-bit operands), tensors have the type of
D, outputs of reductions have their compute type, and scalars are f32 (f64 with an f64 accumulator).

A value varies over the union of its operands' modes; this broadcasts a bias to a matrix. Arithmetic is in f32, in i32
if every operand is an integer, in f64 if one operand is f64. A comparison gives b1. Constants take the type of their
operation. A cast gives its type.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from itertools import chain
from typing import TypeVar

from evt.diagnostics import Diagnostic, Label, first
from evt.errors import ProgramError
from evt.functions import TABLE, Fact
from evt.ir.columns import check_columns
from evt.ir.completed import check_completed
from evt.ir.culprit import assumed_tile, find_culprit, label_of
from evt.ir.dag import Dag, TypedDag, factors, index_inputs
from evt.ir.dtype import (
    B1,
    BF16,
    F32,
    F64,
    I32,
    I64,
    OUTPUTS,
    SCALARS,
    STORAGE,
    TF32,
    DType,
    accumulator,
)
from evt.ir.factors import multiply_sums
from evt.ir.interface import declaration
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
    Operand,
    Output,
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
    is_divided,
    shown,
    within,
    written,
)
from evt.ir.operand_types import check_operand_types
from evt.ir.origin import Origin, Place, at

_Value = TypeVar("_Value", Input, Output)


def infer(dag: Dag, operands: Sequence[Operand] = ()) -> TypedDag:
    """Return the graph with a type for every value.

    ``operands`` are A and B as the call or the command line declares them; a program with a header needs none. Raise
    ProgramError: E0304 (a value varies over a mode that its output lacks), E0307 (columns of different widths in one
    value), E0308 (a type that is not allowed in its place), E0410 (a reduction that is read in the kernel).
    """
    operands = tuple(operands) or dag.operands
    if len(operands) != 2:
        raise ValueError("the types of A and B are needed: the program has no header")
    diagnostics = [*check_operand_types(dag, operands)]
    if diagnostics:
        raise ProgramError(first(diagnostics))
    dag = multiply_sums(replace(dag, operands=operands))
    primary = _primary(dag, operands[0].dtype)
    scalar = F64 if accumulator(operands[0].dtype) == F64 else F32
    known = {**dict.fromkeys(index_inputs(dag), I32), **dict.fromkeys(factors(dag), operands[1].dtype)}
    inputs = tuple(
        _with_type(value, known.get(value.name, scalar if value.is_scalar or value.is_blocked else primary))
        for value in dag.inputs
    )
    values = replace(dag, operands=operands, inputs=inputs)
    types: list[ValueType] = []
    wrong: set[int] = set()  # refused nodes and their users, which are not reported again
    for node in range(len(dag)):
        arguments = dag.arguments(node)
        found = [] if wrong.intersection(arguments) else list(_check_value(values, node, types))
        if found or wrong.intersection(arguments):
            wrong |= {node, *(operand for operand in arguments if isinstance(dag[operand], Reduce) and found)}
        diagnostics.extend(found)
        types.append(value_type(values, dag[node], [types[operand] for operand in arguments]))
    outputs = tuple(
        _with_type(output, _output_type(dag, types, dag.stores[output.name], primary)) for output in dag.outputs
    )
    columns = list(check_columns(dag, types))
    interface = [*_check_interface(dag, inputs, outputs), *_check_indices(dag, inputs, outputs)]
    refused = {each.span for each in interface if each.span is not None}
    diagnostics += [*columns, *interface]
    for output in outputs:
        if not columns and dag.stores[output.name] not in wrong and output.span not in refused:
            diagnostics.extend(_check_output(dag, output, types))
    if diagnostics:
        raise ProgramError(first(diagnostics))
    return TypedDag(dag.operation, operands, inputs, outputs, dag.table, dag.source, dag.origins, tuple(types))


def value_type(dag: Dag, op: Node, operands: Sequence[ValueType]) -> ValueType:
    """Return the type of one node. ``dag`` has resolved types of operands and inputs."""
    modes = value_modes(dag.input, op, [value.modes for value in operands])
    match op:
        case Acc():
            return ValueType.of(accumulator(dag.operands[0].dtype), modes)
        case Element(name):
            return ValueType.of(next(operand.dtype for operand in dag.operands if operand.name == name), modes)
        case Const():
            return ValueType.of(I32 if op.is_integer else alone(dag), modes, True)
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
        return alone(dag)
    if "f64" in varying:
        return F64
    if "f32" not in varying and Fact.INTEGER in row.facts and not any(value.dtype.is_float for value in values):
        return I32
    return F32


def interleaved_type(dag: Dag, operands: Sequence[ValueType]) -> DType:
    """Return the type of interleaved columns: the type in which one of two values is selected."""
    return domain(dag, "where", [ValueType.of(B1, ()), *operands])


def alone(dag: Dag) -> DType:
    """Return the compute type of operations on constants only: f32, or f64 with an f64 accumulator."""
    return F64 if accumulator(dag.operands[0].dtype) == F64 else F32


def met(value: ValueType, dtype: DType) -> DType:
    """Return the compute type of a constant that is cast to or stored as a type. f64 takes the constant unrounded."""
    return F64 if dtype == F64 else value.dtype.compute


def reduced_type(dag: Dag, value: ValueType) -> DType:
    """Return the type of a reduction of a value: f32, f64 or i32."""
    compute = value.dtype.compute
    if value.constant:
        return alone(dag)
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


def _primary(dag: Dag, operand: DType) -> DType:
    """Return the type of D, or of the first matrix of a program without D. Undeclared tensors take it too."""
    primary = dag.primary
    if primary.dtype is not None and (primary.name == "D" or primary.is_whole):
        return primary.dtype
    if operand.bits == 8:
        return BF16
    return F32 if operand == TF32 else operand


def _with_type(value: _Value, dtype: DType) -> _Value:
    """Return the value with a type, unless it has one."""
    return value if value.dtype is not None else replace(value, dtype=dtype, inferred=(*value.inferred, "type"))


def _output_type(dag: Dag, types: Sequence[ValueType], store: int, primary: DType) -> DType:
    """Return the type of an undeclared output."""
    if not dag.reduced[store]:
        return primary
    compute = types[dag.arguments(store)[0]].dtype.compute
    return I32 if compute == B1 else compute  # bits are packed along the columns of a matrix


def _check_interface(dag: Dag, inputs: Sequence[Input], outputs: Sequence[Output]) -> Iterable[Diagnostic]:
    values: tuple[Input | Output, ...] = (*inputs, *outputs)
    for value in values:
        assert value.dtype is not None
        scalar = isinstance(value, Input) and value.is_scalar
        allowed, kind = (STORAGE, "input") if isinstance(value, Input) else (OUTPUTS, "output")
        if scalar:
            allowed, kind = SCALARS, "scalar"
        if value.dtype not in allowed:
            help_text = f"use one of: {', '.join(map(str, allowed))}"
            if value.dtype == TF32:
                help_text = "a tf32 tensor is f32 in memory: declare it f32"
            elif scalar and value.dtype in STORAGE and not value.modes:
                matrix = declaration(value.name, value.dtype, ("m", "n"))
                help_text = f"a scalar is one of {', '.join(map(str, allowed))}; a matrix is declared `in {matrix}`"
            elif value.dtype == I64:
                help_text = "integers are computed in i32: declare it i32"
            message = f"{kind} `{value.name}` is {value.dtype}, which is not a type of {kind}s"
            yield at(value.span, dag.source, Diagnostic("E0308", message, help=help_text))
        elif isinstance(value, Input) and (hint := _wrong_columns(value)):
            message = f"the input `{value.name}` is [{shown(value.modes)}], which no kernel supports"
            yield at(value.span, dag.source, Diagnostic("E0308", message, help=hint))
        elif value.dtype == B1 and not _is_mask(value):
            message = f"`{value.name}` is b1 of [{shown(value.modes)}]: bits are packed along the columns of a matrix"
            help_text = "b1 tensors are [m, n] or [l, m, n]; `bool` has a byte for each element"
            yield at(value.span, dag.source, Diagnostic("E0308", message, help=help_text))


def _check_indices(dag: Dag, inputs: Sequence[Input], outputs: Sequence[Output]) -> Iterable[Diagnostic]:
    """Check that indices are whole numbers, and that they gather or scatter whole rows or columns."""
    named = {value.name: value for value in inputs}
    values: tuple[Input | Output, ...] = (*inputs, *outputs)
    for value in (value for value in values if value.is_indexed):
        says = f"and says where `{value.name}` is {_moved(value)}"
        for index in (named[index] for index in map(index_of, value.modes) if index in named):
            assert index.dtype is not None
            if index.dtype != I32:
                message, hint = f"`{index.name}` is {index.dtype}, {says}", f"declare it i32: `{index.name}: i32`"
                yield at(index.span, dag.source, Diagnostic("E0308", message, help=hint))
            if index.default is not None or index.flexible:
                what = "has a default" if index.default is not None else "may be a single value"
                message, hint = f"`{index.name}` {what}, {says}", "declare it a vector without a default"
                yield at(index.span, dag.source, Diagnostic("E0308", message, help=hint))
        if any(divisor(mode) > 1 for mode in value.modes):
            message = f"`{value.name}` is [{shown(value.modes)}]: fewer columns are not {_moved(value)} by an index"
            hint = "store them in order, and move the rows in a separate kernel"
            if isinstance(value, Input):
                hint = "move the rows in a separate kernel, or pass a value for each column"
            yield at(value.span, dag.source, Diagnostic("E0308", message, help=hint))


def _moved(value: Input | Output) -> str:
    return "read" if isinstance(value, Input) else "stored"


def _wrong_columns(value: Input) -> str:
    """Return the reason that an input with fewer columns than the accumulator cannot be read, or ""."""
    if value.is_blocked:
        return ""
    widths = [divisor(mode) for mode in value.modes if divisor(mode) > 1]
    if widths and not value.is_tile:
        return "only a matrix may have half the columns: [m, n/2]"
    return "block values can be stored but not read; pass a value for each column" if max(widths, default=2) > 2 else ""


def _is_mask(value: Input | Output) -> bool:
    return value.modes in (("m", "n"), ("l", "m", "n"))


def _check_value(dag: Dag, node: int, types: Sequence[ValueType]) -> Iterable[Diagnostic]:
    """Yield mistakes in a node's operands: reductions, negative powers of integers, seeds of random numbers."""
    yield from check_completed(dag, node, types)
    op, arguments = dag[node], dag.arguments(node)
    if isinstance(op, Reduce) and op.kind in PLACES and reduced_type(dag, types[arguments[0]]) == F64:
        message, hint = f"`{op.kind}` does not support f64 values", f"round them: `{op.kind}[{op.modes[0]}](f32(x))`"
        yield at(dag.origins[node], dag.source, Diagnostic("E0308", message, None, "of f64", hint))
    if not isinstance(op, Cast | Random) and any(types[operand].dtype == I64 for operand in arguments):
        message, hint = "no value is computed in i64", "make it an i32 first: `i32(x)`"
        yield at(dag.origins[node], dag.source, Diagnostic("E0308", message, None, "reads an i64", hint))
    if op == Apply("pow") and domain(dag, "pow", [types[operand] for operand in arguments]) == I32:
        exponent = dag[arguments[1]]
        if isinstance(exponent, Const) and exponent.value < 0:
            message = f"an integer has no integer power of {exponent.value:g}"
            hint = f"convert it first: `f32(x)**{exponent.value:g}`"
            yield at(dag.origins[node], dag.source, Diagnostic("E0308", message, None, "computed in i32", hint))
    if isinstance(op, Random) and not all(_is_counter(dag, operand, types[operand]) for operand in arguments):
        hint = "declare them: `in seed: i64, offset: i64`, or i32"
        message = "the seed and the offset of random numbers are i32 or i64 scalars"
        yield at(dag.origins[node], dag.source, Diagnostic("E0308", message, None, "made with others", hint))


def _is_counter(dag: Dag, node: int, value: ValueType) -> bool:
    """Return whether a value can be a seed or an offset: an i32 or i64 scalar input or a whole number."""
    return value.dtype in (I32, I64) and value.modes == () and isinstance(dag[node], Load | Const)


def _check_output(dag: Dag, output: Output, types: Sequence[ValueType]) -> Iterable[Diagnostic]:
    """Yield modes in which an output and its value differ, at the value and at the output's declaration."""
    store = dag.stores[output.name]
    (stored,) = dag.arguments(store)
    value, reduced = types[stored], bool(dag.reduced[store])
    modes = set(map(written, map(direct, output.modes)))
    missing = [mode for mode in map(written, value.modes) if mode not in modes]
    if output.batchable and "l" in missing:
        missing.remove("l")
    have, varies = f"`{output.name}` is [{shown(output.modes)}]", f"varies over [{shown(value.modes)}]"
    write = f"write `{output.name}[{shown(value.modes)}]`"

    def mistake(
        message: str, label: str, declared: str, hint: str = write, culprit: tuple[Label, ...] = ()
    ) -> Diagnostic:
        secondary = (*culprit, *((Label(output.span, declared),) if output.span else ()))
        return at(
            _assigned(dag, store), dag.source, Diagnostic("E0304", message, None, label, hint, secondary=secondary)
        )

    if reduced and output.is_indexed:
        hint = f"store it as `{output.name}[{shown(map(direct, output.modes))}]`"
        yield mistake(
            f"{have}, and the results of a reduction are stored in order", "a reduction", "stored by an index", hint
        )
    elif missing:
        mode = next(mode for mode in value.modes if written(mode) == missing[0])
        culprit = None if reduced else find_culprit(dag, types, [stored], mode)
        if not reduced and not any(is_divided(mode) for mode in missing):
            write += f", or reduce it: `sum[{', '.join(missing)}](x)`"
        if assumed := assumed_tile(dag, culprit):
            write = f"write `{assumed}[{shown(output.modes)}]` where it is read; or {write}"
        message, lacks = f"{have} but its value {varies}", f"has no mode `{missing[0]}`"
        yield mistake(message, varies, lacks, write, label_of(dag, types, culprit) if culprit != stored else ())
    elif (reduced or not output.is_tile) and "l" in modes and output.modes[0] != "l":
        modes_first = ", ".join(["l", *(mode for mode in output.modes if mode != "l")])
        what = "a reduction" if reduced else "a vector"
        message, hint = f"{have}: the batches of {what} come first", f"write `{output.name}[{modes_first}]`"
        yield at(output.span, dag.source, Diagnostic("E0304", message, None, "batches are not first", hint))
    elif reduced and "l" in modes and not output.batchable and "l" in dag.reduced[store]:
        message = f"{have}, but its value is reduced over the batches"
        yield mistake(message, "reduced over the batches", "has no batches")
    elif reduced and modes - {"l"} != set(map(written, value.modes)) - {"l"}:
        gives = f"gives [{shown(value.modes)}]"
        yield mistake(f"{have} but the reduction {gives}", gives, "not the modes that are left")
    elif not (reduced or output.is_tile) and any(is_divided(mode) for mode in modes):
        hint = f"write `{output.name}[{', '.join(['m', *output.modes])}]`"
        yield mistake(f"{have}: only a matrix may have fewer columns", varies, "has no rows", hint)
    elif any(is_divided(mode) for mode in modes) and modes - set(map(written, value.modes)) - {"l", "m"}:
        yield mistake(f"{have} but its value {varies}", varies, "other columns")


def _assigned(dag: Dag, store: int) -> Origin | None:
    """Return the stored expression, or the statement that stores it if the expression is elsewhere."""
    statement, value = dag.origins[store], dag.origins[dag.arguments(store)[0]]
    if isinstance(statement, Place) and isinstance(value, Place) and statement.span.covers(value.site):
        return Place(value.site)
    return statement
