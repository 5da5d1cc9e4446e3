"""Statements: the operation that a program names, its declarations and its assignments."""

from __future__ import annotations

from dataclasses import replace

from evt.diagnostics import Span, hint
from evt.functions import lookup as find_function
from evt.ir.convolution import CONVOLUTIONS, OPERAND_MODES
from evt.ir.dtype import BY_NAME, OPERANDS, DType
from evt.ir.lower.report import SourceDiagnostics
from evt.ir.lower.words import (
    INFINITY,
    NOT_NUMBERS,
    SPECIAL,
    is_flexible,
    is_greek,
    read_dtype,
    read_modes,
    read_number,
)
from evt.ir.node import ELEMENT_MODES, Inferred, Input, Operand, Output
from evt.language import tree as syntax

#: Operations: the modes of A and B without a header; the modes of the implicit GEMM for convolutions.
OPERATIONS = {"gemm": (("m", "k"), ("k", "n")), "linear": (("m", "k"), ("n", "k")), **OPERAND_MODES}


#: Operations by their names in other libraries.
_OPERATIONS_ELSEWHERE = {
    **dict.fromkeys(("matmul", "mm", "bmm", "addmm", "baddbmm", "product"), "gemm"),
    **dict.fromkeys(("conv", "convolution"), "conv2d"),
    **{f"conv{rank}d": f"conv{rank}d" for rank in (1, 2, 3)},
}


def unknown_operation(name: object) -> str:
    """Return a help for a name that is not one of :data:`OPERATIONS`."""
    if name == "grouped_gemm":
        return "write `gemm`, and call evt.grouped_gemm"
    meant = _OPERATIONS_ELSEWHERE.get(str(name).lower().removesuffix("_fprop"))
    return f"write `{meant}`" if meant else hint(str(name), (*OPERATIONS, "grouped_gemm"), "operations")


