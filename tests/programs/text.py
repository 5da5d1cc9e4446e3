"""A program as the text that evt reads: ``statements(program)``, and the settings of the program."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from .tree import (
    Acc,
    Block,
    Call,
    Cast,
    Dropout,
    Element,
    Expression,
    Input,
    Interleave,
    Iota,
    Number,
    Output,
    Pair,
    Program,
    Rand,
    Read,
    Reduce,
    Size,
    Style,
    index_name,
)


def describe_call(program: Program) -> str:
    """Return the settings of a program, which its text does not hold."""
    parts = [f"operation {program.operation}", f"A {program.a}", f"B {program.b}"]
    parts += [f"{key}={value!r}" for key, value in program.settings]
    parts += ["views"] if program.views else []
    if program.geometry:
        parts.append(f"{program.geometry}")
    else:
        parts.append(f"{program.groups or program.sizes}")
    given = [f"{each.name} {each.given}" for each in program.inputs if each.given != "tensor"]
    return f"# seed {program.seed}: {', '.join([*parts, f'data {program.data}', *given])}"


def statements(program: Program) -> Iterator[str]:
    if program.header:
        operands = zip("AB", (program.a, program.b), program.header, strict=True)
        written = (f"{name}: {dtype}" + (f"[{', '.join(modes)}]" if modes else "") for name, dtype, modes in operands)
        operation = "gemm" if program.operation == "grouped_gemm" else program.operation
        yield f"{operation}({', '.join(written)})"
    style = program.style
    declared = [declaration(each, style.subscript_first) for each in program.inputs if each.declared]
    if declared and style.together:
        yield f"in {', '.join(declared)}"
    else:
        yield from (f"in {each}" for each in declared)
    at_assignment = {each.name: _subscript(each) for each in program.outputs if style.assigned and each.subscript}
    if program.declares_outputs:
        outputs = []
        for each in program.outputs:
            subscript = _subscript(each) if each.subscript and not style.assigned else ""
            outputs.append(_typed(each.name, each.type, subscript, style.subscript_first))
        yield f"out {', '.join(outputs)}"
    for define in program.defines:
        yield f"def {define.name}({', '.join(define.parameters)}) = {_shown(define.body, style)}"
    for name in dict.fromkeys(each.operand for each in program.factors):
        yield f"{name} = {_scaled(name, program)}"
    for assign in (*program.feeds, *program.assigns):
        yield f"{assign.name}{at_assignment.get(assign.name, '')} = {_shown(assign.value, style)}"


def _scaled(name: str, program: Program) -> str:
    """Return an operand times its factors."""
    text = name
    for each in program.factors:
        if each.operand == name:
            text = f"({text})/{each.name}" if each.divides else f"{each.name}*({text})"
    return text


def _subscript(value: Input | Output) -> str:
    return f"[{', '.join(written_modes(value))}]"


def _typed(name: str, dtype: str | None, subscript: str, subscript_first: bool) -> str:
    if not dtype:
        return name + subscript
    return f"{name}{subscript}: {dtype}" if subscript_first else f"{name}: {dtype}{subscript}"


def _shown(node: Expression, style: Style) -> str:
    return show_sparse(node) if style.sparse else show(node)


def declaration(value: Input, subscript_first: bool = False) -> str:
    modes = written_modes(value)
    subscript = ", ".join(f"{mode}?" if value.flexible and mode != "l" else mode for mode in modes)
    text = _typed(value.name, value.type, f"[{subscript}]" if subscript else "", subscript_first)
    return text + (f" = {value.default}" if value.default else "")


def written_modes(value: Input | Output) -> list[str]:
    """Return the modes of a subscript, with the indices: ``index_m[m]``."""
    found = {index[-1]: f"{index_name(index)}[{', '.join(index)}]" for index in value.indexed}
    return [found.get(mode, mode) for mode in value.modes]


def show(node: Expression) -> str:
    """Return an expression, with parentheses around every operation."""
    if _is_operation(node):
        return f"({_operation(node, show, show)})"
    if isinstance(node, Number) and node.text.startswith("-"):
        return f"({node.text})"
    return _atom(node, show)


#: The precedence of operators in grammar/evt.lark; ``_ATOM`` is an expression without parentheses.
_BINDING = {
    "||": 1,
    "&&": 2,
    "!": 3,
    "+": 5,
    "-": 5,
    "*": 6,
    "/": 6,
    "**": 8,
    **dict.fromkeys(("<", "<=", ">", ">=", "==", "!="), 4),
}
_SIGN, _ATOM = 7, 9


def show_sparse(node: Expression, least: int = 0) -> str:
    """Return an expression with the parentheses that it needs as an operand of an operator that binds so tightly."""
    if isinstance(node, Number) and node.text.startswith("-"):
        own, text = _SIGN, node.text
    elif _is_operation(node):
        assert isinstance(node, Call)
        if len(node.arguments) == 1:
            own = first = _SIGN if node.word == "-" else _BINDING[node.word]
            second = first
        else:
            own = _BINDING[node.word]
            first = {"**": _ATOM}.get(node.word, own + 1 if own == _BINDING["<"] else own)
            second = {"**": _SIGN}.get(node.word, own + 1)
        text = _operation(node, lambda x: show_sparse(x, first), lambda x: show_sparse(x, second))
    else:
        return _atom(node, show_sparse)
    return f"({text})" if own < least else text


def _is_operation(node: Expression) -> bool:
    return isinstance(node, Call) and bool(node.word) and not node.word[0].isalpha()


def _operation(node: Expression, first: Callable[[Expression], str], second: Callable[[Expression], str]) -> str:
    assert isinstance(node, Call)
    if len(node.arguments) == 1:
        return f"{node.word}{first(node.arguments[0])}"
    return f"{first(node.arguments[0])} {node.word} {second(node.arguments[1])}"


def _atom(node: Expression, inner: Callable[[Expression], str]) -> str:
    """Return an expression that is no operation; ``inner`` writes its arguments."""
    match node:
        case Acc():
            return "acc"
        case Element(operand):
            return operand
        case Number(text):
            return text
        case Read(name, subscript):
            return name + subscript
        case Cast(dtype, x, word):
            return f"{word or dtype}({inner(x)})"
        case Reduce(kind, modes, x):
            return f"{kind}[{', '.join(modes)}]({inner(x)})"
        case Block(kind, width, x):
            return f"{kind}[n%{width}]({inner(x)})"
        case Pair(member, distance, x):
            return f"{('even', 'odd')[member]}({inner(x)}{f', {distance}' if distance > 1 else ''})"
        case Interleave(x, y, distance):
            return f"interleave({inner(x)}, {inner(y)}{f', {distance}' if distance > 1 else ''})"
        case Iota(mode):
            return f"iota({mode})"
        case Size(mode):
            return f"size({mode})"
        case Rand(seed, offset):
            return f"rand({inner(seed)}, {inner(offset)})"
        case Dropout(x, p, seed, offset):
            return f"dropout({inner(x)}, {inner(p)}, {inner(seed)}, {inner(offset)})"
        case Call(arguments=arguments, names=names):
            texts = [inner(each) for each in arguments]
            first = len(arguments) - len(names)
            named = [f"{name}={text}" for name, text in zip(names, texts[first:], strict=True)]
            return f"{node.word or node.function}{chr(39) * node.primes}({', '.join([*texts[:first], *named])})"
