"""Subscripts: the modes of outputs without one, and a check of subscripts at intermediate values."""

from __future__ import annotations

from dataclasses import replace

from evt.diagnostics import Label
from evt.ir.dag import reduced_modes
from evt.ir.lower.expressions import Expressions
from evt.ir.lower.names import Names
from evt.ir.lower.report import SourceDiagnostics
from evt.ir.lower.statements import Statements
from evt.ir.node import Output, is_divided, shown, written


def resolve_subscripts(
    statements: Statements, names: Names, expressions: Expressions, report: SourceDiagnostics
) -> list[Output]:
    """Return the outputs with their modes.

    An output without a subscript has the modes of its value. A value of fewer columns has rows as well, unless they are
    reduced. A vector or a scalar that does not vary over the batches has no batch mode. A subscript at the assignment
    of an intermediate value must cover the value's modes; ``infer`` checks the subscripts of outputs.
    """
    varies, reduced = expressions.modes(), list[tuple[str, ...]]()
    for op, operands in expressions.builder.table:
        reduced.append(reduced_modes(op, [reduced[operand] for operand in operands]))
    outputs = []
    for output in names.outputs:
        value = expressions.values.get(output.name)
        if value is not None and output.name not in statements.subscripted:
            output = replace(output, modes=_modes(varies[value], bool(reduced[value])), inferred=("modes",))
        if value is not None and _is_for_all_batches(reduced[value], output, varies[value]):
            output = replace(output, batchable=False)
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


def _is_for_all_batches(reduced: tuple[str, ...], output: Output, varies: tuple[str, ...]) -> bool:
    """Return whether one value serves all batches, if no batch mode is written."""
    return "l" in reduced if reduced else not output.is_tile and "l" not in varies


def _modes(varies: tuple[str, ...], reduced: bool) -> tuple[str, ...]:
    """Return the modes of an output without a subscript; a batch mode comes first, implicitly."""
    modes = tuple(written(mode) for mode in varies if mode != "l")
    rows = not reduced and "m" not in modes and any(is_divided(mode) for mode in modes)
    return ("m", *modes) if rows else modes
