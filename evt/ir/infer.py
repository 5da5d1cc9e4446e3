"""Types: ``infer(dag, operands) -> TypedDag``.

Undeclared types follow the contract: D takes the type of A, tensors the type of D, scalars f32.
A value varies over the union of its operands' modes, which is how a bias meets a matrix.
Arithmetic is done in f32, so every computed value is f32; a cast's value has the cast's type.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from evt.diagnostics import Diagnostic
from evt.errors import ProgramError
from evt.ir.dag import Dag, TypedDag
from evt.ir.dtype import F32, OPERANDS, STORAGE, TF32, DType
from evt.ir.node import MODES, Acc, Apply, Cast, Const, Input, Load, Node, Operand, Output, Store, ValueType


def infer(dag: Dag, operands: Sequence[Operand] = ()) -> TypedDag:
    """Give every value a type.

    ``operands`` are A and B as the call or the command line has them; a program with a header needs none.
    Raises ProgramError: E0304 (a value varies over a mode that its output lacks), E0901 (a type or an output
    of the language that no kernel takes yet).
    """
    operands = tuple(operands) or dag.operands
    if len(operands) != 2:
        raise ValueError("the types of A and B are needed: the program has no header")
    diagnostics: list[Diagnostic] = []

    def report(code: str, message: str, value: Input | Output, label: str = "", hint: str = "") -> None:
        diagnostics.append(
            Diagnostic(code, message, value.span, label, help=hint, source=dag.source if value.span else None)
        )

    first, second = operands[0].dtype, operands[1].dtype
    diagnostics.extend(
        _unsupported(f"operand `{operand.name}`", operand.dtype, OPERANDS)
        for operand in operands
        if operand.dtype not in OPERANDS
    )
    if first != second and not {first, second} <= {F32, TF32}:
        diagnostics.append(
            Diagnostic(
                "E0901",
                f"`{operands[0].name}` is {first} and `{operands[1].name}` is {second}: "
                "operands of different types are not supported yet",
                help="convert one of them before the product",
            )
        )
    default_output = F32 if first == TF32 else first
    declared = next((value.dtype for value in dag.outputs if value.name == "D"), None)
    primary = declared or default_output
    outputs = [replace(value, dtype=value.dtype or primary) for value in dag.outputs]
    inputs = [replace(value, dtype=value.dtype or (F32 if value.is_scalar else primary)) for value in dag.inputs]
    interface: list[Input | Output] = [*inputs, *outputs]
    for value in interface:
        assert value.dtype is not None
        if value.dtype not in STORAGE:
            kind = "input" if isinstance(value, Input) else "output"
            unsupported = _unsupported(f"{kind} `{value.name}`", value.dtype, STORAGE)
            report(unsupported.code, unsupported.message, value, hint=unsupported.help)
        elif isinstance(value, Input) and value.is_scalar and value.dtype != F32:
            report("E0901", f"scalar `{value.name}` is {value.dtype}; scalars are f32 for now", value)
    if diagnostics:
        raise ProgramError(diagnostics)

    resolved = replace(dag, operands=operands, inputs=tuple(inputs), outputs=tuple(outputs))
    types: list[ValueType] = []
    for node in range(len(dag)):
        op = dag[node]
        types.append(value_type(resolved, op, [types[operand] for operand in dag.arguments(node)]))
        if isinstance(op, Store):
            output = resolved.output[op.name]
            varies = types[dag.arguments(node)[0]].modes
            subscript = ", ".join(output.modes)
            missing = [mode for mode in varies if mode not in output.modes]
            if output.batchable and "l" in missing:
                missing.remove("l")
            if missing:
                report(
                    "E0304",
                    f"`{op.name}` is [{subscript}] but its value varies over [{', '.join(varies)}]",
                    output,
                    f"has no mode `{missing[0]}`",
                    f"write `{op.name}[{', '.join(varies)}]`",
                )
            elif not {"m", "n"} <= set(output.modes):
                message = f"the output `{op.name}` of [{subscript}] is not supported yet"
                report("E0901", message, output, "planned, not built", "outputs have the modes m and n")
    if diagnostics:
        raise ProgramError(diagnostics)
    return TypedDag(
        resolved.operation,
        resolved.operands,
        resolved.inputs,
        resolved.outputs,
        dag.graph,
        dag.source,
        tuple(types),
    )


def value_type(dag: Dag, op: Node, operands: Sequence[ValueType]) -> ValueType:
    """The type of one node; ``dag`` gives the inputs' and outputs' types, which must be resolved."""
    match op:
        case Acc():
            return ValueType(F32, ("m", "n"))
        case Const():
            return ValueType(F32, ())
        case Load(name):
            dtype = dag.input[name].dtype
            assert dtype is not None
            return ValueType(dtype, canonical(dag.input[name].modes))
        case Apply():
            return ValueType(F32, canonical(mode for value in operands for mode in value.modes))
        case Cast(dtype):
            return ValueType(dtype, operands[0].modes)
        case Store(name):
            dtype = dag.output[name].dtype
            assert dtype is not None
            return ValueType(dtype, operands[0].modes)


def canonical(modes: Iterable[str]) -> tuple[str, ...]:
    """Modes without repeats, in the order of MODES."""
    present = set(modes)
    return tuple(mode for mode in MODES if mode in present)


def _unsupported(what: str, dtype: DType, allowed: Sequence[DType]) -> Diagnostic:
    names = ", ".join(str(each) for each in allowed)
    return Diagnostic("E0901", f"{what} is {dtype}, which is not supported yet", help=f"use one of: {names}")
