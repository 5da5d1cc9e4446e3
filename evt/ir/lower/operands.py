"""Mainloop fusions: the formulas that are assigned to A and B, separate from the epilogue."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from evt.diagnostics import Span
from evt.ir.convolution import CONVOLUTIONS
from evt.ir.dag import Builder
from evt.ir.dtype import I64
from evt.ir.factors import peel, zero_point
from evt.ir.lower.expressions import Expressions
from evt.ir.lower.names import Names
from evt.ir.lower.report import SourceDiagnostics
from evt.ir.lower.statements import Statements
from evt.ir.node import (
    ELEMENT_MODES,
    Acc,
    Apply,
    Const,
    Element,
    Index,
    Input,
    Interleave,
    Load,
    Node,
    Pick,
    Random,
    Reduce,
    ReduceBlocks,
    base,
    is_divided,
    shown,
)
from evt.ir.origin import Place
from evt.language import tree as syntax

#: Descriptions of operations that are not elementwise.
_NOT_ELEMENTWISE: dict[type[Node], str] = {
    Reduce: "a reduction of an operand",
    ReduceBlocks: "a reduction of an operand",
    Pick: "a pair of an operand's elements",
    Interleave: "a pair of an operand's elements",
    Index: "a coordinate in an operand",
    Random: "a random number for an element of an operand",
}


def lower_operands(statements: Statements, expressions: Expressions) -> dict[str, int]:
    """Return the value that replaces each operand that the program assigns, in the product."""
    return {name: expressions.add(statements.feeds[name].value) for name in ELEMENT_MODES if name in statements.feeds}


def split_factor(expressions: Expressions, name: str, value: int) -> tuple[int | None, int]:
    """Return the factor of an operand that is constant over blocks of k, or None, and the formula of its elements.

    Factors are the outermost ones. Without one that has blocks of k there are none: the product rounds the value.
    """
    builder = expressions.builder
    factors: list[int] = []
    kept: list[int] = []  # factors that vary within a block
    found, element = peel(builder, name, value)
    for factor, divides in found:
        node = builder.add(Apply("div"), builder.add(Const.of(1.0)), factor) if divides else factor
        (kept if "k" in expressions.modes()[node] else factors).append(node)
    modes = expressions.modes()
    if not any(_is_blocked(modes[each]) for each in factors):
        return None, value
    for each in reversed(kept):
        element = builder.add(Apply("mul"), each, element)
    factor = factors[0]
    for each in factors[1:]:
        factor = builder.add(Apply("mul"), factor, each)
    return factor, element


def _is_blocked(modes: Iterable[str]) -> bool:
    return any(base(mode) == "k" and is_divided(mode) for mode in modes)


def check_operands(
    operation: str,
    feeds: Mapping[str, int],
    statements: Statements,
    names: Names,
    expressions: Expressions,
    report: SourceDiagnostics,
) -> None:
    """Report formulas of operands that are not elementwise, and epilogues that read an operand."""
    for name, value in feeds.items():
        statement = statements.feeds[name]
        if operation in CONVOLUTIONS and (name == "B" or CONVOLUTIONS[operation][0] != "fprop"):
            hint = "compute it in a separate kernel" if name == "A" else "compute it once, before the calls"
            report.unsupported(f"work on the operand `{name}` of {operation} is", statement.target.span, hint)
        formula = _Formula(name, statement, _nodes(expressions, [value]), expressions.builder)
        _check_formula(formula, names, operation in CONVOLUTIONS, report)
        _check_blocks(name, split_factor(expressions, name, value)[1], formula, names, expressions, report)
    stored = (expressions.values[output.name] for output in names.outputs if output.name in expressions.values)
    _check_epilogue(map(expressions.builder.__getitem__, _nodes(expressions, stored)), names, report)


def _nodes(expressions: Expressions, roots: Iterable[int]) -> list[int]:
    """Return the nodes that values depend on, in creation order."""
    found: set[int] = set()
    stack = list(roots)
    while stack:
        node = stack.pop()
        if node not in found:
            found.add(node)
            stack.extend(expressions.builder.arguments(node))
    return sorted(found)


@dataclass(frozen=True, slots=True)
class _Formula:
    """The formula of an operand: its nodes, operands first."""

    name: str
    statement: syntax.Assign
    nodes: list[int]
    builder: Builder

    def find(self, is_wanted: Callable[[Node], bool]) -> int | None:
        return next((node for node in self.nodes if is_wanted(self.builder[node])), None)

    def place(self, node: int) -> Span | Place:
        """Return the first expression of the statement that depends on a node, whose own expression may be
        elsewhere.
        """
        made = {node}
        for position in range(bisect_left(self.nodes, node), len(self.nodes)):
            each = self.nodes[position]
            if each == node or not made.isdisjoint(self.builder.arguments(each)):
                made.add(each)
                origin = self.builder.origins[each]
                if isinstance(origin, Place) and self.statement.span.covers(origin.site):
                    return origin
        return self.statement.value.span


def _check_formula(formula: _Formula, names: Names, convolved: bool, report: SourceDiagnostics) -> None:
    """Check that a formula reads only the operand's elements, scalars and vectors along its modes."""
    name = formula.name
    (other,) = (each for each in ELEMENT_MODES if each != name)
    if (node := formula.find(lambda op: isinstance(op, Acc))) is not None:
        hint = "arithmetic on the product belongs to the epilogue: `D = f(acc)`"
        report(
            "E0411",
            f"the formula of `{name}` reads `acc`",
            formula.place(node),
            "is evaluated before the product",
            hint,
        )
    elif formula.find(lambda op: op == Element(name)) is None:
        message = f"`{name}` is assigned, and its formula does not read `{name}`"
        hint = f"a formula of its elements: `{name} = relu({name})`; or pass another tensor as {name}"
        report("E0411", message, formula.statement.value.span, "generated, not loaded", hint)
    if (node := formula.find(lambda op: op == Element(other))) is not None:
        message = f"the formula of `{name}` reads `{other}`"
        report("E0411", message, formula.place(node), "two operands", "each operand's formula reads one operand")
    if (node := formula.find(lambda op: type(op) in _NOT_ELEMENTWISE)) is not None:
        message = f"the formula of `{name}` has {_NOT_ELEMENTWISE[type(formula.builder[node])]}"
        report("E0411", message, formula.place(node), "not elementwise", "compute it in a separate kernel")
    loads = [
        (names.inputs[op.name], formula.place(node))
        for node in formula.nodes
        if isinstance(op := formula.builder[node], Load) and op.name in names.inputs
    ]
    scaled = any(value.is_blocked for value, _ in loads)
    for value, place in loads:
        _check_input(name, value, place, scaled, convolved, report)


