"""Expressions: from syntax to nodes. Users' functions are inlined, derivatives are computed."""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping

from evt.diagnostics import Span
from evt.functions import BINARY, FUNCTIONS, UNARY, Function
from evt.functions import lookup as find_function
from evt.ir.dag import Builder
from evt.ir.dtype import B1, BOOL, BY_NAME, I32, I64, OUTPUTS, TF32
from evt.ir.lower.derivative import Derivatives, NoDerivativeError
from evt.ir.lower.names import Names
from evt.ir.lower.report import SourceDiagnostics
from evt.ir.lower.special import SPECIAL_FORMS, lower_reduction
from evt.ir.lower.statements import Statements
from evt.ir.lower.words import INFINITY, SPECIAL, read_number
from evt.ir.missing import MISSING_FUNCTIONS, MISSING_PARAMETERS, MISSING_TYPES, unknown_type
from evt.ir.node import ELEMENT_MODES, MOMENTS, PLACES, REDUCTIONS, Acc, Apply, Cast, Const, Element, Load
from evt.ir.origin import Place
from evt.ir.value_types import value_modes
from evt.language import tree as syntax

#: The highest order of a derivative, because the expression grows with each order.
_MAX_PRIMES = 4
#: The deepest nesting of calls of users' functions.
_MAX_DEPTH = 64

_RELATIONS = {"<=": operator.le, ">=": operator.ge, "!=": operator.ne}

#: Values by name, for the body of a function.
Scope = Mapping[str, int]


