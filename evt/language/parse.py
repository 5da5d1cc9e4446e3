"""Text to tree: ``parse(source) -> Tree``.

The text is split into tokens once. Statements end at a line end or ``;`` outside brackets; a line that ends with a
comma continues. Each statement is parsed separately, so that several mistakes are reported together.
"""

from __future__ import annotations

import io
import json
import re
import sys
from collections.abc import Iterable, Iterator
from functools import cache
from typing import Any

import lark
from lark.lexer import BasicLexer

from evt import resources
from evt.diagnostics import MAX_DIAGNOSTICS, Diagnostic, Source, Span, first
from evt.errors import ProgramError
from evt.language import tree as syntax
from evt.language.mistakes import explain, odd_character, unbalanced, unclosed
from evt.storage import derived

_OPENING = {"LPAR": "RPAR", "LSQB": "RSQB"}
_OPERATORS = frozenset(("+", "-", "*", "/", "**", "<=", ">=", "==", "!=", "<", ">", "||", "&&", "!"))
_CLOSING = {closing: opening for opening, closing in _OPENING.items()}


#: A text that names a file.
_FILE = re.compile(r"[^\n;=#*()]{1,4096}\.(evt|txt)")


#: The options of the parser.
_OPTIONS: dict[str, Any] = {
    "parser": "lalr",
    "lexer": "basic",
    "start": "statement",
    "propagate_positions": True,
    "maybe_placeholders": False,
}


class _KeepAll:
    """A lexer callback that keeps the terminals which only the statement splitter uses."""

    always_accept = ("NEWLINE", "INVALID")

    def process(self, stream: Iterator[lark.Token]) -> Iterator[lark.Token]:
        return stream


class _Builder:
    """A builder of the tree, bottom-up: one node for each grammar rule. It decides nothing and cannot fail."""

    def build(self, root: lark.Tree[lark.Token]) -> syntax.Statement:
        """Return the tree of parsed rules, iteratively, because formulas may nest thousands deep."""
        stack, preorder = [root], []
        while stack:
            node = stack.pop()
            preorder.append(node)
            stack.extend(child for child in node.children if isinstance(child, lark.Tree))
        built: dict[int, Any] = {}
        for node in reversed(preorder):
            items = [built[id(child)] if isinstance(child, lark.Tree) else child for child in node.children]
            built[id(node)] = getattr(self, str(node.data))(node.meta, items)
        statement: syntax.Statement = built[id(root)]
        return statement

    def mode(self, meta: Any, items: list[Any]) -> syntax.Mode:
        return syntax.Mode("".join(items), _span(meta).end > items[-1].end_pos, _span(meta))

    def indexed(self, meta: Any, items: list[Any]) -> syntax.Mode:
        return syntax.Mode(str(items[0]), False, _span(meta), items[1])

    def subscript(self, meta: Any, items: list[Any]) -> syntax.Subscript:
        return syntax.Subscript(tuple(items), _span(meta))

    def type(self, meta: Any, items: list[Any]) -> syntax.Identifier:
        return _identifier(items[0])

    def constant(self, meta: Any, items: list[Any]) -> syntax.Constant:
        return syntax.Constant("".join(items).removeprefix("+"), _span(meta))

    def operand(self, meta: Any, items: list[Any]) -> syntax.Operand:
        return syntax.Operand(_identifier(items[0]), items[1], items[2] if len(items) > 2 else None, _span(meta))

    def declaration(self, meta: Any, items: list[Any]) -> syntax.Declaration:
        parts = {type(item): item for item in items[1:]}
        return syntax.Declaration(
            _identifier(items[0]),
            parts.get(syntax.Identifier),
            parts.get(syntax.Subscript),
            parts.get(syntax.Constant),
            _span(meta),
        )

    def header(self, meta: Any, items: list[Any]) -> syntax.Header:
        return syntax.Header(_identifier(items[0]), tuple(items[1:]), _span(meta))

    def inputs(self, meta: Any, items: list[Any]) -> syntax.Inputs:
        return syntax.Inputs(tuple(items), _span(meta))

    def outputs(self, meta: Any, items: list[Any]) -> syntax.Outputs:
        return syntax.Outputs(tuple(items), _span(meta))

    def define(self, meta: Any, items: list[Any]) -> syntax.Define:
        name, *parameters, body = items
        return syntax.Define(_identifier(name), tuple(map(_identifier, parameters)), body, _span(meta))

    def assign(self, meta: Any, items: list[Any]) -> syntax.Assign:
        subscript = items[1] if len(items) == 3 else None
        return syntax.Assign(_identifier(items[0]), subscript, items[-1], _span(meta))

    def binary(self, meta: Any, items: list[Any]) -> syntax.Binary:
        return syntax.Binary(str(items[1]), items[0], items[2], _span(meta))

    compare = binary

    def either(self, meta: Any, items: list[Any]) -> syntax.Binary:
        return syntax.Binary("||", items[0], items[1], _span(meta))

    def both(self, meta: Any, items: list[Any]) -> syntax.Binary:
        return syntax.Binary("&&", items[0], items[1], _span(meta))

    def negate(self, meta: Any, items: list[Any]) -> syntax.Unary:
        return syntax.Unary("!", items[0], _span(meta))

    def sign(self, meta: Any, items: list[Any]) -> syntax.Expression:
        if items[0] == "-":
            return syntax.Unary("-", items[1], _span(meta))
        operand: syntax.Expression = items[1]
        return operand

    def group(self, meta: Any, items: list[Any]) -> syntax.Expression:
        expression: syntax.Expression = items[0]
        return expression

    def number(self, meta: Any, items: list[Any]) -> syntax.Number:
        return syntax.Number(str(items[0]), _span(meta))

    def name(self, meta: Any, items: list[Any]) -> syntax.Name:
        return syntax.Name(str(items[0]), _span(meta))

    def element(self, meta: Any, items: list[Any]) -> syntax.Element:
        return syntax.Element(str(items[0]), items[1], _span(meta))

    def argument(self, meta: Any, items: list[Any]) -> syntax.Argument:
        keyword = _identifier(items[0]) if len(items) == 2 else None
        return syntax.Argument(keyword, items[-1], _span(meta))

    def call(self, meta: Any, items: list[Any]) -> syntax.Call:
        name, *rest = items
        return syntax.Call(
            _identifier(name),
            sum(1 for item in rest if isinstance(item, lark.Token)),
            next((item for item in rest if isinstance(item, syntax.Subscript)), None),
            tuple(item for item in rest if isinstance(item, syntax.Argument)),
            _span(meta),
        )


