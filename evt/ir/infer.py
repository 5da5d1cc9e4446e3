"""Type inference: ``infer(dag, operands) -> TypedDag``.

Undeclared types follow the language's contract: D has the type of A (bf16 for 8-bit operands), tensors have the type of
D, outputs of reductions have their compute type, and scalars are f32 (f64 with an f64 accumulator).
:mod:`evt.ir.value_types` has the types of the values between inputs and outputs, :mod:`evt.ir.checks` the mistakes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TypeVar

from evt.diagnostics import first
from evt.errors import ProgramError
from evt.ir.checks import check_indices, check_interface, check_output, check_value
from evt.ir.columns import check_columns
from evt.ir.dag import Dag, TypedDag, factors, index_inputs
from evt.ir.dtype import B1, BF16, F32, F64, I32, TF32, DType, accumulator
from evt.ir.factors import multiply_sums
from evt.ir.node import Input, Operand, Output, Reduce, ValueType
from evt.ir.operand_types import check_operand_types
from evt.ir.value_types import value_type

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
        found = [] if wrong.intersection(arguments) else list(check_value(values, node, types))
        if found or wrong.intersection(arguments):
            wrong |= {node, *(operand for operand in arguments if isinstance(dag[operand], Reduce) and found)}
        diagnostics.extend(found)
        types.append(value_type(values, dag[node], [types[operand] for operand in arguments]))
    outputs = tuple(
        _with_type(output, _output_type(dag, types, dag.stores[output.name], primary)) for output in dag.outputs
    )
    columns = list(check_columns(dag, types))
    interface = [*check_interface(dag, inputs, outputs), *check_indices(dag, inputs, outputs)]
    refused = {each.span for each in interface if each.span is not None}
    diagnostics += [*columns, *interface]
    for output in outputs:
        if not columns and dag.stores[output.name] not in wrong and output.span not in refused:
            diagnostics.extend(check_output(dag, output, types))
    if diagnostics:
        raise ProgramError(first(diagnostics))
    return TypedDag(dag.operation, operands, inputs, outputs, dag.table, dag.source, dag.origins, tuple(types))


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