class Expressions:
    """A builder of expressions' nodes. ``values`` are the nodes of the names that are assigned so far."""

    def __init__(self, statements: Statements, names: Names, report: SourceDiagnostics) -> None:
        self.report = report
        self.defined = statements.defined
        self.assigns = statements.assigns
        self.inputs = names.inputs
        self.feeds = statements.feeds
        self.builder = Builder()
        self.values: dict[str, int] = {}
        self.derivatives = Derivatives(self.builder)
        self._varies: list[tuple[str, ...]] = []
        self._constant: list[bool] = []
        self._inlined: dict[tuple[str, tuple[int, ...]], int] = {}
        self._open: list[str] = []
        #: The open calls of users' functions, innermost first.
        self._calls: tuple[Span, ...] = ()
        self._used: set[str] = set()

    def add(self, root: syntax.Expression, scope: Scope | None = None) -> int:
        """Return the node of an expression, iteratively, because formulas may nest thousands deep.

        ``scope`` marks the body of a function, which can read these names only.
        """
        results: dict[int, int] = {}
        for node in syntax.postorder(root):
            self.builder.origin = Place(node.span, self._calls)
            operands = [results[id(child)] for child in syntax.children(node)]
            results[id(node)] = self.node(node, operands, scope)
            self.check_size(node.span)
        return results[id(root)]

    def check_size(self, span: Span) -> None:
        """Raise ProgramError (E0413) for more operations than a program may have."""
        if len(self.builder) <= syntax.MOST_OPERATIONS:
            return
        place = self._calls[-1] if self._calls else span
        inlined = "assign repeated values to names outside of the functions"
        hint = inlined if self._calls else "make several programs; each stores the inputs of the next"
        self.report("E0413", f"the program has more than {syntax.MOST_OPERATIONS} operations", place, "too many", hint)
        self.report.check()

    def node(self, node: syntax.Expression, operands: list[int], scope: Scope | None) -> int:
        match node:
            case syntax.Number():
                value = read_number(self.report, node)
                return self.mistake() if value is None else self.constant_node(value)
            case syntax.Name(name) | syntax.Element(name, _):
                return self.name(node, name, scope)
            case syntax.Unary(operator):
                if operator == "-" and isinstance(constant := self.builder[operands[0]], Const):
                    return self.constant_node(-constant.value)
                return self.builder.add(Apply(UNARY[operator]), *operands)
            case syntax.Binary("**", _, exponent):
                if not self.is_constant(operands[1]):
                    self.report(
                        "E0205",
                        "the exponent of `**` is a constant",
                        exponent.span,
                        "not a constant",
                        "write `pow(x, y)` for a variable exponent",
                    )
                return self.builder.add(Apply(BINARY["**"]), *operands)
            case syntax.Binary(operator):
                return self.builder.add(Apply(BINARY[operator]), *operands)
            case syntax.Call():
                return self.call(node, operands)

    def name(self, node: syntax.Name | syntax.Element, name: str, scope: Scope | None) -> int:
        if name == INFINITY:
            return self.constant_node(math.inf)
        if scope is not None:
            if name in scope and isinstance(node, syntax.Name):
                return scope[name]
            known = ", ".join(scope) or "none"
            self.report(
                "E0202",
                f"the body of a function can read its parameters only, not `{name}`",
                node.span,
                "not a parameter",
                f"make it a parameter and pass it; parameters: {known}",
            )
            return self.mistake()
        if name in self.values:
            return self.values[name]
        if name in ELEMENT_MODES:
            return self.builder.add(Element(name))
        if name == "acc":
            return self.builder.add(Acc())
        load = self.builder.add(Load(name))
        declared = self.inputs.get(name)
        narrowed = declared is not None and declared.dtype == I64
        return self.builder.add(Cast(I32), load) if narrowed else load

    @property
    def is_inlined(self) -> bool:
        """Whether the body of a user's function is being added."""
        return bool(self._open)

    def operand_of(self, call: syntax.Call) -> str:
        """Return the operand whose formula contains a call, directly or in a user's function; "" for the epilogue."""
        places = (call.span, *self._calls)
        covering = (name for name, feed in self.feeds.items() if any(map(feed.span.covers, places)))
        return next(covering, "")

    def modes(self) -> list[tuple[str, ...]]:
        """Return the modes of the existing nodes."""
        builder, varies = self.builder, self._varies
        for node in range(len(varies), len(builder)):
            op, operands = builder[node], [varies[operand] for operand in builder.arguments(node)]
            known = not isinstance(op, Load) or op.name in self.inputs
            varies.append(value_modes(self.inputs, op, operands) if known else ())
        return varies

    def is_constant(self, node: int) -> bool:
        """Return whether a node depends on constants only."""
        constant = self._constant
        for each in range(len(constant), node + 1):
            op, operands = self.builder.table[each]
            applied = isinstance(op, Apply) and all(constant[operand] for operand in operands)
            constant.append(isinstance(op, Const) or applied)
        return constant[node]

    def constant_node(self, value: float) -> int:
        return self.builder.add(Const.of(value))

    def mistake(self) -> int:
        """Return a value for a refused expression: NaN, which no program can write, so that it is not reported
        again.
        """
        return self.builder.add(Const.of(math.nan))

    def is_mistake(self, node: int) -> bool:
        """Return whether a value was already refused."""
        op = self.builder[node]
        return isinstance(op, Const) and math.isnan(op.value)

    def call(self, call: syntax.Call, operands: list[int]) -> int:
        name = call.function.text
        if call.subscript is not None and call.primes:
            hint = "differentiate the argument of the reduction: `sum[n](gelu'(x))`"
            self.report(
                "E0206", "a reduction has no derivative", call.function.span, "not a function of one value", hint
            )
        elif call.subscript is not None and name not in (*REDUCTIONS, *PLACES, *MOMENTS):
            self.no_reduction(call, call.subscript)
        elif call.subscript is not None:
            return lower_reduction(self, call, operands)
        elif call.primes:
            return self.derivative(call, operands)
        elif name in self.defined:
            return self.inline(call, operands)
        elif name in SPECIAL_FORMS:
            return SPECIAL_FORMS[name](self, call, operands)
        elif name in BY_NAME:
            return self.cast(call, operands)
        elif name in REDUCTIONS and len(operands) == 1 and call.arguments[0].keyword is None:
            self.report(
                "E0203",
                f"`{name}` of one value needs the modes to reduce over",
                call.function.span,
                "no modes",
                f"write `{name}[n]`, or `{name}[m]` or `{name}[m, n]`"
                + (f"; of two values, `{name}(x, y)`" if find_function(name) else ""),
            )
        elif (function := find_function(name)) is None:
            self.unknown_function(call)
        elif (arguments := self.bind(call, function, operands)) is not None:
            return self.builder.add(Apply(function.name), *arguments)
        return self.mistake()

    def inline(self, call: syntax.Call, operands: list[int]) -> int:
        """Return the value of a call of a user's function: its body with the arguments."""
        name = call.function.text
        definition = self.defined[name]
        parameters = [parameter.text for parameter in definition.parameters]
        keyword = next((argument.keyword for argument in call.arguments if argument.keyword is not None), None)
        self._used.add(name)
        if keyword is not None:
            self.report(
                "E0204", f"`{name}` is called by position", keyword.span, "", f"`{name}({', '.join(parameters)})`"
            )
        elif len(operands) != len(parameters):
            self.report(
                "E0203",
                f"`{name}` takes {len(parameters)} argument{'s' * (len(parameters) != 1)}, {len(operands)} given",
                call.span,
                "",
                f"`def {name}({', '.join(parameters)})`",
            )
        elif name in self._open or len(self._open) >= _MAX_DEPTH:
            chain = " -> ".join([*self._open, name])
            self.report(
                "E0402",
                f"`{name}` is defined by itself: {chain}" if name in self._open else "functions nest too deep",
                call.function.span,
                "called in its own definition" if name in self._open else f"more than {_MAX_DEPTH} levels",
                "a function is inlined where it is called, so it cannot call itself",
            )
            if name not in self._open:
                self.report.check()  # each call on the way may make two: their number doubles with each level
        else:
            key = (name, tuple(operands))
            if key not in self._inlined:
                calls, self._calls = self._calls, (call.span, *self._calls)
                self._open.append(name)
                self._inlined[key] = self.add(definition.body, dict(zip(parameters, operands, strict=True)))
                self._open.pop()
                self._calls = calls
                self.builder.origin = Place(call.span, calls)
            return self._inlined[key]
        return self.mistake()

    def check_defined(self) -> None:
        """Report functions that nothing calls."""
        for name, definition in self.defined.items():
            if name not in self._used:
                self.report.nothing_reads(
                    "E0409",
                    f"the function `{name}` is defined and nothing calls it",
                    definition.name.span,
                    "call it, or remove it",
                )

    def derivative(self, call: syntax.Call, operands: list[int]) -> int:
        """Return ``f'(x)``, ``f''(x, constants)``: the derivative with respect to the first argument, at ``x``."""
        name, span = call.function.text, call.function.span
        function = find_function(name)
        if name not in self.defined and function is None:
            self.unknown_function(call)
            return self.mistake()
        x = self.derivatives.variable()
        arguments = [x, *operands[1:]]
        if name in self.defined:
            value = self.inline(call, arguments[: len(operands)])
        else:
            assert function is not None
            bound = self.bind(call, function, arguments[: len(operands)])
            if bound is None:
                return self.mistake()
            value = self.builder.add(Apply(function.name), *bound)
        if call.primes > _MAX_PRIMES:
            self.report(
                "E0206", f"`{name}` with {call.primes} primes", span, "too many", f"at most {_MAX_PRIMES} derivatives"
            )
            return self.mistake()
        varying = [operand for operand in operands[1:] if not self.is_constant(operand)]
        if varying:
            self.report(
                "E0206",
                f"`{name}'` is the derivative of a function of one argument",
                call.arguments[operands.index(varying[0], 1)].span,
                "not a constant",
                "the arguments after the first are constants",
            )
        try:
            for _ in range(call.primes):
                value = self.derivatives.derive(value, x)
                self.check_size(span)
        except NoDerivativeError as error:
            hint = "write the derivative as a `def`, or register it with evt.function"
            self.report("E0206", f"`{name}` has no derivative: {error}", span, "not differentiable", hint)
            return self.mistake()
        return self.derivatives.substitute(value, x, operands[0]) if operands else self.mistake()

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
        elif dtype not in (*OUTPUTS, TF32):
            casts = ", ".join(each.name for each in (*OUTPUTS, TF32))
            hint = "integers are computed in i32: write `i32(x)`" if dtype == I64 else f"casts: {casts}"
            self.report("E0303", f"there is no cast to {dtype}", span, "", hint)
        else:
            return self.builder.add(Cast(B1 if dtype == BOOL else dtype), operands[0])  # one truth value
        return self.mistake()

    def unknown_function(self, call: syntax.Call) -> None:
        name, span = call.function.text, call.function.span
        if name in SPECIAL:
            hint = f"write `{SPECIAL[name]}`"
            self.report("E0203", f"`{name}` is written `{SPECIAL[name]}`", span, "", hint)
        elif name in self.inputs or name in self.assigns or name == "acc":
            self.report(
                "E0201",
                f"`{name}` is not a function",
                span,
                "called here",
                f"write `{name} * (...)` for a product",
            )
        elif name.lower() in MISSING_TYPES:
            message, hint = unknown_type(name, ())
            self.report("E0303", message, span, "no type", hint)
        elif (known := MISSING_FUNCTIONS.get(name)) is not None:
            given = [getattr(argument.value, "name", "") for argument in call.arguments]
            hint = "write `acc`" if given == ["A", "B"] else known.instead
            self.report("E0201", f"there is no function `{name}`: {known.why}", span, "not a function", hint)
        else:
            guess = self.report.guess(name.strip("_"), (*FUNCTIONS, *BY_NAME, *SPECIAL, *self.defined))
            hint = f"did you mean `{guess}`?" if guess else "`evt explain E0201` lists the functions"
            self.report("E0201", f"there is no function `{name}`", span, "unknown function", hint)

    def no_reduction(self, call: syntax.Call, subscript: syntax.Subscript) -> None:
        name, known = call.function.text, MISSING_FUNCTIONS.get(call.function.text)
        if known is not None:
            message = f"there is no reduction `{name}`: {known.why}"
            self.report("E0201", message, call.function.span, "not a reduction", known.instead)
        elif find_function(name) is not None or name in self.defined or name in SPECIAL or name in BY_NAME:
            written = SPECIAL.get(name, name)
            hint = f"write `{written}`; the modes of a value follow from its operands"
            place = call.span if name in SPECIAL else call.function.span.to(subscript.span)
            self.report("E0201", f"`{name}` is not a reduction", place, "takes no modes", hint)
        else:
            known_reductions = (*REDUCTIONS, *MOMENTS, *PLACES)
            guess = self.report.guess(name, known_reductions)
            hint = f"did you mean `{guess}`?" if guess else f"reductions: {', '.join(known_reductions)}"
            self.report("E0201", f"there is no reduction `{name}`", call.function.span, "unknown", hint)

    def bind(self, call: syntax.Call, function: Function, operands: list[int]) -> list[int] | None:
        """Return the arguments by position and keyword, with defaults filled in."""
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
                word, known = argument.keyword.text, argument.keyword.text in names
                hint = MISSING_PARAMETERS.get((function.name, word)) or MISSING_PARAMETERS.get(("", word))
                guess = self.report.guess(word, names)
                has = "has already got" if known else "has no parameter"
                self.report(
                    "E0204",
                    f"`{function.name}` {has} `{word}`",
                    argument.keyword.span,
                    "given twice" if known else "unknown",
                    hint or (f"did you mean `{guess}`?" if guess and not known else f"parameters: {', '.join(names)}"),
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
        defaults = {p.name: p.default for p in function.parameters if p.default is not None}
        for name, default in defaults.items():
            bound.setdefault(name, self.constant_node(default))
        self.check_constants(call, function.requires, bound)
        return [bound[name] for name in names]

    def check_constants(self, call: syntax.Call, requires: str, bound: Mapping[str, int]) -> None:
        """Report constant arguments that PyTorch refuses: ``requires`` is a relation like `lower <= upper`, or ""."""
        if not requires:
            return
        left, relation, right = requires.split()
        given = {name: self.builder[bound[name]] for name in (left, right) if name in bound}
        numbers = {name: op.value for name, op in given.items() if isinstance(op, Const)}
        if len(numbers) < len(given):
            return
        if not _RELATIONS[relation](*(numbers[each] if each in numbers else float(each) for each in (left, right))):
            self.refuse_numbers(call, requires, numbers)

    def refuse_numbers(self, call: syntax.Call, requires: str, numbers: Mapping[str, float]) -> None:
        said = ", ".join(f"`{name}` is {value:g}" for name, value in numbers.items())
        message = f"`{call.function.text}` needs `{requires}`"
        self.report("E0207", message, call.span, said, "torch.nn.functional refuses these numbers as well")
