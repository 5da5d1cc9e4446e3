"""Subscripts: the modes of outputs without one, and a check of those of intermediate values."""

from __future__ import annotations

from dataclasses import replace

from evt.diagnostics import Label
from evt.ir.infer import shown, value_modes
from evt.ir.lower.expressions import Expressions
from evt.ir.lower.names import Names
from evt.ir.lower.report import Report
from evt.ir.lower.statements import Statements
from evt.ir.node import Load, Output, Reduce, base, written


def resolve_subscripts(statements: Statements, names: Names, expressions: Expressions, report: Report) -> list[Output]:
    """Return the outputs with their modes.

    An output without a subscript has rows and columns, the modes that a reduction leaves, or the fewer columns of its
    value. A subscript at the assignment of an intermediate value has to cover its modes; ``infer`` checks those of
    outputs.
    """
    builder = expressions.builder
    varies: list[tuple[str, ...]] = []
    for node in range(len(builder)):
        op, operands = builder[node], [varies[operand] for operand in builder.arguments(node)]
        known = not isinstance(op, Load) or op.name in names.inputs
        varies.append(value_modes(names.inputs, op, operands) if known else ())
    outputs = []
    for output in names.outputs:
        value = expressions.values.get(output.name)
        if value is not None and output.name not in statements.subscripted:
            output = replace(output, modes=_modes(builder[value], varies[value]))
        if value is not None and isinstance(op := builder[value], Reduce) and "l" in op.modes:
            output = replace(output, batchable=False)  # one for all batches
        outputs.append(output)
    stored = {output.name for output in outputs}
    for name, declared in statements.outs.items():
        if name in stored or name not in expressions.values or declared.span is None:
            continue
        found = varies[expressions.values[name]]
        missing = [mode for mode in map(written, found) if mode not in (*declared.modes, "l")]
        if missing:
            report(
                "E0304",
                f"`{name}` is [{shown(declared.modes)}] but its value varies over [{shown(found)}]",
                statements.assigns[name].value.span,
                f"varies over [{shown(found)}]",
                f"write `{name}`; the modes of a value follow from its definition",
                [Label(declared.span, f"has no mode `{missing[0]}`")],
            )
    return outputs


def _modes(op: object, varies: tuple[str, ...]) -> tuple[str, ...]:
    """Return the modes of an output without a subscript; a batch mode comes first, implicitly."""
    if isinstance(op, Reduce):
        return tuple(written(mode) for mode in varies if mode != "l")
    return ("m", next((written(mode) for mode in varies if base(mode) == "n"), "n"))