def _check_input(
    operand: str, value: Input, place: Span | Place, scaled: bool, convolved: bool, report: SourceDiagnostics
) -> None:
    name = value.name
    outer, summed = ELEMENT_MODES[operand]
    if not set(map(base, value.modes) if scaled else value.modes) <= {"l", outer, summed}:
        report(
            "E0411",
            f"`{name}` is [{shown(value.modes)}] and `{operand}` is [{outer}, {summed}]",
            place,
            "has other modes",
            f"write `{name}[{summed}]` or `{name}[{outer}]` for a vector, `{name}[]` for a scalar",
        )
    elif convolved and outer in value.modes:
        hint = f"k are the channels of A: `{name}[k]`; m are the pixels of the output"
        report(
            "E0411",
            f"`{name}` has one value for each output pixel, but the rows of `{operand}` are input pixels",
            place,
            "",
            hint,
        )
    elif "l" in value.modes:
        report.unsupported(f"work on an operand with one `{name}` for each batch is", place)
    elif scaled and convolved:
        report.unsupported("work on the input of a convolution with a factor for each block of k is", place)
    elif len(value.modes) > 1 and not value.is_blocked:
        report.unsupported(f"work on an operand with a matrix, `{name}`, is", place)
    elif value.dtype == I64:
        report.unsupported("work on an operand with an i64 is", place, f"declare `{name}` i32")
    elif value.flexible:
        report.unsupported(
            "work on an operand with a vector or a single value is", place, f"declare `{name}` as one of them"
        )


def _check_blocks(
    name: str, element: int, formula: _Formula, names: Names, expressions: Expressions, report: SourceDiagnostics
) -> None:
    """Report a value for each block of k that is neither a factor nor a zero point of the operand."""
    if name == "B" and zero_point(expressions.builder, name, peel(expressions.builder, name, element)[1]) is not None:
        return
    for node in _nodes(expressions, [element]):
        op = expressions.builder[node]
        if isinstance(op, Load) and op.name in names.inputs and names.inputs[op.name].is_blocked:
            shape = shown(names.inputs[op.name].modes)
            report(
                "E0411",
                f"`{op.name}` is [{shape}], and no factor of `{name}`" + (" or zero point" if name == "B" else ""),
                formula.place(node),
                "varies over blocks of k",
                f"a factor is constant over a block: `{name} = {op.name} * {name}`"
                + (f"; or a zero point: `B = B - {op.name}`" if name == "B" else ""),
            )
            return


def _check_epilogue(nodes: Iterable[Node], names: Names, report: SourceDiagnostics) -> None:
    """Check that the epilogue reads neither operands nor values with the mode k."""
    for op in nodes:
        if isinstance(op, Element) and op.name in names.feeds:
            report(
                "E0406",
                f"the epilogue cannot read the operand `{op.name}`",
                names.uses[op.name][0].span,
                "not in the epilogue's registers",
                "the product of A and B is `acc`",
            )
        elif isinstance(op, Load) and op.name in names.inputs and "k" in map(base, names.inputs[op.name].modes):
            value = names.inputs[op.name]
            report(
                "E0304",
                f"`{value.name}` is [{shown(value.modes)}], but the product sums over k",
                names.uses[value.name][0].span,
                "not a mode of the epilogue",
                f"work on an operand with it: `A = {value.name} * A`"
                if value.modes == ("k",)
                else "the epilogue reads values with the modes m, n and l",
            )
