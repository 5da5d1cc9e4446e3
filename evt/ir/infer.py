"""Types: ``infer(dag, operands) -> TypedDag``.

Undeclared types follow the contract: D takes the type of A (bf16 for 8-bit operands), tensors the type of D, outputs
of reductions their compute type, scalars f32 (f64 beside an f64 accumulator).

A value varies over the union of its operands' modes, which is how a bias meets a matrix. Arithmetic is done in f32,
in i32 where every operand is an integer, in f64 where one is f64; a comparison gives b1. Constants take the type of
what they meet. A cast's value has the cast's type.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache

from evt.diagnostics import Diagnostic, Label
from evt.errors import ProgramError
from evt.functions import TABLE, Fact
from evt.ir.dag import Dag, TypedDag
from evt.ir.dtype import B1, BF16, F32, F64, I32, MIXED_OPERANDS, OPERANDS, SCALARS, STORAGE, TF32, DType, accumulator
from evt.ir.node import (
    ELEMENT_MODES,
    MODES,
    Acc,
    Apply,
    Cast,
    Const,
    Element,
    Feed,
    Fold,
    Index,
    Input,
    Load,
    Node,
    Operand,
    Output,
    Pick,
    Random,
    Reduce,
    Store,
    ValueType,
    base,
    divisor,
    written,
)
from evt.ir.origin import Origin, Place, at


def infer(dag: Dag, operands: Sequence[Operand] = ()) -> TypedDag:
    """Return the graph with a type for every value.

    ``operands`` are A and B as the call or the command line has them; a program with a header needs none.
    Raise ProgramError: E0304 (a value varies over a mode that its output lacks), E0307 (columns of different widths
    in one value), E0308 (a type that is not allowed where it stands), E0410 (a reduction that is read in the kernel).
    """
    operands = tuple(operands) or dag.operands
    if len(operands) != 2:
        raise ValueError("the types of A and B are needed: the program has no header")
    diagnostics = [*_check_operands(dag, operands)]
    if diagnostics:
        raise ProgramError(diagnostics)
    primary = _primary(dag, operands[0].dtype)
    scalar = F64 if accumulator(operands[0].dtype) == F64 else F32
    inputs = tuple(
        replace(value, dtype=value.dtype or (scalar if value.is_scalar else primary)) for value in dag.inputs
    )
    values = replace(dag, operands=operands, inputs=inputs)
    types: list[ValueType] = []
    for node in range(len(dag)):
        arguments = dag.arguments(node)
        diagnostics.extend(_check_value(dag, node, types))
        types.append(value_type(values, dag[node], [types[operand] for operand in arguments]))
    outputs = tuple(
        replace(output, dtype=output.dtype or _output_type(dag, types, dag.stores[output.name], primary))
        for output in dag.outputs
    )
    diagnostics.extend(_check_interface(dag, inputs, outputs))
    for output in outputs:
        diagnostics.extend(_check_output(dag, output, types[dag.arguments(dag.stores[output.name])[0]]))
    if diagnostics:
        raise ProgramError(diagnostics)
    return TypedDag(dag.operation, operands, inputs, outputs, dag.table, dag.source, dag.origins, tuple(types))


def value_type(dag: Dag, op: Node, operands: Sequence[ValueType]) -> ValueType:
    """Return the type of one node; ``dag`` gives the operands' and inputs' types, which must be resolved."""
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
        case Reduce() | Fold():
            return ValueType.of(reduced_type(dag, operands[0]), modes)
        case Pick() | Store() | Feed():
            return ValueType.of(operands[0].dtype, modes, operands[0].constant)
        case Index():
            return ValueType.of(I32, modes)
        case Random():
            return ValueType.of(F32, modes)


def value_modes(inputs: Mapping[str, Input], op: Node, operands: Sequence[tuple[str, ...]]) -> tuple[str, ...]:
    """Return the modes over which a node varies, given those of its operands."""

    def columns(name: str) -> tuple[str, ...]:
        return canonical((*(mode for mode in operands[0] if mode != "n"), name))

    match op:
        case Acc():
            return ("m", "n")
        case Element(name):
            return ELEMENT_MODES[name]
        case Load(name):
            return canonical(inputs[name].modes)
        case Const(_, modes) if modes:
            return modes
        case Reduce(_, modes):
            # The kernel writes every remaining row or column, whatever the operand varies over.
            return canonical(mode for mode in ("m", "n", *operands[0]) if mode not in modes)
        case Fold(_, width):
            return columns(f"n/{width}")
        case Pick(_, block):
            return columns(f"n/2@{block}")
        case Index(mode):
            return (mode,)
        case Random():
            return MODES
        case _ if all(modes == operands[0] for modes in operands[1:]):
            return operands[0] if operands else ()
        case _:
            return canonical(mode for modes in operands for mode in modes)


def domain(dag: Dag, function: str, operands: Sequence[ValueType]) -> DType:
    """Return the type that a function computes in: what its operands are converted to, except conditions."""
    row = TABLE[function]
    if row.source:
        return F32  # a user's C++
    values = (
        [value for slot, value in enumerate(operands) if slot not in row.conditions] if row.conditions else operands
    )
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


def alone(dag: Dag) -> DType:
    """Return the compute type of operations on constants alone: f32, or f64 beside an f64 accumulator."""
    return F64 if accumulator(dag.operands[0].dtype) == F64 else F32


def met(value: ValueType, dtype: DType) -> DType:
    """Return the compute type of a constant that is cast to or stored as a type: f64 takes it as it is written."""
    return F64 if dtype == F64 else value.dtype.compute


def reduced_type(dag: Dag, value: ValueType) -> DType:
    """Return the type that a value is reduced in: f32, f64 or i32."""
    compute = value.dtype.compute
    if value.constant:
        return alone(dag)
    return I32 if compute == B1 else compute


def canonical(modes: Iterable[str]) -> tuple[str, ...]:
    """Return modes without repeats, in the order of MODES and k: whole before divided, a half with its distance."""
    return _canonical(tuple(dict.fromkeys(modes)))


@cache
def _canonical(present: tuple[str, ...]) -> tuple[str, ...]:
    found: list[str] = []
    for mode in (*MODES, "k"):
        same = [each for each in present if base(each) == mode]
        if same:
            found.append(mode if mode in same else max(same, key=lambda each: "@" in each))
    return tuple(found)


def shown(modes: Iterable[str]) -> str:
    """Return modes as a program writes them."""
    return ", ".join(map(written, modes))


def _primary(dag: Dag, operand: DType) -> DType:
    """Return the type of D, which undeclared tensors take too."""
    declared = next((value.dtype for value in dag.outputs if value.name == "D"), None)
    if declared is not None:
        return declared
    if operand.bits == 8:
        return BF16
    return F32 if operand == TF32 else operand


def _output_type(dag: Dag, types: Sequence[ValueType], store: int, primary: DType) -> DType:
    """Return the type of an undeclared output."""
    value = dag.arguments(store)[0]
    return types[value].dtype.compute if isinstance(dag[value], Reduce) else primary


def _check_operands(dag: Dag, operands: Sequence[Operand]) -> Iterable[Diagnostic]:
    for operand in operands:
        if operand.dtype not in OPERANDS:
            allowed = ", ".join(map(str, OPERANDS))
            message = f"operand `{operand.name}` is {operand.dtype}, which tensor cores do not multiply"
            yield at(operand.span, dag.source, Diagnostic("E0308", message, help=f"use one of: {allowed}"))
    first, second = operands
    if first.dtype != second.dtype and frozenset({first.dtype, second.dtype}) not in MIXED_OPERANDS:
        message = (
            f"`{first.name}` is {first.dtype} and `{second.name}` is {second.dtype}: "
            "these two are not multiplied with each other"
        )
        help_text = "convert one of them; e4m3 with e5m2 and i8 with u8 may meet"
        yield at(second.span, dag.source, Diagnostic("E0308", message, help=help_text))


def _check_interface(dag: Dag, inputs: Sequence[Input], outputs: Sequence[Output]) -> Iterable[Diagnostic]:
    values: tuple[Input | Output, ...] = (*inputs, *outputs)
    for value in values:
        assert value.dtype is not None
        scalar = isinstance(value, Input) and value.is_scalar
        allowed = SCALARS if scalar else STORAGE
        kind = "scalar" if scalar else "input" if isinstance(value, Input) else "output"
        if value.dtype not in allowed:
            help_text = f"use one of: {', '.join(map(str, allowed))}"
            if value.dtype == TF32:
                help_text = "a tf32 tensor is f32 in memory: declare it f32"
            message = f"{kind} `{value.name}` is {value.dtype}, which is not a type of {kind}s"
            yield at(value.span, dag.source, Diagnostic("E0308", message, help=help_text))
        elif isinstance(value, Input) and (hint := _wrong_columns(value)):
            message = f"the input `{value.name}` is [{shown(value.modes)}], which no kernel reads"
            yield at(value.span, dag.source, Diagnostic("E0308", message, help=hint))
        elif value.dtype == B1 and not _is_mask(value):
            message = f"`{value.name}` is b1 of [{shown(value.modes)}]: bits are packed along the columns of a matrix"
            yield at(value.span, dag.source, Diagnostic("E0308", message, help="b1 tensors are [m, n] or [l, m, n]"))


def _wrong_columns(value: Input) -> str:
    """Return why an input with fewer columns than the accumulator cannot be read, or ""."""
    widths = [divisor(mode) for mode in value.modes if divisor(mode) > 1]
    if widths and not value.is_tile:
        return "half as many columns are those of a matrix: [m, n/2]"
    return (
        "values of blocks of columns are stored, not read; give a value for each column"
        if max(widths, default=2) > 2
        else ""
    )


def _is_mask(value: Input | Output) -> bool:
    return value.modes in (("m", "n"), ("l", "m", "n"))


def _check_value(dag: Dag, node: int, types: Sequence[ValueType]) -> Iterable[Diagnostic]:
    """Yield what must not be combined: different widths of columns, and a reduction with anything but a store."""
    op, arguments = dag[node], dag.arguments(node)

    def diagnostic(code: str, message: str, label: str, hint: str, secondary: tuple[Label, ...] = ()) -> Diagnostic:
        return at(dag.origins[node], dag.source, Diagnostic(code, message, None, label, hint, secondary=secondary))

    reduction = next((operand for operand in arguments if isinstance(dag[operand], Reduce)), None)
    if reduction is not None and not isinstance(op, Store):
        yield diagnostic(
            "E0410",
            "a reduction is complete only when the kernel ends, and this program reads one",
            "made from a reduction",
            "store it (`D = ...; s = sum[n](D)`) and use it in the next kernel; move factors into the reduction",
            _elsewhere(dag, reduction, node, "the reduction"),
        )
    widths = {mode for operand in arguments for mode in types[operand].modes if base(mode) == "n"}
    if any("@" in mode for mode in widths):
        widths.discard("n/2")  # a tensor of half as many columns fits pairs of any distance
    halves = {mode for mode in widths if written(mode) == "n/2"}
    if len(widths) > 1 and (halves or len(widths - {"n"}) > 1):
        found = ", ".join(f"[{mode.replace('@', ' at a distance of ')}]" for mode in sorted(widths))
        yield diagnostic(
            "E0307",
            f"values of different widths meet: {found}",
            "made from both",
            "take even(x) and odd(x) of every full-width value, with the same distance",
        )
    if isinstance(op, Reduce | Fold | Pick) and widths - {"n"}:
        what = "reduced" if isinstance(op, Reduce | Fold) else "paired"
        message = f"a value of [{shown(types[arguments[0]].modes)}] is not {what} again"
        yield diagnostic("E0307", message, f"{what} twice", "reduce or pair the full-width value")
    if isinstance(op, Random) and not all(_is_counter(dag, operand, types[operand]) for operand in arguments):
        hint = "declare them: `in seed: i32, offset: i32`"
        yield diagnostic("E0308", "the seed and the offset of random numbers are i32 scalars", "made with others", hint)


def _is_counter(dag: Dag, node: int, value: ValueType) -> bool:
    """Return whether a value can be a seed or an offset: an i32 scalar input or a whole number."""
    return value.dtype == I32 and value.modes == () and isinstance(dag[node], Load | Const)


def _elsewhere(dag: Dag, node: int, user: int, label: str) -> tuple[Label, ...]:
    """Return a label at a node's own expression, if that is not part of its user's."""
    origin, reading = dag.origins[node], dag.origins[user]
    if not isinstance(origin, Place) or (isinstance(reading, Place) and reading.span.covers(origin.span)):
        return ()
    return (Label(origin.span, label),)


def _reduced_modes(dag: Dag, store: int) -> tuple[str, ...]:
    op = dag[dag.arguments(store)[0]]
    return op.modes if isinstance(op, Reduce) else ()


def _check_output(dag: Dag, output: Output, value: ValueType) -> Iterable[Diagnostic]:
    """Yield modes that an output and its value do not share, shown at the value and at the output's declaration."""
    store = dag.stores[output.name]
    reduced = isinstance(dag[dag.arguments(store)[0]], Reduce)
    modes = set(map(written, output.modes))
    missing = [mode for mode in map(written, value.modes) if mode not in modes]
    if output.batchable and "l" in missing:
        missing.remove("l")
    have, varies = f"`{output.name}` is [{shown(output.modes)}]", f"varies over [{shown(value.modes)}]"
    write = f"write `{output.name}[{shown(value.modes)}]`"

    def mistake(message: str, label: str, declared: str, hint: str = write) -> Diagnostic:
        secondary = (Label(output.span, declared),) if output.span else ()
        return at(
            _assigned(dag, store), dag.source, Diagnostic("E0304", message, None, label, hint, secondary=secondary)
        )

    if missing:
        instead = "" if reduced else ", or reduce it: `sum[n](x)`, `max[m, n](x)`"
        yield mistake(f"{have} but its value {varies}", varies, f"has no mode `{missing[0]}`", write + instead)
    elif reduced and "l" in modes and output.modes[0] != "l":
        first = ", ".join(["l", *(mode for mode in output.modes if mode != "l")])
        message, hint = f"{have}: the batches of a reduction come first", f"write `{output.name}[{first}]`"
        yield at(output.span, dag.source, Diagnostic("E0304", message, None, "batches are not first", hint))
    elif reduced and "l" in modes and not output.batchable and "l" in _reduced_modes(dag, store):
        message = f"{have}, but its value is reduced over the batches"
        yield mistake(message, "reduced over the batches", "has no batches")
    elif reduced and modes - {"l"} != set(value.modes) - {"l"}:
        gives = f"gives [{shown(value.modes)}]"
        yield mistake(f"{have} but the reduction {gives}", gives, "not the modes that are left")
    elif not reduced and not {"m", "n"} <= {base(mode) for mode in modes}:
        hint = "outputs have the modes m and n; `sum[n](x)` reduces over n"
        yield mistake(f"{have}, but its value is not a reduction", "not a reduction", "has no rows or no columns", hint)
    elif any("/" in mode for mode in modes) and modes - set(map(written, value.modes)) - {"l", "m"}:
        yield mistake(f"{have} but its value {varies}", varies, "other columns")


def _assigned(dag: Dag, store: int) -> Origin | None:
    """Return the expression that is stored, or the statement that stores it if the expression stands elsewhere."""
    statement, value = dag.origins[store], dag.origins[dag.arguments(store)[0]]
    if isinstance(statement, Place) and isinstance(value, Place) and statement.span.covers(value.site):
        return Place(value.site)
    return statement
