"""Expressions: from syntax to nodes."""

from __future__ import annotations

from evt.functions import FUNCTIONS, TABLE, Function
from evt.functions import lookup as find_function
from evt.ir.dag import Builder
from evt.ir.dtype import BY_NAME, STORAGE
from evt.ir.lower.names import Names
from evt.ir.lower.report import Report
from evt.ir.lower.statements import Statements
from evt.ir.lower.words import PLANNED_FUNCTIONS, read_number
from evt.ir.node import Acc, Apply, Cast, Const, Load
from evt.language import tree as syntax

_OPERATORS = {"+": "add", "-": "sub", "*": "mul", "/": "div"}


class Expressions:
    """Adds the nodes of expressions to a builder; ``values`` are the nodes of the names assigned so far."""

    def __init__(self, statements: Statements, names: Names, report: Report) -> None:
        self.report = report
        self.defined = statements.defined
        self.assigns = statements.assigns
        self.inputs = names.inputs
        self.builder = Builder()
        self.values: dict[str, int] = {}
        self.constant: set[int] = set()

    def add(self, root: syntax.Expression) -> int:
        """The node of an expression. Iterative, because formulas nest thousands deep."""
        results: dict[int, int] = {}
        for node in syntax.postorder(root):
            operands = [results[id(child)] for child in syntax.children(node)]
            new = results[id(node)] = self.node(node, operands)
            if isinstance(self.builder[new], Const) or (
                isinstance(self.builder[new], Apply) and all(operand in self.constant for operand in operands)
            ):
                self.constant.add(new)
        return results[id(root)]

    def node(self, node: syntax.Expression, operands: list[int]) -> int:
        match node:
            case syntax.Number():
                return self.constant_node(read_number(self.report, node) or 0.0)
            case syntax.Name(name) | syntax.Element(name, _):
                if name in self.values:
                    return self.values[name]
                return self.builder.add(Acc()) if name == "acc" else self.builder.add(Load(name))
            case syntax.Unary("-"):
                if isinstance(constant := self.builder[operands[0]], Const):
                    return self.constant_node(-constant.value)
                return self.builder.add(Apply("neg"), *operands)
            case syntax.Binary("**", _, exponent):
                if operands[1] not in self.constant:
                    self.report(
                        "E0205",
                        "the exponent of `**` is a constant",
                        exponent.span,
                        "not a constant",
                        "write `pow(x, y)` for a variable exponent",
                    )
                return self.builder.add(Apply("pow"), *operands)
            case syntax.Binary(operator) if operator in _OPERATORS:
                return self.builder.add(Apply(_OPERATORS[operator]), *operands)
            case syntax.Unary(operator) | syntax.Binary(operator):
                kind = "boolean operators are" if operator in ("&&", "||", "!") else "comparisons are"
                self.report.unsupported(f"`{operator}`: {kind}", node.span)
                return self.constant_node(0.0)
            case syntax.Call():
                return self.call(node, operands)

    def constant_node(self, value: float) -> int:
        return self.builder.add(Const.of(value))

    def call(self, call: syntax.Call, operands: list[int]) -> int:
        name, span = call.function.text, call.function.span
        function = find_function(name)
        if call.subscript is not None:
            if name in ("sum", "max", "min"):
                self.report.unsupported(f"reductions (`{name}[...]`) are", span)
            else:
                self.report(
                    "E0201",
                    f"`{name}` is not a reduction",
                    call.subscript.span,
                    "",
                    "reductions: sum, max, min",
                )
        elif call.primes:
            self.report.unsupported(f"derivatives (`{name}'`) are", span)
        elif name in BY_NAME:
            return self.cast(call, operands)
        elif function is None:
            self.unknown_function(call)
        else:
            arguments = self.bind(call, function, operands)
            if arguments is not None:
                return self.builder.add(Apply(function.name), *arguments)
        return self.constant_node(0.0)

    def cast(self, call: syntax.Call, operands: list[int]) -> int:
        dtype, span = BY_NAME[call.function.text], call.function.span
        if len(operands) != 1 or call.arguments[0].keyword is not None:
            self.report(
                "E0203",
                f"the cast `{call.function.text}` takes one value",
                call.span,
                "",
                f"write `{call.function.text}(x)`",
            )
        elif dtype not in STORAGE:
            self.report.unsupported(f"the cast to {dtype} is", span)
        else:
            return self.builder.add(Cast(dtype), operands[0])
        return self.constant_node(0.0)

    def unknown_function(self, call: syntax.Call) -> None:
        name, span = call.function.text, call.function.span
        if name in self.defined:
            return  # reported where it is defined
        if name in PLANNED_FUNCTIONS:
            self.report.unsupported(f"the function `{name}` is", span)
        elif name in self.inputs or name in self.assigns or name == "acc":
            self.report(
                "E0201",
                f"`{name}` is not a function",
                span,
                "called here",
                f"write `{name} * (...)` for a product",
            )
        else:
            guess = self.report.guess(name, (*FUNCTIONS, *BY_NAME))
            hint = f"did you mean `{guess}`?" if guess else "`evt explain E0201` lists the functions"
            self.report("E0201", f"there is no function `{name}`", span, "unknown function", hint)

    def bind(self, call: syntax.Call, function: Function, operands: list[int]) -> list[int] | None:
        """Arguments by position and keyword, with the defaults filled in."""
        names = [parameter.name for parameter in function.parameters]
        bound: dict[str, int] = {}
        too_many = False
        for position, (argument, operand) in enumerate(zip(call.arguments, operands, strict=True)):
            if argument.keyword is None:
                if position and call.arguments[position - 1].keyword is not None:
                    self.report(
                        "E0204",
                        "an argument without a keyword follows one with a keyword",
                        argument.value.span,
                        "no keyword",
                        f"write {function.name}({', '.join(names)}) in this order, or name every argument",
                    )
                    return None
                if position >= len(names):
                    too_many = True
                    break
                bound[names[position]] = operand
            elif argument.keyword.text not in names or argument.keyword.text in bound:
                guess = self.report.guess(argument.keyword.text, names)
                known = argument.keyword.text in names
                has = "has already got" if known else "has no parameter"
                self.report(
                    "E0204",
                    f"`{function.name}` {has} `{argument.keyword.text}`",
                    argument.keyword.span,
                    "given twice" if known else "unknown",
                    f"did you mean `{guess}`?" if guess and not known else f"parameters: {', '.join(names)}",
                )
                return None
            else:
                bound[argument.keyword.text] = operand
        missing = [p.name for p in function.parameters if p.name not in bound and p.default is None]
        if too_many or missing:
            required = function.required
            wanted = str(required) if required == len(names) else f"{required} to {len(names)}"
            self.report(
                "E0203",
                f"`{call.function.text}` takes {wanted} argument{'s' if wanted != '1' else ''}, {len(operands)} given",
                call.span,
                f"`{missing[0]}` is missing" if missing else "too many",
                f"{function}: {function.text}",
            )
            return None
        return [bound[p.name] if p.name in bound else self.constant_node(p.default or 0.0) for p in function.parameters]


assert all(name in TABLE for name in (*_OPERATORS.values(), "neg", "pow"))
