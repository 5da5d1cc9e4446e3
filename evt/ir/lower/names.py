"""Names: inputs, outputs, and the order of definitions."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from evt.diagnostics import Label, Misspellings, Span
from evt.functions import lookup as find_function
from evt.ir.dtype import BY_NAME, I32
from evt.ir.interface import declaration
from evt.ir.lower.report import SourceDiagnostics
from evt.ir.lower.statements import Statements, undeclared_input
from evt.ir.lower.words import GREEK, INFINITY, NOT_NUMBERS, SPECIAL, is_flexible, is_greek, read_modes
from evt.ir.missing import MISSING_FUNCTIONS
from evt.ir.node import ELEMENT_MODES, Input, Output, index_of
from evt.language import tree as syntax

#: Names that have a meaning without a declaration.
_CUSTOMARY = frozenset({"bias", *GREEK})
#: Misspellings and other names of `acc`. One with a number asks for a second product.
_NOT_ACC = frozenset({"ac", "aac", "accc", "cac", "caa", "accum", "accumulator", "accumulators"})
_SECOND_ACC = re.compile("acc_?[0-9]+", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class _Use:
    """A use of a name: its place and its subscript there.

    ``index`` means that the name indexes the rows or columns of another tensor.
    """

    span: Span
    subscript: syntax.Subscript | None
    index: bool = False


class Names:
    """The names of a program: ``inputs`` in order of first use, ``outputs`` in ``out`` order.

    ``operand_modes`` are the modes of A and B in memory, if they are matrices.
    """

    def __init__(
        self, statements: Statements, operand_modes: Mapping[str, Sequence[str]], report: SourceDiagnostics
    ) -> None:
        self.tree = statements.tree
        self.operand_modes = operand_modes
        self.report = report
        self.assigns = statements.assigns
        self.feeds = statements.feeds
        self.declared = statements.declared
        self.subscripted = statements.subscripted
        self.outs = statements.outs
        self.defined = statements.defined
        self.refused = statements.refused
        self.uses: dict[str, list[_Use]] = {}
        #: Calls of unknown functions.
        self.missing: list[Span] = []
        #: Names used as the seed or the offset of random numbers.
        self.counters: set[str] = set()
        #: Inputs that A is multiplied with.
        self.factors: set[str] = set()
        self.inputs: dict[str, Input] = {}
        self.collect_uses()
        self.resolve_inputs()
        self.outputs = self.resolve_outputs()

    def collect_uses(self) -> None:
        for statement in (*self.assigns.values(), *self.feeds.values()):
            for node in syntax.postorder(statement.value):
                match node:
                    case syntax.Name(name, span):
                        self.uses.setdefault(name, []).append(_Use(span, None))
                    case syntax.Element(name, subscript, span):
                        self.uses.setdefault(name, []).append(_Use(span, subscript))
                        self.collect_indices(subscript)
                    case syntax.Call(function=syntax.Identifier(text=syntax.PRODUCT), arguments=arguments):
                        for name, span in factors(arguments):
                            self.uses.setdefault(name, []).append(_Use(span, None))
                            self.factors.add(name)
                    case syntax.Call(function=syntax.Identifier(text=name), span=span) if name in MISSING_FUNCTIONS:
                        self.missing += [span] * (find_function(name) is None and name not in self.defined)
                    case syntax.Call(function=syntax.Identifier(text="rand" | "dropout"), arguments=arguments):
                        self.counters |= {a.value.name for a in arguments[-2:] if isinstance(a.value, syntax.Name)}

            if statement.subscript is not None:
                self.collect_indices(statement.subscript)
        for declaring in self.tree.statements:
            if isinstance(declaring, syntax.Inputs | syntax.Outputs):
                for declaration in declaring.declarations:
                    if declaration.subscript is not None:
                        self.collect_indices(declaration.subscript)

    def collect_indices(self, subscript: syntax.Subscript) -> None:
        for mode in subscript.modes:
            if mode.subscript is not None:
                self.uses.setdefault(mode.name, []).append(_Use(mode.span, mode.subscript, index=True))

    def resolve_inputs(self) -> None:
        """Make every name that is read and not assigned an input; report declared inputs that are never read."""
        known = Misspellings((*self.declared, *self.assigns, *sorted(_CUSTOMARY)))
        for name, uses in self.uses.items():
            if name in self.refused:
                continue
            if name == INFINITY:
                for use in uses:
                    if use.subscript is not None:
                        self.report("E0302", "`inf` has no modes", use.subscript.span, "", "write `inf`")
            elif name in self.assigns:
                for use in uses:
                    if use.index:
                        self.report(
                            "E0302",
                            f"`{name}` is computed here, but an index must be an input",
                            use.span,
                            "not an input",
                            "compute it before the call, and pass it",
                        )
                    elif use.subscript is not None:
                        message = f"`{name}` is computed here and takes no subscript"
                        self.report("E0302", message, use.subscript.span, "", _without_subscript(name, use.subscript))
            elif name == "acc":
                for use in uses:
                    if use.subscript is not None and read_modes(self.report, use.subscript) not in (
                        ("m", "n"),
                        None,
                    ):
                        hint = _without_subscript(name, use.subscript)
                        self.report("E0302", "`acc` is [m, n]", use.subscript.span, "", hint)
            elif name in self.feeds:
                self.check_subscripts(name, uses)
            elif self.is_input_name(name, uses, known):
                self.inputs[name] = self.resolve_input(name, uses)
        for name, value in self.declared.items():
            if name not in self.uses:
                assert value.span is not None
                guess = self.report.guess(name, (use for use in self.inputs if use not in self.declared))
                self.report.nothing_reads(
                    "E0404",
                    f"the input `{name}` is declared and never read",
                    value.span,
                    f"`{guess}` is read and not declared: is it the intended name?"
                    if guess
                    else "remove the declaration",
                )

    def check_subscripts(self, name: str, uses: Sequence[_Use]) -> None:
        """Check the subscripts of an operand with a mainloop fusion."""
        target = self.feeds[name].subscript
        modes = ELEMENT_MODES[name]
        for subscript in (*([target] if target else []), *(use.subscript for use in uses if use.subscript)):
            if {mode.name for mode in subscript.modes} != set(modes) or len(subscript.modes) != 2:
                hint = f"write `{name}`"
                if subscript is not target and (index := _index_in(subscript)) is not None:
                    plain = {mode.name for mode in subscript.modes}
                    selected = next((mode for mode in modes if mode not in plain), modes[0])
                    hint += ", and gather before the call"
                    if name in self.operand_modes:
                        dimension = self.operand_modes[name].index(selected) - 2
                        hint += f": pass {name}.index_select({dimension}, {index})"
                shown = ", ".join(self.operand_modes.get(name, modes))
                self.report("E0302", f"`{name}` is [{shown}]", subscript.span, "not these", hint)

    def is_input_name(self, name: str, uses: Sequence[_Use], known: Misspellings) -> bool:
        """Return whether an unassigned name may be an input.

        Undeclared names are inputs, so a misspelling must not become one. Misspellings of `acc` are refused. So are
        names without a subscript that differ in one letter from a declared or assigned name, from `bias` or from a
        Greek letter.
        """
        if name in self.declared:
            return True
        use = uses[0]
        if name in NOT_NUMBERS:
            self.report("E0107", f"`{name}` is not a constant", use.span, "not a number", NOT_NUMBERS[name])
        elif name in ("A", "B") and all(self.is_explained(each.span) for each in uses):
            return False
        elif name in ("A", "B"):
            self.report(
                "E0406",
                f"the epilogue cannot read the operand `{name}`",
                use.span,
                "not in the epilogue's registers",
                "the product of A and B is `acc`",
            )
        elif name in BY_NAME:
            self.report("E0108", f"`{name}` is a type", use.span, "not a value", f"a cast is written `{name}(x)`")
        elif find_function(name) is not None or name in SPECIAL or name in self.defined:
            self.report("E0108", f"`{name}` is a function", use.span, "not a value", f"call it: `{name}(x)`")
        elif name in _NOT_ACC and "acc" not in self.uses:
            self.unknown_name(name, use, "acc")
        elif (
            name == "bias"
            or is_greek(name)
            or name in self.counters
            or name in self.factors
            or any(each.subscript is not None for each in uses)
        ):
            return True
        elif name.lower() in _NOT_ACC or name.lower() == "acc":
            self.unknown_name(name, use, "acc")
        elif _SECOND_ACC.fullmatch(name):
            message = f"there is no `{name}`: `acc` is the product of A and B"
            hint = f"write `acc`, or `matmul(A, up)` for A and an input; an input is declared: `in {name}[m, n]`"
            self.report("E0202", message, use.span, "not a second product", hint)
        elif guess := known.find(name):
            self.unknown_name(name, use, guess)
        else:
            return True
        return False

    def is_explained(self, place: Span) -> bool:
        """Return whether another refusal explains a read of an operand: the other operand's formula, or a product."""
        spans = [statement.span for statement in self.feeds.values()]
        return any(span.covers(place) for span in (*spans, *self.missing))

    def unknown_name(self, name: str, use: _Use, guess: str) -> None:
        self.report(
            "E0202",
            f"there is no `{name}` in this program",
            use.span,
            "unknown name",
            f"did you mean `{guess}`? (if not, declare it: `in {name}[m, n]`)",
        )

    def resolve_input(self, name: str, uses: Sequence[_Use]) -> Input:
        declared = self.declared.get(name)
        modes = None if declared is None else declared.modes
        flexible = declared is not None and declared.flexible
        for use in uses:
            written = read_modes(self.report, use.subscript, summed=True) if use.subscript else None
            if use.subscript is None or written is None:
                continue
            if modes is not None and written != modes:
                self.other_subscript(name, declared, modes, written, use.subscript)
            flexible = is_flexible(self.report, use.subscript, written) or flexible
            modes = written
        counter = name in self.counters
        if declared is None and modes is None and name in self.factors:
            as_b = tuple(self.operand_modes.get("B", ELEMENT_MODES["B"]))
            return Input(name, None, as_b, span=uses[0].span, inferred=("type", "modes"))
        if declared is None and counter and modes is None:
            return Input(name, I32, (), span=uses[0].span, inferred=("type", "modes"))
        if declared is None:
            return undeclared_input(name, I32 if counter else None, modes, uses[0].span, flexible)
        return replace(declared, dtype=declared.dtype or (I32 if counter else None), flexible=flexible)

    def other_subscript(
        self,
        name: str,
        declared: Input | None,
        modes: Sequence[str],
        written: Sequence[str],
        subscript: syntax.Subscript,
    ) -> None:
        """Report a subscript that differs from the declared one, or from an earlier use."""
        have, found = ", ".join(modes), ", ".join(written)
        if declared is not None and name not in self.subscripted:
            dtype = f": {declared.dtype}" if declared.dtype else ""
            found = ", ".join(map(syntax.format_mode, subscript.modes))
            self.report(
                "E0302",
                f"`{name}` is a scalar, because its declaration has no subscript",
                subscript.span,
                "a scalar has no modes",
                f"declare its modes: `in {name}{dtype}[{found}]`",
                [Label(declared.span, "declared here")] if declared.span else [],
            )
            return
        mend = f"write `{name}` without a subscript here, or give the two inputs different names"
        if declared is not None and any(map(index_of, written)):
            mend = f"declare `in {declaration(name, declared.dtype, written)}`"
        self.report(
            "E0302",
            f"`{name}` is [{have}], not [{found}]",
            subscript.span,
            f"{'used before' if declared is None else 'declared'} as [{have}]",
            mend,
        )

    def resolve_outputs(self) -> list[Output]:
        declared = [s for s in self.tree.statements if isinstance(s, syntax.Outputs)]
        if declared:
            names = [d.name.text for statement in declared for d in statement.declarations if d.name.text in self.outs]
        else:
            names = [name for name in self.assigns if name == "D" or name not in self.uses]
        for name in names:
            output = self.outs.get(name)
            if name not in self.assigns and output is not None and output.span is not None:
                guess = self.report.guess(name, self.assigns)
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
                    self.report.nothing_reads(
                        "E0409",
                        f"`{name}` is assigned and nothing reads it",
                        statement.target.span,
                        f"remove it, or store it: `out {name}`",
                    )
        if not names and not self.report.diagnostics:
            place = self.tree.statements[0].span if self.tree.statements else Span(0, 0)
            self.report("E0403", "the program has no output", place, "", "assign one: `D = acc`")
        outputs = []
        for name in names:
            if name in self.assigns:
                output = self.outs.get(name)
                outputs.append(output or Output(name, None, ("m", "n"), True, self.assigns[name].target.span))
        return outputs

    def order(self) -> list[str]:
        """Return assigned names, definitions before uses; report a name that depends on itself (E0402)."""
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
                        "a name is assigned once and is not updated: use another name for one of the two",
                    )
                    return order
        return order


def _index_in(subscript: syntax.Subscript) -> str | None:
    """Return the input that indexes a subscript: ``index`` for ``[index[m], n]``."""
    return next((mode.name for mode in subscript.modes if mode.subscript is not None), None)


def _without_subscript(name: str, subscript: syntax.Subscript) -> str:
    """Return the help for a subscript at a value that the kernel computes."""
    if (index := _index_in(subscript)) is not None:
        dimension = -2 if subscript.modes[-1].subscript is None else -1
        stored = "D" if name == "acc" else name
        return f"store it, and gather after the call: {stored}.index_select({dimension}, {index})"
    if [mode.name for mode in subscript.modes if mode.name != "l"] == ["n", "m"]:
        return "store the transpose: `out D[n, m]`"
    return f"write `{name}`"


def factors(arguments: Sequence[syntax.Argument]) -> Iterator[tuple[str, Span]]:
    """Yield the input that ``matmul(A, up)`` multiplies A with; nothing for ``matmul(A, B)`` and for mistakes."""
    values = [argument.value for argument in arguments if argument.keyword is None]
    match values:
        case [syntax.Name("A"), syntax.Name(name, span)] if name != "B" and len(arguments) == 2:
            yield name, span
