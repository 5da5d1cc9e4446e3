"""Tree to graph: ``lower(tree, operation) -> Dag``. Names are resolved here; types are not."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from evt.diagnostics import Diagnostic, Span, closest
from evt.errors import ProgramError
from evt.functions import FUNCTIONS, TABLE, Function
from evt.functions import lookup as find_function
from evt.ir.dag import Builder, Dag, prune, reads_accumulator
from evt.ir.dtype import BY_NAME, STORAGE, DType
from evt.ir.node import MODES, Acc, Apply, Cast, Const, Input, Load, Operand, Output, Store
from evt.language import tree as syntax

GREEK = frozenset(
    "alpha beta gamma delta epsilon zeta eta theta iota kappa lambda mu nu xi omicron pi rho sigma tau upsilon "
    "phi chi psi omega".split()
)
#: Operations: the modes of A's and B's shapes when no header says otherwise.
OPERATIONS = {"gemm": (("m", "k"), ("k", "n")), "linear": (("m", "k"), ("n", "k"))}
_PLANNED_OPERATIONS = ("conv1d", "conv2d", "conv3d", "conv2d_fprop", "conv2d_dgrad", "conv2d_wgrad", "grouped_gemm")
_PLANNED_FUNCTIONS = ("where", "isnan", "sum", "iota", "dropout")
_OPERATORS = {"+": "add", "-": "sub", "*": "mul", "/": "div"}
_NOT_FINITE = frozenset({"nan", "inf", "infinity", "NaN", "INF", "Inf", "NAN", "Infinity"})
_NOT_ACC = frozenset({"Acc", "ACC", "ac", "accum", "accumulator", "aac", "accc"})


def lower(tree: syntax.Tree, operation: str = "gemm") -> Dag:
    """Lower a program for an operation (``gemm`` or ``linear``); a header in the program decides over it.

    Raises ProgramError with everything that is wrong with names, calls and statements (E01xx-E04xx), and E0901
    for parts of the language that are not supported yet.
    """
    lowering = _Lowering(tree, operation)
    dag = lowering.run()
    if lowering.diagnostics:
        raise ProgramError(_in_order(lowering.diagnostics))
    assert dag is not None
    return dag


def _in_order(diagnostics: Iterable[Diagnostic]) -> list[Diagnostic]:
    unique = dict.fromkeys(diagnostics)
    return sorted(unique, key=lambda d: (d.span.start if d.span else 0))[:20]


@dataclass(frozen=True, slots=True)
class _Use:
    """A name that was read: where, and the subscript that was written there."""

    span: Span
    subscript: syntax.Subscript | None


class _Lowering:
    def __init__(self, tree: syntax.Tree, operation: str) -> None:
        self.tree = tree
        self.operation = operation
        self.diagnostics: list[Diagnostic] = []
        self.builder = Builder()
        self.header: syntax.Header | None = None
        self.assigns: dict[str, syntax.Assign] = {}
        self.declared: dict[str, Input] = {}
        self.outs: dict[str, Output] = {}
        self.uses: dict[str, list[_Use]] = {}
        self.inputs: dict[str, Input] = {}
        self.values: dict[str, int] = {}
        self.constant: set[int] = set()

    def report(self, code: str, message: str, span: Span, label: str = "", hint: str = "") -> None:
        self.diagnostics.append(Diagnostic(code, message, span, label, hint, source=self.tree.source))

    def unsupported(self, what: str, span: Span, hint: str = "") -> None:
        self.report("E0901", f"{what} not supported yet", span, "planned, not built", hint)

    # The whole of it, in the order of the data.
    def run(self) -> Dag | None:
        self.collect_statements()
        operands = self.operands()
        self.collect_uses()
        self.resolve_inputs()
        outputs = self.resolve_outputs()
        order = self.order_assignments()
        if self.diagnostics:
            return None
        for name in order:
            self.values[name] = self.expression(self.assigns[name].value)
        if self.diagnostics:
            return None
        for output in outputs:
            self.builder.add(Store(output.name), self.values[output.name])
        dag = prune(
            self.builder.finish(
                self.header.operation.text if self.header else self.operation,
                operands,
                self.inputs.values(),
                outputs,
                self.tree.source,
            )
        )
        if not reads_accumulator(dag):
            target = self.assigns["D"].target
            self.report(
                "E0405",
                "the program does not use the accumulator `acc`",
                target.span,
                "does not depend on the product",
                "the matrix product is `acc`: `D = relu(acc + bias)`",
            )
        return dag

    # Statements

    def collect_statements(self) -> None:
        first_assign: Span | None = None
        for statement in self.tree.statements:
            match statement:
                case syntax.Header():
                    if self.header is not None:
                        self.report("E0407", "a program has one header", statement.span, "second header")
                    elif first_assign is not None:
                        self.report("E0101", "the header comes first", statement.span, "after an assignment")
                    self.header = statement
                case syntax.Inputs(declarations):
                    for declaration in declarations:
                        self.declare_input(declaration)
                case syntax.Outputs(declarations):
                    for declaration in declarations:
                        self.declare_output(declaration)
                case syntax.Define(name):
                    self.unsupported("user-defined functions (`def`) are", name.span)
                case syntax.Assign():
                    first_assign = first_assign or statement.span
                    self.collect_assign(statement)

    def collect_assign(self, statement: syntax.Assign) -> None:
        name, span = statement.target.text, statement.target.span
        if name in ("A", "B"):
            self.unsupported(f"assigning to the operand `{name}` (mainloop fusion) is", span)
        elif name == "acc":
            self.report("E0406", "`acc` cannot be assigned", span, "this is the matrix product")
        elif name in self.assigns:
            line, _ = self.tree.source.position(self.assigns[name].target.span.start)
            self.report(
                "E0401",
                f"`{name}` is assigned twice",
                span,
                "second assignment",
                f"use a new name; the first assignment is on line {line}",
            )
        elif name in self.declared:
            self.report(
                "E0406", f"`{name}` is declared as an input and assigned", span, "", "declare it with `out` instead"
            )
        elif self.usable(statement.target):
            if statement.subscript is not None and name not in self.outs:
                modes = self.modes(statement.subscript)
                if modes is not None:
                    self.outs[name] = Output(name, None, modes, "l" not in modes, span)
            elif statement.subscript is not None:
                self.report(
                    "E0302", f"`{name}` has its subscript in the `out` statement", statement.subscript.span
                )
            self.assigns[name] = statement

    def usable(self, identifier: syntax.Identifier) -> bool:
        """Whether the user may give this name to something."""
        name = identifier.text
        if name in _NOT_FINITE:
            self.report("E0107", f"`{name}` is not a name", identifier.span)
        elif name in BY_NAME or find_function(name) is not None or name in _PLANNED_FUNCTIONS:
            kind = "a type" if name in BY_NAME else "a function"
            self.report(
                "E0108", f"`{name}` is {kind} and cannot be a name", identifier.span, "", f"rename it: `{name}_`"
            )
        else:
            return True
        return False

    def declare_input(self, declaration: syntax.Declaration) -> None:
        name, span = declaration.name.text, declaration.name.span
        if name in self.declared or name in self.outs:
            self.report("E0407", f"`{name}` is declared twice", span, "second declaration")
            return
        if name in ("acc", "A", "B"):
            self.report("E0406", f"`{name}` needs no declaration", span, "always there", "remove it here")
            return
        if name in self.assigns:
            self.report("E0406", f"`{name}` is assigned and declared as an input", span)
            return
        if not self.usable(declaration.name):
            return
        dtype = self.dtype(declaration.dtype)
        modes = self.modes(declaration.subscript) if declaration.subscript else None
        if modes is None and declaration.subscript is not None:
            return
        default = self.number(declaration.default) if declaration.default else None
        if modes is None and declaration.default is not None:
            modes = ()
        self.declared[name] = self.make_input(name, dtype, modes, default, span)
        if default is not None and not self.declared[name].is_scalar:
            assert declaration.default is not None
            self.report(
                "E0901",
                "defaults of tensors are not supported yet",
                declaration.default.span,
                "only a scalar can have a default",
            )

    def declare_output(self, declaration: syntax.Declaration) -> None:
        name, span = declaration.name.text, declaration.name.span
        if name in self.outs or name in self.declared:
            self.report("E0407", f"`{name}` is declared twice", span, "second declaration")
            return
        if name in ("acc", "A", "B"):
            self.report("E0406", f"`{name}` cannot be an output", span)
            return
        if declaration.default is not None:
            self.report("E0306", "an output has no default", declaration.default.span)
        dtype = self.dtype(declaration.dtype)
        modes = self.modes(declaration.subscript) if declaration.subscript else ("m", "n")
        if modes is not None and self.usable(declaration.name):
            if not {"m", "n"} <= set(modes):
                self.unsupported(f"the output `{name}` of [{', '.join(modes)}] is a reduction; reductions are", span)
            self.outs[name] = Output(name, dtype, modes, "l" not in modes, span)

    def operands(self) -> tuple[Operand, ...]:
        """The operands that the header declares; none without a header."""
        if self.header is None:
            return ()
        operation, declared = self.header.operation, self.header.operands
        if operation.text not in OPERATIONS:
            if operation.text in _PLANNED_OPERATIONS:
                self.unsupported(f"the operation `{operation.text}` is", operation.span)
            else:
                guess = closest(operation.text, OPERATIONS)
                self.report(
                    "E0501",
                    f"there is no operation `{operation.text}`",
                    operation.span,
                    "unknown",
                    f"did you mean `{guess}`?" if guess else f"use one of: {', '.join(OPERATIONS)}",
                )
            return ()
        if [operand.name.text for operand in declared] != ["A", "B"]:
            self.report(
                "E0203",
                f"`{operation.text}` has the operands A and B",
                self.header.span,
                "",
                f"write `{operation.text}(A: f16[m, k], B: f16[k, n])`",
            )
            return ()
        result = []
        for operand, default in zip(declared, OPERATIONS[operation.text], strict=True):
            dtype = self.dtype(operand.dtype)
            modes = self.operand_modes(operand, default)
            if dtype is not None and modes is not None:
                result.append(Operand(operand.name.text, dtype, modes))
        return tuple(result)

    def operand_modes(self, operand: syntax.Operand, default: tuple[str, ...]) -> tuple[str, ...] | None:
        if operand.subscript is None:
            return default
        modes = tuple(mode.name for mode in operand.subscript.modes)
        if set(modes) != set(default) or len(modes) != 2:
            extra = "; batched operands need no `l` here" if "l" in modes else ""
            self.report(
                "E0301",
                f"operand `{operand.name.text}` has the modes {' and '.join(default)}",
                operand.subscript.span,
                "not these",
                f"write `{operand.name.text}: {operand.dtype.text}[{', '.join(default)}]`{extra}",
            )
            return None
        return modes

    # Subscripts, types and numbers

    def modes(self, subscript: syntax.Subscript) -> tuple[str, ...] | None:
        names = tuple(mode.name for mode in subscript.modes)
        for mode in subscript.modes:
            if mode.name not in MODES:
                hint = "the modes are m (rows), n (columns) and l (batch)"
                self.report("E0301", f"there is no mode `{mode.name}` here", mode.span, "unknown mode", hint)
                return None
            if mode.optional:
                self.unsupported(f"`{mode.name}?` (vector or scalar at call time) is", mode.span)
                return None
        if len(set(names)) != len(names):
            self.report("E0301", "a subscript names a mode once", subscript.span, "repeated")
            return None
        return names

    def dtype(self, identifier: syntax.Identifier | None) -> DType | None:
        if identifier is None:
            return None
        dtype = BY_NAME.get(identifier.text)
        if dtype is None:
            guess = closest(identifier.text, BY_NAME)
            hint = f"did you mean `{guess}`?" if guess else "types: f64 f32 tf32 f16 bf16 e4m3 e5m2 i32 i8 u8 b1"
            self.report("E0303", f"there is no type `{identifier.text}`", identifier.span, "unknown type", hint)
        return dtype

    def number(self, constant: syntax.Constant | syntax.Number) -> float | None:
        """The f32 value of a literal."""
        try:
            value = float(constant.text)
            rounded = Const.of(value).value
        except (ValueError, OverflowError):
            rounded = value = math.inf
        if not math.isfinite(rounded) or (rounded == 0 and value != 0):
            self.report(
                "E0107",
                f"`{constant.text}` is not a finite f32 number",
                constant.span,
                "" if math.isfinite(rounded) else "not representable",
                "f32 holds magnitudes from 1.4e-45 to 3.4e38",
            )
            return None
        return rounded

    # Names

    def collect_uses(self) -> None:
        for statement in self.assigns.values():
            for node in syntax.postorder(statement.value):
                match node:
                    case syntax.Name(name, span):
                        self.uses.setdefault(name, []).append(_Use(span, None))
                    case syntax.Element(name, subscript, span):
                        self.uses.setdefault(name, []).append(_Use(span, subscript))

    def resolve_inputs(self) -> None:
        """Every name that is read and not assigned is an input; declared ones must be read."""
        for name, uses in self.uses.items():
            if name in self.assigns:
                for use in uses:
                    if use.subscript is not None:
                        self.report(
                            "E0302",
                            f"`{name}` is computed here and takes no subscript",
                            use.subscript.span,
                            "",
                            f"write `{name}`",
                        )
            elif name == "acc":
                for use in uses:
                    if use.subscript is not None and self.modes(use.subscript) not in (("m", "n"), None):
                        self.report("E0302", "`acc` is [m, n]", use.subscript.span, "", "write `acc`")
            elif self.is_input_name(name, uses[0]):
                self.inputs[name] = self.resolve_input(name, uses)
        for name, value in self.declared.items():
            if name not in self.uses:
                assert value.span is not None
                guess = closest(name, (use for use in self.inputs if use not in self.declared))
                self.report(
                    "E0404",
                    f"the input `{name}` is declared and never read",
                    value.span,
                    "unused",
                    f"`{guess}` is read and not declared: is that the same?" if guess else "remove the declaration",
                )

    def is_input_name(self, name: str, use: _Use) -> bool:
        if name in self.declared:
            return True
        if name in _NOT_FINITE:
            self.report("E0107", f"`{name}` is not a number that a program may use", use.span, "not finite")
        elif name in ("A", "B"):
            self.unsupported(
                f"reading the operand `{name}` in the epilogue is", use.span, "the product of A and B is `acc`"
            )
        elif name in BY_NAME:
            self.report(
                "E0108", f"`{name}` is a type", use.span, "not a value", f"a cast is written `{name}(x)`"
            )
        elif find_function(name) is not None or name in _PLANNED_FUNCTIONS:
            self.report("E0108", f"`{name}` is a function", use.span, "not a value", f"call it: `{name}(x)`")
        elif name in _NOT_ACC and "acc" not in self.uses:
            self.unknown_name(name, use, "acc")
        elif guess := self.misspelt(name):
            self.unknown_name(name, use, guess)
        else:
            return True
        return False

    def misspelt(self, name: str) -> str | None:
        """The declared or assigned name that an undeclared name most likely misspells.

        Undeclared names are inputs, so only near misses count, and names that differ in a digit or in one
        trailing letter (``C1`` and ``C2``, ``scale_a`` and ``scale_b``) are taken to be different things.
        """
        if len(name) < 4 or any(char.isdigit() for char in name):
            return None
        known = [each for each in (*self.declared, *self.assigns) if each[:-1] != name[:-1]]
        guess = closest(name, known)
        return guess if guess is not None and abs(len(guess) - len(name)) <= 2 else None

    def unknown_name(self, name: str, use: _Use, guess: str) -> None:
        self.report(
            "E0202",
            f"there is no `{name}` in this program",
            use.span,
            "unknown name",
            f"did you mean `{guess}`? (if not, declare it: `in {name}`)",
        )

    def resolve_input(self, name: str, uses: Sequence[_Use]) -> Input:
        declared = self.declared.get(name)
        modes: tuple[str, ...] | None = None
        subscripted: _Use | None = None
        if declared is not None and not declared.batchable:
            modes = declared.modes
        for use in uses:
            if use.subscript is None:
                continue
            written = self.modes(use.subscript)
            if written is None:
                continue
            if modes is not None and written != modes:
                where = "declared" if subscripted is None else "used before"
                self.report(
                    "E0302",
                    f"`{name}` is [{', '.join(modes)}], not [{', '.join(written)}]",
                    use.subscript.span,
                    f"{where} as [{', '.join(modes)}]",
                )
            modes, subscripted = written, use
        if declared is None:
            return self.make_input(name, None, modes, None, uses[0].span)
        return self.make_input(name, declared.dtype, modes, declared.default, declared.span)

    def make_input(
        self, name: str, dtype: DType | None, modes: tuple[str, ...] | None, default: float | None, span: Span | None
    ) -> Input:
        """An input; without a subscript a Greek letter is a scalar, ``bias`` is [n], anything else [m, n]."""
        if modes is not None:
            return Input(name, dtype, modes, default, False, span)
        if name in GREEK or default is not None:
            return Input(name, dtype, (), default, False, span)
        if name == "bias":
            return Input(name, dtype, ("n",), default, False, span)
        return Input(name, dtype, ("m", "n"), default, True, span)

    # Outputs and order

    def resolve_outputs(self) -> list[Output]:
        declared = [s for s in self.tree.statements if isinstance(s, syntax.Outputs)]
        if declared:
            names = [d.name.text for statement in declared for d in statement.declarations if d.name.text in self.outs]
        else:
            names = [name for name in self.assigns if name == "D" or name not in self.uses]
        for name in names:
            output = self.outs.get(name)
            if name not in self.assigns and output is not None and output.span is not None:
                guess = closest(name, self.assigns)
                self.report(
                    "E0408",
                    f"the output `{name}` is never assigned",
                    output.span,
                    "no value",
                    f"did you mean `{guess}`?" if guess else f"add `{name} = ...`",
                )
        if declared:
            for name, statement in self.assigns.items():
                if name not in self.uses and name not in names:
                    self.report(
                        "E0409",
                        f"`{name}` is assigned and nothing reads it",
                        statement.target.span,
                        "unused",
                        f"remove it, or store it: `out {name}`",
                    )
        if "D" not in names and not self.diagnostics:
            place = next(iter(self.assigns.values())).target.span if self.assigns else Span(0, 0)
            hint = "assign the primary output: `D = ...`"
            if "D" in self.assigns:
                hint = "name it in the `out` statement: `out D`"
            elif "d" in self.assigns:
                hint = "names are case-sensitive: write `D`, not `d`"
            self.report("E0403", "the program has no primary output `D`", place, "", hint)
        outputs = []
        for name in names:
            if name in self.assigns:
                output = self.outs.get(name)
                outputs.append(output or Output(name, None, ("m", "n"), True, self.assigns[name].target.span))
        return outputs

    def order_assignments(self) -> list[str]:
        """Assigned names, definitions before their uses; reports a definition that depends on itself (E0402)."""
        order: list[str] = []
        state: dict[str, int] = {}  # 1: open, 2: done
        needs = {
            name: [
                node.name
                for node in syntax.postorder(statement.value)
                if isinstance(node, syntax.Name) and node.name in self.assigns
            ]
            for name, statement in self.assigns.items()
        }
        for root in self.assigns:
            stack = [(root, iter(needs[root]))] if root not in state else []
            state.setdefault(root, 1)
            while stack:
                name, pending = stack[-1]
                following = next(pending, None)
                if following is None:
                    state[name] = 2
                    order.append(name)
                    stack.pop()
                elif following not in state:
                    state[following] = 1
                    stack.append((following, iter(needs[following])))
                elif state[following] == 1:
                    names = [each for each, _ in stack]
                    chain = [*names[names.index(following) :], following]
                    self.report(
                        "E0402",
                        f"`{following}` is defined by itself: {' -> '.join(chain)}",
                        self.assigns[following].target.span,
                        "depends on itself",
                    )
                    return order
        return order

    # Expressions

    def expression(self, root: syntax.Expression) -> int:
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
        add = self.builder.add
        match node:
            case syntax.Number():
                return self.constant_node(self.number(node) or 0.0)
            case syntax.Name(name) | syntax.Element(name, _):
                if name in self.values:
                    return self.values[name]
                return add(Acc()) if name == "acc" else add(Load(name))
            case syntax.Unary("-"):
                if isinstance(constant := self.builder[operands[0]], Const):
                    return self.constant_node(-constant.value)
                return add(Apply("neg"), *operands)
            case syntax.Binary("**", _, exponent):
                if operands[1] not in self.constant:
                    self.report(
                        "E0205",
                        "the exponent of `**` is a constant",
                        exponent.span,
                        "not a constant",
                        "write `pow(x, y)` for a variable exponent",
                    )
                return add(Apply("pow"), *operands)
            case syntax.Binary(operator) if operator in _OPERATORS:
                return add(Apply(_OPERATORS[operator]), *operands)
            case syntax.Unary(operator) | syntax.Binary(operator):
                kind = "boolean operators are" if operator in ("&&", "||", "!") else "comparisons are"
                self.unsupported(f"`{operator}`: {kind}", node.span)
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
                self.unsupported(f"reductions (`{name}[...]`) are", span)
            else:
                self.report(
                    "E0201", f"`{name}` is not a reduction", call.subscript.span, "", "reductions: sum, max, min"
                )
        elif call.primes:
            self.unsupported(f"derivatives (`{name}'`) are", span)
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
            self.report("E0203", f"the cast `{call.function.text}` takes one value", call.span)
        elif dtype not in STORAGE:
            self.unsupported(f"the cast to {dtype} is", span)
        else:
            return self.builder.add(Cast(dtype), operands[0])
        return self.constant_node(0.0)

    def unknown_function(self, call: syntax.Call) -> None:
        name, span = call.function.text, call.function.span
        if name in _PLANNED_FUNCTIONS:
            self.unsupported(f"the function `{name}` is", span)
        elif name in self.inputs or name in self.assigns or name == "acc":
            self.report(
                "E0201", f"`{name}` is not a function", span, "called here", f"write `{name} * (...)` for a product"
            )
        else:
            guess = closest(name, (*FUNCTIONS, *BY_NAME))
            hint = f"did you mean `{guess}`?" if guess else "`evt explain E0201` lists the functions"
            self.report("E0201", f"there is no function `{name}`", span, "unknown function", hint)

    def bind(self, call: syntax.Call, function: Function, operands: list[int]) -> list[int] | None:
        """Arguments by position and keyword, with the defaults filled in."""
        names = [parameter.name for parameter in function.parameters]
        bound: dict[str, int] = {}
        failed = False
        for position, (argument, operand) in enumerate(zip(call.arguments, operands, strict=True)):
            if argument.keyword is None:
                if len(bound) > position or position >= len(names):
                    failed = True
                    break
                bound[names[position]] = operand
            elif argument.keyword.text not in names or argument.keyword.text in bound:
                guess = closest(argument.keyword.text, names)
                known = argument.keyword.text in names
                self.report(
                    "E0204",
                    f"`{function.name}` has {'already got' if known else 'no parameter'} `{argument.keyword.text}`",
                    argument.keyword.span,
                    "given twice" if known else "unknown",
                    f"did you mean `{guess}`?" if guess and not known else f"parameters: {', '.join(names)}",
                )
                return None
            else:
                bound[argument.keyword.text] = operand
        missing = [p.name for p in function.parameters if p.name not in bound and p.default is None]
        if failed or missing:
            required = sum(1 for parameter in function.parameters if parameter.default is None)
            wanted = str(required) if required == len(names) else f"{required} to {len(names)}"
            self.report(
                "E0203",
                f"`{call.function.text}` takes {wanted} argument{'s' if wanted != '1' else ''}, "
                f"{len(operands)} given",
                call.span,
                f"`{missing[0]}` is missing" if missing else "too many",
                f"{function.name}({', '.join(names)}): {function.text}",
            )
            return None
        return [
            bound[p.name] if p.name in bound else self.constant_node(p.default or 0.0)
            for p in function.parameters
        ]


assert all(name in TABLE for name in (*_OPERATORS.values(), "neg", "pow"))
