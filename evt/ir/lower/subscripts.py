"""Subscripts of intermediate values, which are written for the reader and checked."""

from __future__ import annotations

from evt.ir.infer import canonical
from evt.ir.lower.expressions import Expressions
from evt.ir.lower.names import Names
from evt.ir.lower.report import Report
from evt.ir.lower.statements import Statements
from evt.ir.node import Acc, Load


def check_subscripts(statements: Statements, names: Names, expressions: Expressions, report: Report) -> None:
    """A subscript that is written at the assignment of an intermediate value has to cover its modes.

    Outputs are checked by ``infer``.
    """
    stored = {output.name for output in names.outputs}
    checked = [name for name in statements.outs if name not in stored and name in expressions.values]
    if not checked:
        return
    varies: list[frozenset[str]] = []
    for node in range(len(expressions.builder)):
        match expressions.builder[node]:
            case Acc():
                modes = frozenset({"m", "n"})
            case Load(name) if name in names.inputs:
                modes = frozenset(names.inputs[name].modes)
            case _:
                modes = frozenset[str]().union(*(varies[i] for i in expressions.builder.arguments(node)))
        varies.append(modes)
    for name in checked:
        written = statements.outs[name]
        assert written.span is not None
        found = canonical(varies[expressions.values[name]])
        missing = [mode for mode in found if mode not in (*written.modes, "l")]
        if missing:
            report(
                "E0304",
                f"`{name}` is [{', '.join(written.modes)}] but its value varies over [{', '.join(found)}]",
                written.span,
                f"has no mode `{missing[0]}`",
                f"write `{name}`; the modes of a value follow from its definition",
            )
