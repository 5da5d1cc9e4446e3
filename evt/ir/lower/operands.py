"""Work on the operands: the formulas that are assigned to A and B, kept apart from the epilogue's."""

from __future__ import annotations

from collections.abc import Iterable

from evt.diagnostics import Span
from evt.ir.convolution import CONVOLUTIONS
from evt.ir.infer import shown
from evt.ir.lower.expressions import Expressions
from evt.ir.lower.names import Names
from evt.ir.lower.report import Report
from evt.ir.lower.statements import Statements
from evt.ir.node import ELEMENT_MODES, Acc, Element, Fold, Index, Load, Node, Pick, Random, Reduce


def lower_operands(
    operation: str, statements: Statements, names: Names, expressions: Expressions, report: Report
) -> dict[str, int]:
    """The value that is multiplied in the place of each operand that the program assigns."""
    feeds = {name: expressions.add(statements.feeds[name].value) for name in ELEMENT_MODES if name in statements.feeds}
    for name, value in feeds.items():
        place = statements.feeds[name].target.span
        if operation in CONVOLUTIONS and (name == "B" or CONVOLUTIONS[operation][0] != "fprop"):
            hint = "compute it by a kernel of its own" if name == "A" else "compute it once, before the calls"
            report.unsupported(f"work on the operand `{name}` of {operation} is", place, hint)
        _check_formula(name, place, _nodes(expressions, [value]), names, operation in CONVOLUTIONS, report)
    stored = (expressions.values[output.name] for output in names.outputs if output.name in expressions.values)
    _check_epilogue(_nodes(expressions, stored), names, report)
    return feeds


def _nodes(expressions: Expressions, roots: Iterable[int]) -> list[Node]:
    """What values are made of, in the order of creation."""
    found: set[int] = set()
    stack = list(roots)
    while stack:
        node = stack.pop()
        if node not in found:
            found.add(node)
            stack.extend(expressions.builder.arguments(node))
    return [expressions.builder[node] for node in sorted(found)]


def _check_formula(name: str, place: Span, nodes: list[Node], names: Names, convolved: bool, report: Report) -> None:
    """A formula is made of the operand's elements, scalars and vectors along its modes, element by element."""

    def refuse(message: str, label: str, hint: str) -> None:
        report("E0411", message, place, label, hint)

    if Acc() in nodes:
        refuse(
            f"the formula of `{name}` reads `acc`",
            "comes before the product",
            "what is done with the product is the epilogue: `D = f(acc)`",
        )
    elif Element(name) not in nodes:
        hint = f"a formula of its elements: `{name} = relu({name})`; or pass another tensor as {name}"
        refuse(f"`{name}` is assigned, and its formula does not read `{name}`", "generated, not loaded", hint)
    other = next(each for each in ELEMENT_MODES if each != name)
    if Element(other) in nodes:
        refuse(f"the formula of `{name}` reads `{other}`", "two operands", "work on each operand by itself")
    for op in nodes:
        match op:
            case Reduce() | Fold():
                what = "a reduction of an operand"
            case Pick():
                what = "a pair of an operand's elements"
            case Index():
                what = "a coordinate in an operand"
            case Random():
                what = "a random number for an element of an operand"
            case _:
                continue
        refuse(f"the formula of `{name}` has {what}", "not element by element", "compute it by a kernel of its own")
        break
    for op in nodes:
        if isinstance(op, Load) and op.name in names.inputs:
            _check_input(name, op.name, names, convolved, report)


def _check_input(operand: str, name: str, names: Names, convolved: bool, report: Report) -> None:
    value = names.inputs[name]
    use = names.uses[name][0].span
    outer, summed = ELEMENT_MODES[operand]
    if not set(value.modes) <= {"l", outer, summed}:
        report(
            "E0411",
            f"`{name}` is [{shown(value.modes)}] and `{operand}` is [{outer}, {summed}]",
            use,
            "has other modes",
            f"write `{name}[{summed}]` or `{name}[{outer}]` for a vector, `{name}[]` for a scalar",
        )
    elif convolved and outer in value.modes:
        hint = f"k are the channels of A: `{name}[k]`; m are the pixels of the output"
        report("E0411", f"`{name}` has one value for each output pixel, and `{operand}` other pixels", use, "", hint)
    elif "l" in value.modes:
        report.unsupported(f"work on an operand with one `{name}` for each batch is", use)
    elif len(value.modes) > 1:
        report.unsupported(f"work on an operand with a matrix, `{name}`, is", use)
    elif value.flexible:
        report.unsupported(
            "work on an operand with a vector or a single value is", use, f"declare `{name}` as one of them"
        )


def _check_epilogue(nodes: list[Node], names: Names, report: Report) -> None:
    """The epilogue reads neither operands nor what has the mode k."""
    for op in nodes:
        if isinstance(op, Element) and op.name in names.feeds:
            report(
                "E0406",
                f"the epilogue cannot read the operand `{op.name}`",
                names.uses[op.name][0].span,
                "not in the epilogue's registers",
                "the product of A and B is `acc`",
            )
        elif isinstance(op, Load) and op.name in names.inputs and "k" in names.inputs[op.name].modes:
            value = names.inputs[op.name]
            report(
                "E0304",
                f"`{value.name}` is [{shown(value.modes)}], and the product has summed over k",
                names.uses[value.name][0].span,
                "no mode of the epilogue",
                f"work on an operand with it: `A = {value.name} * A`",
            )