@cache
def _grammar() -> lark.Lark:
    """Return the parser, whose tables are kept: deriving them takes 50 ms, and loading them 3 ms."""
    text = resources.text("grammar", "evt.lark")
    key = f"lark {lark.__version__}, Python {sys.version}: {_OPTIONS} {text}"
    if tables := derived.find("grammar", key):
        made = lark.Lark.load(io.BytesIO(tables))
    else:
        made = lark.Lark(text, **_OPTIONS, postlex=_KeepAll())
        made.options.postlex = None  # it has decided the terminals
        saved = io.BytesIO()
        made.save(saved)
        derived.keep("grammar", key, saved.getvalue())
    made.lexer = BasicLexer(made.lexer_conf)  # without this, Lark.lex builds a lexer for every text
    return made


def parse(source: Source | str) -> syntax.Tree:
    """Return the tree of a program. Raise ProgramError with every syntax error (E01xx)."""
    if isinstance(source, str):
        source = Source(source)
    if _FILE.fullmatch(source.text.strip()):
        raise ProgramError(_file_name(source))
    diagnostics: list[Diagnostic] = []
    statements: list[syntax.Statement] = []
    for tokens in _statements(source, _grammar().lex(source.text), diagnostics):
        parsed = _parse_statement(source, tokens)
        if isinstance(parsed, Diagnostic):
            diagnostics.append(parsed)
        else:
            statements.append(parsed)
    if not statements and not diagnostics:
        diagnostics.append(
            Diagnostic(
                "E0103",
                "the program is empty",
                Span(0, 0),
                help="write at least `D = acc`",
                source=source,
            )
        )
    if diagnostics:
        raise ProgramError(first(diagnostics))
    return syntax.Tree(tuple(statements), source)


