"""The planner's decisions in C++: ``header(modules, namespace) -> text`` of functions that a kernel's launcher calls.

A module that both the planner and a launcher need is written once, in this subset of Python:

- constants in capitals: numbers and tuples of numbers; comments above them that begin with ``#:`` are copied;
- frozen dataclasses of ``int``, ``Int64``, ``bool`` and ``float``, or of one another, with methods and properties;
  static methods are for Python alone;
- functions of such values, whose statements are ``return``, ``if``, ``while``, ``for`` over a range or a constant
  tuple, ``break``, and assignments to names; decorators are for Python alone;
- arithmetic, comparisons, conditional expressions, ``min`` and ``max`` of two, ``gcd``, ``sqrt``, and ``replace``.

Operands of ``//`` and ``%`` must not be negative: Python and C++ round differently there. ``int`` has 32 bits and
``Int64`` 64 bits in C++. Anything else raises TypeError.
"""

from __future__ import annotations

import ast
import inspect
import re
import sys
import textwrap
from collections.abc import Iterator, Sequence
from functools import cache
from types import ModuleType
from typing import TypeGuard

from evt.storage import derived

_LINE = 118
_TYPES = {"int": "int", "Int64": "std::int64_t", "bool": "bool", "float": "double"}
_CALLS = {
    "min": "std::min",
    "max": "std::max",
    "gcd": "std::gcd",
    "sqrt": "std::sqrt",
    "int": "int",
    "float": "double",
    "Int64": "std::int64_t",
}
#: Operators, each with its precedence in C++.
_OPERATORS: dict[type[ast.AST], tuple[str, int]] = {
    ast.Mult: ("*", 12),
    ast.FloorDiv: ("/", 12),
    ast.Mod: ("%", 12),
    ast.Add: ("+", 11),
    ast.Sub: ("-", 11),
    ast.LShift: ("<<", 10),
    ast.Lt: ("<", 9),
    ast.LtE: ("<=", 9),
    ast.Gt: (">", 9),
    ast.GtE: (">=", 9),
    ast.Eq: ("==", 8),
    ast.NotEq: ("!=", 8),
    ast.BitAnd: ("&", 7),
    ast.And: ("&&", 4),
    ast.Or: ("||", 3),
}
#: A space after which no line ends.
_INNER_SPACE = re.compile(r"(?<![,;{?:|&]) ")
#: The lines around functions that the device pass leaves out.
_HOST, _END = "#if !defined(EVT_DEVICE_PASS)", "#endif"
_TERNARY, _UNARY, _PRIMARY = 2, 14, 15
_INCLUDES = ("<algorithm>", "<cmath>", "<cstdint>", "<initializer_list>", "<numeric>", '"cutlass/cutlass.h"')


@cache
def header(modules: tuple[ModuleType, ...], namespace: str) -> str:
    """Return modules, imported ones first, as a header in a namespace within ``evt``.

    The text is kept, because a translation takes 35 ms.
    """
    sources = [inspect.getsource(each) for each in modules]
    key = "\n".join((sys.version, *sources, inspect.getsource(sys.modules[__name__])))
    if text := derived.find(f"translated-{namespace}", key):
        return text.decode()
    made = _Translator(sources).header(namespace)
    derived.keep(f"translated-{namespace}", key, made.encode())
    return made