class Statements:
    """The statements of a program by kind, each name once. Uses are not examined yet.

    ``declared`` and ``outs`` are the declarations of inputs and outputs, ``subscripted`` are the declarations with a
    subscript, ``defined`` are the functions of ``def`` statements, and ``feeds`` are the assignments to A and B.
    """

    def __init__(self, tree: syntax.Tree, report: SourceDiagnostics) -> None:
        self.tree = tree
        self.report = report
        self.header: syntax.Header | None = None
        self.assigns: dict[str, syntax.Assign] = {}
        self.feeds: dict[str, syntax.Assign] = {}
        self.defined: dict[str, syntax.Define] = {}
        self.declared: dict[str, Input] = {}
        self.subscripted: set[str] = set()
        self.outs: dict[str, Output] = {}
        #: Names with a refused declaration or assignment, which are not reported again.
        self.refused: set[str] = set()
        self.twice: set[str] = set()
        self.collect()

    def collect(self) -> None:
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
                case syntax.Define():
                    self.collect_define(statement)
                case syntax.Assign():
                    first_assign = first_assign or statement.span
                    self.collect_assign(statement)
        for assign in self.assigns.values():
            if assign.subscript is not None:
                self.read_subscript(assign, assign.subscript)

    def collect_define(self, statement: syntax.Define) -> None:
        name = statement.name
        parameters = [parameter.text for parameter in statement.parameters]
        if name.text in self.defined:
            line, _ = self.tree.source.position(self.defined[name.text].name.span.start)
            self.report("E0401", f"`{name.text}` is defined twice", name.span, "again", f"first defined on line {line}")
        elif self.usable(name):
            self.defined[name.text] = statement
            for repeated in (
                each for place, each in enumerate(statement.parameters) if each.text in parameters[:place]
            ):
                message = f"the parameter `{repeated.text}` is given twice"
                self.report("E0401", message, repeated.span, "again", "rename one of the two")

    def collect_assign(self, statement: syntax.Assign) -> None:
        name, span = statement.target.text, statement.target.span
        known = self.feeds if name in ELEMENT_MODES else self.assigns
        if name == "acc":
            self.report("E0406", "`acc` cannot be assigned", span, "this is the matrix product")
        elif name in known:
            line, _ = self.tree.source.position(known[name].target.span.start)
            self.report(
                "E0401",
                f"`{name}` is assigned twice",
                span,
                "second assignment",
                f"use a new name; the first assignment is on line {line}",
            )
        elif name in ELEMENT_MODES:
            self.feeds[name] = statement
        elif name in self.declared:
            if name not in self.twice:
                hint = "give the computed value another name, or remove the declaration"
                self.report("E0406", f"`{name}` is declared as an input and assigned", span, "assigned here", hint)
        elif self.usable(statement.target):
            self.assigns[name] = statement

    def read_subscript(self, assign: syntax.Assign, subscript: syntax.Subscript) -> None:
        """Read the subscript of an assignment. An `out` statement may repeat it or omit it."""
        name, span = assign.target.text, assign.target.span
        modes, declared = read_modes(self.report, subscript), self.outs.get(name)
        if modes is None:
            return
        self.no_flexible(subscript)
        if declared is None:
            self.outs[name] = Output(name, None, modes, "l" not in modes, span)
        elif name not in self.subscripted:
            self.outs[name] = replace(declared, modes=modes, batchable="l" not in modes)
        elif modes != declared.modes:
            written = ", ".join(declared.modes)
            self.report(
                "E0302",
                f"`{name}` is [{written}], not [{', '.join(modes)}]",
                subscript.span,
                f"declared as [{written}]",
                "write the subscript once, in the `out` statement",
            )
        self.subscripted.add(name)

    def no_flexible(self, subscript: syntax.Subscript) -> None:
        for mode in subscript.modes:
            if mode.optional:
                self.report("E0301", "only an input may be a vector or a single value", mode.span, "", "remove the `?`")
                return

    def usable(self, identifier: syntax.Identifier) -> bool:
        """Return whether a user may give this name to something."""
        name = identifier.text
        if name in self.refused:
            return False
        self.refused.add(name)
        if name == INFINITY or name in NOT_NUMBERS:
            self.report("E0108", f"`{name}` is no name", identifier.span, "", f"rename it: `{name}_`")
        elif name in BY_NAME or find_function(name) is not None or name in SPECIAL:
            kind = "a type" if name in BY_NAME else "a function"
            self.report(
                "E0108",
                f"`{name}` is {kind} and cannot be a name",
                identifier.span,
                "",
                f"rename it: `{name}_`",
            )
        else:
            self.refused.remove(name)
            return True
        return False

    def declare_input(self, declaration: syntax.Declaration) -> None:
        name, span = declaration.name.text, declaration.name.span
        if name in self.declared or name in self.outs:
            self.twice.add(name)
            self.report("E0407", f"`{name}` is declared twice", span, "second declaration", "remove one of the two")
            return
        if name in ("acc", "A", "B"):
            header = "; the types of A and B stand in a header: `gemm(A: f16[m, k], B: f16[k, n])`"
            hint = "remove it here" + (header if name != "acc" else "")
            self.report("E0406", f"`{name}` needs no declaration", span, "always there", hint)
            return
        if name in self.assigns:
            self.report(
                "E0406",
                f"`{name}` is assigned and declared as an input",
                span,
                "declared here",
                "give the computed value another name, or remove the declaration",
            )
            return
        if not self.usable(declaration.name):
            return
        dtype = read_dtype(self.report, declaration.dtype)
        modes = read_modes(self.report, declaration.subscript, summed=True) if declaration.subscript else ()
        default = read_number(self.report, declaration.default, dtype) if declaration.default else None
        if declaration.subscript is not None:
            self.subscripted.add(name)
        flexible = bool(declaration.subscript and modes and is_flexible(self.report, declaration.subscript, modes))
        default_span = declaration.default.span if declaration.default else None
        self.declared[name] = Input(name, dtype, modes or (), default, False, flexible, span, default_span)
        if default is not None and dtype is not None and not dtype.spans(default):
            assert declaration.default is not None
            message = f"the default of `{name}` is beyond the range of {dtype}"
            self.report("E0306", message, declaration.default.span, "out of range", dtype.range_text)
        elif default is not None and dtype is not None and not dtype.is_float and default != int(default):
            assert declaration.default is not None
            self.report(
                "E0306",
                f"`{name}` is {dtype} and its default is not a whole number",
                declaration.default.span,
                "not a whole number",
                f"declare it f32, or write `{round(default)}`",
            )

    def declare_output(self, declaration: syntax.Declaration) -> None:
        name, span = declaration.name.text, declaration.name.span
        if name in self.outs or name in self.declared:
            self.twice.add(name)
            self.report("E0407", f"`{name}` is declared twice", span, "second declaration", "remove one of the two")
            return
        if name in ("acc", "A", "B"):
            self.report(
                "E0406",
                f"`{name}` cannot be an output",
                span,
                "",
                f"store it under another name: `D = {name}`",
            )
            return
        if declaration.default is not None:
            self.report(
                "E0306",
                "an output has no default",
                declaration.default.span,
                "",
                f"assign it in a separate statement: `{name} = ...`",
            )
        dtype = read_dtype(self.report, declaration.dtype)
        modes = read_modes(self.report, declaration.subscript) if declaration.subscript else ("m", "n")
        if declaration.subscript is not None:
            self.no_flexible(declaration.subscript)
        if self.usable(declaration.name):
            known = ("m", "n") if modes is None else modes
            self.outs[name] = Output(name, dtype, known, "l" not in known, span)
            if modes is not None and declaration.subscript is not None:
                self.subscripted.add(name)

    def operands(self) -> tuple[Operand, ...]:
        """Return the operands that the header declares, or () without a header."""
        if self.header is None:
            return ()
        operation, declared = self.header.operation, self.header.operands
        if operation.text not in OPERATIONS:
            message = f"there is no operation `{operation.text}`"
            self.report("E0501", message, operation.span, "unknown", unknown_operation(operation.text))
            return ()
        if [operand.name.text for operand in declared] != ["A", "B"]:
            message, meant = f"`{operation.text}` has the operands A and B", self.header_meant(self.header)
            self.report("E0203", message, self.header.span, "", f"write `{meant}`")
            return ()
        result = []
        for operand, default in zip(declared, OPERATIONS[operation.text], strict=True):
            dtype = read_dtype(self.report, operand.dtype, OPERANDS)
            modes = self.operand_modes(operand, default)
            if dtype is not None and modes is not None:
                inferred: tuple[Inferred, ...] = () if operand.subscript else ("modes",)
                result.append(Operand(operand.name.text, dtype, modes, operand.span, inferred))
        return tuple(result)

    def header_meant(self, header: syntax.Header) -> str:
        """Return a header with the operands A and B, and the types that the user wrote for two operands."""
        operation, types = header.operation.text, [operand.dtype.text for operand in header.operands]
        parts, types = [], types if len(types) == 2 else ["f16", "f16"]
        for name, modes, dtype in zip("AB", OPERATIONS[operation], types, strict=True):
            subscript = "" if operation in CONVOLUTIONS else f"[{', '.join(modes)}]"
            parts.append(f"{name}: {dtype}{subscript}")
        return f"{operation}({', '.join(parts)})"

    def operand_modes(self, operand: syntax.Operand, default: tuple[str, ...]) -> tuple[str, ...] | None:
        if operand.subscript is None:
            return default
        modes = tuple(mode.name for mode in operand.subscript.modes)
        assert self.header is not None
        if self.header.operation.text in CONVOLUTIONS and modes != default:
            self.report(
                "E0301",
                f"operand `{operand.name.text}` of a convolution has its channels last in memory",
                operand.subscript.span,
                "not to be chosen",
                f"omit the subscript: `{operand.name.text}: {operand.dtype.text}`",
            )
            return None
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


def undeclared_input(
    name: str, dtype: DType | None, modes: tuple[str, ...] | None, span: Span | None, flexible: bool = False
) -> Input:
    """Return an undeclared input by its name. Without a subscript, a Greek letter is a scalar, ``bias`` is [n] and
    other names are [m, n].
    """
    if modes is not None:
        return Input(name, dtype, modes, None, False, flexible, span)
    implied = () if is_greek(name) else ("n",) if name == "bias" else ("m", "n")
    return Input(name, dtype, implied, None, len(implied) == 2, span=span, inferred=("modes",))
