"""Tree to graph: ``lower(tree, operation) -> Dag``. Names are resolved here; types are not."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from evt.ir.convolution import CONVOLUTIONS
from evt.ir.dag import Dag, prune, reads_accumulator
from evt.ir.dtype import B1
from evt.ir.lower.expressions import Expressions
from evt.ir.lower.names import Names
from evt.ir.lower.operands import check_operands, lower_operands, split_factor
from evt.ir.lower.report import SourceDiagnostics
from evt.ir.lower.statements import OPERATIONS, Statements, unknown_operation
from evt.ir.lower.subscripts import resolve_subscripts
from evt.ir.node import (
    IMAGES,
    Acc,
    Element,
    Feed,
    Input,
    Interleave,
    Operand,
    Output,
    Pick,
    Reduce,
    ReduceBlocks,
    Scale,
    Store,
    is_divided,
)
from evt.ir.origin import Place
from evt.language import tree as syntax

__all__ = ["OPERATIONS", "has_images", "lower", "unknown_operation"]


def lower(tree: syntax.Tree, operation: str = "gemm") -> Dag:
    """Lower a program for one of :data:`OPERATIONS`. A header in the program takes precedence.

    Raise ProgramError with every mistake in names, calls and statements (E01xx-E04xx), and E0901 for parts of the
    language that are not supported yet.
    """
    report = SourceDiagnostics(tree.source)
    statements = Statements(tree, report)
    operands = statements.operands()
    header = statements.header
    operation = header.operation.text if header and header.operation.text in OPERATIONS else operation
    modes = dict(zip(("A", "B"), OPERATIONS[operation], strict=True)) | {each.name: each.modes for each in operands}
    names = Names(statements, {} if operation in CONVOLUTIONS else modes, report)
    expressions = Expressions(statements, names, report)
    for name in names.order():
        expressions.values[name] = expressions.add(statements.assigns[name].value)
    feeds = lower_operands(statements, expressions)
    expressions.check_defined()
    report.check()  # names before this line, modes after it
    check_operands(operation, feeds, statements, names, expressions, report)
    outputs = resolve_subscripts(statements, names, expressions, report)
    if operation in CONVOLUTIONS:
        _refuse_batches(operation, (*names.inputs.values(), *outputs), report)
    if CONVOLUTIONS.get(operation, ("",))[0] == "wgrad":
        _refuse_columns(expressions, (*names.inputs.values(), *outputs), report)
    _check_products(operation, operands, names.inputs, expressions, report)
    if not has_images(operation):
        _refuse_images(operation, expressions, report)
    report.check()
    builder = expressions.builder
    for output in outputs:
        builder.origin = Place(statements.assigns[output.name].span)
        builder.add(Store(output.name), expressions.values[output.name])
    for name, value in feeds.items():
        builder.origin = Place(statements.feeds[name].span)
        factor, element = split_factor(expressions, name, value)
        if factor is not None:
            builder.add(Scale(name), factor)
        if factor is None or builder[element] != Element(name):
            builder.add(Feed(name), element)
    inputs = tuple(names.inputs.values())
    # An input that cancels out remains an input: the text, not the optimiser, determines the arguments of a call.
    dag = replace(prune(builder.finish(operation, operands, inputs, outputs, tree.source)), inputs=inputs)
    if not reads_accumulator(dag):
        report(
            "E0405",
            "the program does not use the accumulator `acc`",
            statements.assigns[dag.primary.name].value.span,
            "does not depend on the product",
            "the matrix product is `acc`: `D = relu(acc + bias)`",
        )
    report.check()
    return dag


def _refuse_batches(operation: str, values: Iterable[Input | Output], report: SourceDiagnostics) -> None:
    """Refuse the mode ``l`` in a convolution, whose images count among its rows."""
    for value in values:
        if "l" in value.modes and value.span is not None:
            message = f"`{value.name}` has the mode `l`, and {operation} has none"
            report("E0301", message, value.span, "no batches", "images count among the rows: omit `l`")


def _check_products(
    operation: str,
    operands: Sequence[Operand],
    inputs: Mapping[str, Input],
    expressions: Expressions,
    report: SourceDiagnostics,
) -> None:
    """Refuse products of A and inputs where operands are no matrices, or where a header gives B another type."""
    for (op, _), origin in zip(expressions.builder.table, expressions.builder.origins, strict=True):
        if not isinstance(op, Acc) or op == Acc():
            continue
        value = inputs[op.name]
        if operation not in ("gemm", "linear"):
            report.unsupported(f"a second product of {operation} is", origin)
        elif operands and value.dtype not in (None, operands[1].dtype):
            message = f"`{value.name}` is {value.dtype} and B is {operands[1].dtype}: A is multiplied with both"
            report("E0308", message, value.span or origin, "another type", "give them one type")


def has_images(operation: str) -> bool:
    """Return whether the rows of an operation are the pixels of images."""
    return CONVOLUTIONS.get(operation, ("wgrad",))[0] != "wgrad"


def _refuse_images(operation: str, expressions: Expressions, report: SourceDiagnostics) -> None:
    """Refuse reductions over the pixels of each image where rows are no pixels."""
    for (op, _), origin in zip(expressions.builder.table, expressions.builder.origins, strict=True):
        if isinstance(op, Reduce) and IMAGES in op.modes:
            message = f"`{op.kind}` is within images, and the rows of {operation} are no pixels"
            report("E0301", message, origin, "reduces `m%p`", "`m%p` is for convolutions: reduce over `m`")


def _refuse_columns(expressions: Expressions, values: Iterable[Input | Output], report: SourceDiagnostics) -> None:
    """Refuse bits, pairs and blocks in a weight's gradient, whose columns are taps and channels."""
    table, origins = expressions.builder.table, expressions.builder.origins
    taken = (
        origin
        for (op, _), origin in zip(table, origins, strict=True)
        if isinstance(op, Pick | Interleave | ReduceBlocks) or (isinstance(op, Reduce) and op.is_within)
    )
    stored = (value.span for value in values if value.dtype == B1 or any(is_divided(mode) for mode in value.modes))
    if places := [*taken, *stored]:
        report.unsupported("bits, pairs and blocks of columns in the gradient of a weight are", places[0])