class _Translator:
    """The classes of some modules and their properties, whose names no field has."""

    def __init__(self, sources: Sequence[str]) -> None:
        self.sources = sources
        self.lines: Sequence[str] = ()  # of the module that is being translated
        self.tuples: dict[str, str] = {}  # constants of several values, as C++
        self.trees = [ast.parse(source) for source in sources]
        statements = [each for tree in self.trees for each in tree.body]
        self.classes = {each.name: each for each in statements if isinstance(each, ast.ClassDef)}
        members = [each for made in self.classes.values() for each in made.body]
        self.properties = {each.name for each in members if _is_decorated(each, "property")}
        if both := self.properties & {name for made in self.classes.values() for name in _fields(made)}:
            raise TypeError(f"names of both fields and properties: {sorted(both)}")

    def header(self, namespace: str) -> str:
        parts = ["\n".join(f"#include {each}" for each in _INCLUDES), f"namespace evt {{\nnamespace {namespace} {{"]
        for source, tree in zip(self.sources, self.trees, strict=True):
            self.lines = source.splitlines()
            parts += self.module(tree)
        text = "\n\n".join([*parts, f"}}  // namespace {namespace}\n}}  // namespace evt"])
        return text.replace(f"\n{_END}\n\n{_HOST}\n", "\n\n")

    def module(self, tree: ast.Module) -> Iterator[str]:
        """Yield the docstring of a module without its last paragraph, and its definitions."""
        *paragraphs, _ = (ast.get_docstring(tree) or "").replace("``", "`").split("\n\n")
        filled = (textwrap.fill(each, _LINE, initial_indent="// ", subsequent_indent="// ") for each in paragraphs)
        yield "\n//\n".join(filled)
        constants: list[str] = []
        for node in tree.body:
            match node:
                case ast.Assign(targets=[ast.Name(id=name)], value=ast.Tuple(elts=values)) if name.isupper():
                    # Device code has no arrays of the namespace: loops list the values.
                    self.tuples[name] = f"{{{', '.join(map(self.expression, values))}}}"
                    continue
                case ast.Assign(targets=[ast.Name(id=name)], value=value) if name.isupper():
                    constants += [*self.comments(node.lineno, ""), self.constant(name, value)]
                    continue
                case ast.ClassDef():
                    made = self.struct(node)
                case ast.FunctionDef():
                    made = self.function(node, "")
                case _:
                    continue  # imports, the docstring, and aliases of types
            if constants:
                yield "\n".join(constants)
                constants = []
            yield "\n".join(made)

    def comments(self, line: int, indent: str) -> Iterator[str]:
        """Yield the comments above a line of the source."""
        first = line - 1
        while self.lines[first - 1].strip().startswith("#:"):
            first -= 1
        for each in self.lines[first : line - 1]:
            yield f"{indent}// {each.strip()[3:]}"

    def documented(self, node: ast.FunctionDef | ast.ClassDef, indent: str) -> list[str]:
        text = (ast.get_docstring(node) or "").replace("``", "`")
        paragraphs = [" ".join(each.split()) for each in text.split("\n\n")]
        return [f"{indent}/// {line}" for each in paragraphs for line in textwrap.wrap(each, _LINE - len(indent) - 4)]

    def constant(self, name: str, value: ast.expr) -> str:
        kind = "double" if isinstance(value, ast.Constant) and isinstance(value.value, float) else "int"
        return f"inline constexpr {kind} {_constant(name)} = {self.expression(value)};"

    def struct(self, node: ast.ClassDef) -> list[str]:
        made = [*self.documented(node, ""), f"struct {node.name} {{"]
        for each in node.body:
            match each:
                case ast.AnnAssign(target=ast.Name(id=name), annotation=annotation, value=value):
                    default = f" = {self.expression(value)}" if value is not None else ""
                    made += [*self.comments(each.lineno, "  "), f"  {self.type(annotation)} {name}{default};"]
                case ast.FunctionDef() if not _is_decorated(each, "staticmethod"):
                    if shadowed := {argument.arg for argument in each.args.args} & set(_fields(node)):
                        raise TypeError(f"parameters of {each.name} named like fields: {sorted(shadowed)}")
                    made += ["", *self.function(each, "  ", method=True)]
        return [*made, "};"]

    def type(self, annotation: ast.expr | None) -> str:
        match annotation:
            case ast.Name(id=name) if name in self.classes or name in _TYPES:
                return _TYPES.get(name, name)
        raise TypeError(f"a type that C++ has no name for: {ast.unparse(annotation) if annotation else None}")

    def function(self, node: ast.FunctionDef, indent: str, *, method: bool = False) -> list[str]:
        """Return a function: of numbers alone for the host and the device, otherwise for the host."""
        arguments = node.args.args[1:] if method else node.args.args
        defaults = [None] * (len(arguments) - len(node.args.defaults)) + list(node.args.defaults)
        given = []
        for each, default in zip(arguments, defaults, strict=True):
            kind = self.type(each.annotation)
            by = f"{kind} const&" if kind in self.classes else kind
            given.append(f"{by} {each.arg}" + (f" = {self.expression(default)}" if default else ""))
        body = [each for each in node.body if not _is_text(each)]
        scalar = all(self.type(each.annotation) not in self.classes for each in arguments)
        constant = scalar and "sqrt" not in ast.unparse(node)  # which is not constexpr
        specifier = "CUTLASS_HOST_DEVICE constexpr" if constant else "inline"
        head = f"{specifier} {self.type(node.returns)} {node.name}({', '.join(given)}){' const' * method} {{"
        assigned = [name for each in ast.walk(node) for name in _assigned(each)]
        scope = _Scope({each.arg for each in arguments}, {name for name in assigned if assigned.count(name) > 1})
        lines = [head, *(f"  {line}" for each in body for line in self.statement(each, scope)), "}"]
        made = [*self.documented(node, indent), *(line for each in lines for line in _wrapped(indent + each))]
        return made if constant else [_HOST, *made, _END]

    def statement(self, node: ast.stmt, scope: _Scope) -> list[str]:
        match node:
            case ast.Return(value=ast.expr() as value):
                return [f"return {self.expression(value)};"]
            case ast.Break():
                return ["break;"]
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                is_number = isinstance(value, ast.Constant) and type(value.value) is int
                kind = "int" if is_number else "auto" if name in scope.changing else "auto const"
                declared = "" if name in scope.names else f"{kind} "
                scope.names.add(name)
                return [f"{declared}{name} = {self.expression(value)};"]
            case ast.AugAssign(target=ast.Name(id=name), op=op, value=value):
                return [f"{name} {_OPERATORS[type(op)][0]}= {self.expression(value)};"]
            case ast.If(test=test, body=body, orelse=orelse):
                made = [f"if ({self.expression(test)}) {{", *self.block(body, scope)]
                return [*made, *(["} else {", *self.block(orelse, scope)] if orelse else []), "}"]
            case ast.While(test=test, body=body, orelse=[]):
                return [f"while ({self.expression(test)}) {{", *self.block(body, scope), "}"]
            case ast.For(target=ast.Name(id=name), iter=over, body=body, orelse=[]):
                inner = self.block(body, _Scope(scope.names | {name}, scope.changing))
                return [f"for ({self.loop(name, over)}) {{", *inner, "}"]
        raise TypeError(f"a statement that C++ has no word for: {ast.unparse(node)}")

    def loop(self, name: str, over: ast.expr) -> str:
        match over:
            case ast.Call(func=ast.Name(id="range"), args=[end]):
                return f"int {name} = 0; {name} < {self.expression(end)}; ++{name}"
            case ast.Call(func=ast.Name(id="range"), args=[begin, end]):
                return f"int {name} = {self.expression(begin)}; {name} < {self.expression(end)}; ++{name}"
        values = self.tuples.get(over.id) if isinstance(over, ast.Name) else None
        return f"int const {name} : {values or self.expression(over)}"

    def block(self, body: Sequence[ast.stmt], scope: _Scope) -> list[str]:
        inner = _Scope(set(scope.names), scope.changing)
        return [f"  {line}" for each in body for line in self.statement(each, inner)]

    def expression(self, node: ast.expr, within: int = 0) -> str:
        """Return an expression, in brackets where operators of the precedence ``within`` would take it apart."""
        made, precedence = self.expression_of(node)
        return f"({made})" if precedence < within else made

    def expression_of(self, node: ast.expr) -> tuple[str, int]:
        """Return an expression and its precedence."""
        match node:
            case ast.Constant(value=bool() as value):
                return str(value).lower(), _PRIMARY
            case ast.Constant(value=int() | float() as value):
                return repr(value), _PRIMARY
            case ast.Name(id=name):
                return _constant(name) if name.isupper() else name, _PRIMARY
            case ast.Attribute(value=ast.Name(id="self"), attr=name):
                return f"{name}()" if name in self.properties else name, _PRIMARY
            case ast.Attribute(value=value, attr=name):
                return f"{self.expression(value, _PRIMARY)}.{name}{'()' * (name in self.properties)}", _PRIMARY
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                return f"!{self.expression(operand, _UNARY)}", _UNARY
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                return f"-{self.expression(operand, _UNARY)}", _UNARY
            case ast.BinOp(left=left, op=ast.Div(), right=right):
                return f"{self.expression(left, 12)} / double({self.expression(right)})", 12
            case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
                sign, level = _OPERATORS[type(op)]
                return f"{self.expression(left, level)} {sign} {self.expression(right, level + 1)}", level
            case ast.BoolOp(op=op, values=values):
                sign, level = _OPERATORS[type(op)]
                # Compilers warn of && within || without brackets.
                return f" {sign} ".join(self.expression(each, 5) for each in values), level
            case ast.Compare(left=left, ops=[op], comparators=[right]) if type(op) in _OPERATORS:
                sign, level = _OPERATORS[type(op)]
                return f"{self.expression(left, level + 1)} {sign} {self.expression(right, level + 1)}", level
            case ast.IfExp(test=test, body=body, orelse=orelse):
                parts = (self.expression(test, 3), self.expression(body, 3), self.expression(orelse, 3))
                return "{} ? {} : {}".format(*parts), _TERNARY
            case ast.Call():
                return self.call(node), _PRIMARY
        raise TypeError(f"an expression that C++ has no word for: {ast.unparse(node)}")

    def call(self, node: ast.Call) -> str:
        given = [self.expression(each) for each in node.args]
        named = {each.arg: self.expression(each.value) for each in node.keywords if each.arg}
        match node.func:
            case ast.Name(id="replace"):
                changes = " ".join(f"changed.{name} = {value};" for name, value in named.items())
                return f"[&](auto changed) {{ {changes} return changed; }}({given[0]})"
            case ast.Name(id=name) if name in self.classes:
                return self.construct(self.classes[name], given, named)
            case ast.Name(id=name) if not named:
                return f"{_CALLS.get(name, name)}({', '.join(given)})"
            case ast.Attribute(value=ast.Name(id="self"), attr=name) if not named:
                return f"{name}({', '.join(given)})"
            case ast.Attribute(value=value, attr=name) if not named:
                return f"{self.expression(value, _PRIMARY)}.{name}({', '.join(given)})"
        raise TypeError(f"a call that C++ has no word for: {ast.unparse(node)}")

    def construct(self, made: ast.ClassDef, given: Sequence[str], named: dict[str, str]) -> str:
        """Return the fields of a class in their order, up to the last one that is given."""
        fields = [each for each in made.body if isinstance(each, ast.AnnAssign)]
        values: list[str] = []
        for place, each in enumerate(fields):
            assert isinstance(each.target, ast.Name)
            if place < len(given):
                values.append(given[place])
            elif named:
                assert each.value is not None or each.target.id in named
                default = each.value
                values.append(named.pop(each.target.id, "") or self.expression(default or ast.Constant(0)))
        return f"{made.name}{{{', '.join(values)}}}"


