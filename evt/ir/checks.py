"""Checks of inferred types: inputs and outputs (E0304, E0308), and the operands of each node (E0308, E0410)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from evt.diagnostics import Diagnostic, Label
from evt.ir.completed import check_completed
from evt.ir.culprit import assumed_tile, find_culprit, label_of
from evt.ir.dag import Dag
from evt.ir.dtype import B1, F64, I32, I64, OUTPUTS, SCALARS, STORAGE, TF32
from evt.ir.interface import declaration
from evt.ir.node import (
    PLACES,
    Apply,
    Cast,
    Const,
    Input,
    Load,
    Output,
    Random,
    Reduce,
    ValueType,
    direct,
    divisor,
    index_of,
    is_divided,
    shown,
    written,
)
from evt.ir.origin import Origin, Place, at
from evt.ir.value_types import domain, reduced_type


def check_interface(dag: Dag, inputs: Sequence[Input], outputs: Sequence[Output]) -> Iterable[Diagnostic]:
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


def check_indices(dag: Dag, inputs: Sequence[Input], outputs: Sequence[Output]) -> Iterable[Diagnostic]:
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


def check_value(dag: Dag, node: int, types: Sequence[ValueType]) -> Iterable[Diagnostic]:
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


def check_output(dag: Dag, output: Output, types: Sequence[ValueType]) -> Iterable[Diagnostic]:
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