def lex(source: Source) -> list[lark.Token]:
    """Return the tokens of a text, statement ends and stray characters included."""
    return list(_grammar().lex(source.text))


def split(source: Source) -> list[list[lark.Token]]:
    """Return the tokens of each statement of a valid program."""
    return list(_statements(source, _grammar().lex(source.text), []))


def span_of(token: lark.Token) -> Span:
    """Return the place of a token."""
    return _span(token)


def with_primary(source: Source) -> Source:
    """Return the text of a program whose last statement may be an expression, the value of the primary output ``D``.

    A text that cannot be split into statements is returned unchanged; :func:`parse` reports its mistakes.
    """
    if _FILE.fullmatch(source.text.strip()):
        return source
    last: list[lark.Token] = []
    for tokens in _statements(source, _grammar().lex(source.text), []):
        last = tokens
    if not last or not _is_expression(last):
        return source
    start = _span(last[0]).start
    return Source(f"{source.text[:start]}D = {source.text[start:]}", source.name)


def _is_expression(tokens: list[lark.Token]) -> bool:
    """Return whether a statement neither assigns nor declares; ``=`` within brackets names an argument."""
    depth = 0
    for token in tokens:
        depth += (token.type in _OPENING) - (token.type in _CLOSING)
        if token.type in ("IN", "OUT", "DEF", "COLON") or (token.type == "EQUAL" and depth == 0):
            return False
    return True


def _file_name(source: Source) -> Diagnostic:
    """Return the explanation for a file's name instead of a program."""
    name = source.text.strip()
    start = source.text.index(name)
    hint = f"evt.load reads a file: `evt.load({json.dumps(name)})`"
    return Diagnostic(
        "E0101", "this is the name of a file, not a program", Span(start, start + len(name)), "", hint, source=source
    )


def _statements(
    source: Source, tokens: Iterable[lark.Token], diagnostics: list[Diagnostic]
) -> Iterator[list[lark.Token]]:
    """Split the token stream into statements; report stray characters and unbalanced brackets.

    Stop after the largest number of reported mistakes, or of operations.
    """
    statement: list[lark.Token] = []
    open_brackets: list[lark.Token] = []
    broken = False
    operations = 0
    for token in tokens:
        if len(diagnostics) > MAX_DIAGNOSTICS:
            return
        operations += token in _OPERATORS or (token == "(" and bool(statement) and statement[-1].type == "NAME")
        if operations > syntax.MOST_OPERATIONS:
            message = f"the program has more than {syntax.MOST_OPERATIONS} operations"
            hint = "make several programs; each stores the inputs of the next"
            diagnostics.append(Diagnostic("E0413", message, _span(token), "too many", hint, source=source))
            return
        match token.type:
            case "NEWLINE" if open_brackets or (statement and statement[-1].type == "COMMA"):
                continue
            case "NEWLINE":
                if statement and not broken:
                    yield statement
                statement, broken = [], False
                continue
            case "INVALID":
                if not broken:
                    diagnostics.append(odd_character(source, token))
                broken = True
            case kind if kind in _OPENING:
                open_brackets.append(token)
            case kind if kind in _CLOSING:
                if not open_brackets or open_brackets[-1].type != _CLOSING[kind]:
                    if not broken:
                        diagnostics.append(unbalanced(source, token, open_brackets))
                    broken = True
                    open_brackets = []
                else:
                    open_brackets.pop()
        statement.append(token)
    if open_brackets and not broken:
        diagnostics.append(unclosed(source, open_brackets[-1]))
    elif statement and not broken:
        yield statement


def _parse_statement(source: Source, tokens: list[lark.Token]) -> syntax.Statement | Diagnostic:
    parser = _grammar().parse_interactive()
    try:
        for token in tokens:
            parser.feed_token(token)
        return _Builder().build(parser.feed_eof(tokens[-1]))  # type: ignore[no-untyped-call]
    except lark.exceptions.UnexpectedToken as error:
        return explain(source, tokens, error)


def _span(item: Any) -> Span:
    """Return the span of a token or of a rule's meta."""
    return Span(item.start_pos, item.end_pos)


def _identifier(token: lark.Token) -> syntax.Identifier:
    return syntax.Identifier(str(token), _span(token))