def _is_decorated(node: ast.stmt, by: str) -> TypeGuard[ast.FunctionDef]:
    return isinstance(node, ast.FunctionDef) and by in map(ast.unparse, node.decorator_list)


def _fields(node: ast.ClassDef) -> list[str]:
    targets = [each.target for each in node.body if isinstance(each, ast.AnnAssign)]
    return [each.id for each in targets if isinstance(each, ast.Name)]


class _Scope:
    """The names that are declared here, and the names that the function assigns more than once."""

    def __init__(self, names: set[str], changing: set[str]) -> None:
        self.names, self.changing = names, changing


def _assigned(node: ast.AST) -> Iterator[str]:
    match node:
        case ast.Assign(targets=[ast.Name(id=name)]) | ast.AugAssign(target=ast.Name(id=name)):
            yield name


def _is_text(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _constant(name: str) -> str:
    """Return a constant's name in C++: ``MAX_TAPS`` is kMaxTaps."""
    return "k" + "".join(part.capitalize() for part in name.split("_"))


def _wrapped(line: str) -> list[str]:
    """Return a line of C++ in lines that are not too long, which end after a separator or an operator."""
    indent = line[: len(line) - len(line.lstrip())]
    joined = indent + _INNER_SPACE.sub("\0", line.lstrip())
    lines = textwrap.wrap(joined, _LINE, subsequent_indent=indent + "    ", break_long_words=False)
    return [each.replace("\0", " ") for each in lines]
