"""Tree to graph: ``lower(tree, operation) -> Dag``. Names are resolved here; types are not."""

from __future__ import annotations

from evt.diagnostics import first
from evt.errors import ProgramError
from evt.ir.dag import Dag, prune, reads_accumulator
from evt.ir.lower.expressions import Expressions
from evt.ir.lower.names import Names
from evt.ir.lower.report import Report
from evt.ir.lower.statements import OPERATIONS, PLANNED_OPERATIONS, Statements
from evt.ir.lower.subscripts import resolve_subscripts
from evt.ir.node import Store
from evt.language import tree as syntax

__all__ = ["OPERATIONS", "PLANNED_OPERATIONS", "lower"]


def lower(tree: syntax.Tree, operation: str = "gemm") -> Dag:
    """Lower a program for an operation (``gemm`` or ``linear``); a header in the program decides over it.

    Raises ProgramError with everything that is wrong with names, calls and statements (E01xx-E04xx), and
    E0901 for parts of the language that are not supported yet.
    """
    report = Report(tree.source)
    dag = _lower(tree, operation, report)
    if report.diagnostics:
        raise ProgramError(first(report.diagnostics))
    assert dag is not None
    return dag


def _lower(tree: syntax.Tree, operation: str, report: Report) -> Dag | None:
    statements = Statements(tree, report)
    operands = statements.operands()
    names = Names(statements, report)
    expressions = Expressions(statements, names, report)
    for name in names.order():
        expressions.values[name] = expressions.add(statements.assigns[name].value)
    expressions.check_defined()
    outputs = resolve_subscripts(statements, names, expressions, report)
    if report.diagnostics:
        return None
    for output in outputs:
        expressions.builder.add(Store(output.name), expressions.values[output.name])
    header = statements.header
    dag = prune(
        expressions.builder.finish(
            header.operation.text if header else operation,
            operands,
            names.inputs.values(),
            outputs,
            tree.source,
        )
    )
    if not reads_accumulator(dag):
        report(
            "E0405",
            "the program does not use the accumulator `acc`",
            statements.assigns["D"].target.span,
            "does not depend on the product",
            "the matrix product is `acc`: `D = relu(acc + bias)`",
        )
    return dag
