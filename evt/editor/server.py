"""The language server, by pygls: ``serve(operation)``.

A text is analysed whenever it changes. A program has at most a megabyte, so clients send it whole.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from lsprotocol import types as lsp
from pygls.lsp.server import LanguageServer

from evt.diagnostics import Diagnostic, Source, Span
from evt.editor.completion import complete
from evt.editor.document import Document, Kind
from evt.editor.hover import hover
from evt.version import __version__

_SYMBOLS: dict[Kind, lsp.SymbolKind] = {
    "input": lsp.SymbolKind.Field,
    "output": lsp.SymbolKind.Property,
    "value": lsp.SymbolKind.Variable,
    "function": lsp.SymbolKind.Function,
}
_COMPLETIONS = {
    "keyword": lsp.CompletionItemKind.Keyword,
    "function": lsp.CompletionItemKind.Function,
    "variable": lsp.CompletionItemKind.Variable,
    "type": lsp.CompletionItemKind.TypeParameter,
    "mode": lsp.CompletionItemKind.EnumMember,
}
_SEVERITIES = {"error": lsp.DiagnosticSeverity.Error, "warning": lsp.DiagnosticSeverity.Warning}


def serve(operation: str) -> None:
    """Serve a client on standard input and output. ``operation`` applies to programs without a header."""
    server = LanguageServer("evt", __version__, lsp.TextDocumentSyncKind.Full)
    services = _Services(server, operation)
    handlers: dict[str, Callable[[Any], object]] = {
        lsp.TEXT_DOCUMENT_DID_OPEN: services.publish,
        lsp.TEXT_DOCUMENT_DID_CHANGE: services.publish,
        lsp.TEXT_DOCUMENT_DID_CLOSE: services.close,
        lsp.TEXT_DOCUMENT_HOVER: services.hover,
        lsp.TEXT_DOCUMENT_COMPLETION: services.complete,
        lsp.TEXT_DOCUMENT_DEFINITION: services.define,
        lsp.TEXT_DOCUMENT_DOCUMENT_SYMBOL: services.list_symbols,
        lsp.TEXT_DOCUMENT_FORMATTING: services.format,
    }
    options = {lsp.TEXT_DOCUMENT_COMPLETION: lsp.CompletionOptions(trigger_characters=[":", "["])}
    for method, handler in handlers.items():
        server.feature(method, options.get(method))(partial(handler))  # pygls sets attributes, which a method lacks
    with open(0, "rb", closefd=False) as received, open(1, "wb", closefd=False) as sent:  # pygls closes its streams
        server.start_io(received, sent)


class _Services:
    """The answers to a client's requests."""

    def __init__(self, server: LanguageServer, operation: str) -> None:
        self._server, self._operation = server, operation
        self._opened: dict[str, _Opened] = {}

    def publish(self, params: lsp.DidOpenTextDocumentParams | lsp.DidChangeTextDocumentParams) -> None:
        uri = params.text_document.uri
        opened = self._find(uri)
        found = [opened.diagnostic(each) for each in opened.document.diagnostics]
        self._server.text_document_publish_diagnostics(lsp.PublishDiagnosticsParams(uri, found))

    def close(self, params: lsp.DidCloseTextDocumentParams) -> None:
        uri = params.text_document.uri
        self._opened.pop(uri, None)
        self._server.text_document_publish_diagnostics(lsp.PublishDiagnosticsParams(uri, []))

    def hover(self, params: lsp.HoverParams) -> lsp.Hover | None:
        opened = self._find(params.text_document.uri)
        found = hover(opened.document, opened.offset(params.position))
        if found is None:
            return None
        return lsp.Hover(lsp.MarkupContent(lsp.MarkupKind.Markdown, found.text), opened.range(found.span))

    def complete(self, params: lsp.CompletionParams) -> list[lsp.CompletionItem]:
        opened = self._find(params.text_document.uri)
        return [
            lsp.CompletionItem(each.label, kind=_COMPLETIONS[each.kind], detail=each.detail, documentation=each.text)
            for each in complete(opened.document, opened.offset(params.position))
        ]

    def define(self, params: lsp.DefinitionParams) -> lsp.Location | None:
        opened = self._find(params.text_document.uri)
        place = opened.document.definition_at(opened.offset(params.position))
        return None if place is None else lsp.Location(opened.uri, opened.range(place))

    def list_symbols(self, params: lsp.DocumentSymbolParams) -> list[lsp.DocumentSymbol]:
        opened = self._find(params.text_document.uri)
        return [
            lsp.DocumentSymbol(each.name, _SYMBOLS[each.kind], opened.range(each.statement), opened.range(each.span))
            for each in opened.document.definitions
            if each.kind in _SYMBOLS
        ]

    def format(self, params: lsp.DocumentFormattingParams) -> list[lsp.TextEdit]:
        opened = self._find(params.text_document.uri)
        before, after = opened.document.source.text, opened.document.formatted()
        if after is None or after == before:
            return []
        return [lsp.TextEdit(opened.range(Span(0, len(before))), after)]

    def _find(self, uri: str) -> _Opened:
        """Return the client's current text; an unchanged text is not analysed again."""
        text = self._server.workspace.get_text_document(uri).source
        known = self._opened.get(uri)
        if known is None or known.text != text:
            document = Document(Source(text, uri.rpartition("/")[2]), self._operation)
            known = _Opened(uri, text, document, self._server)
            self._opened[uri] = known
        return known


class _Opened:
    """A text of the client, and its places in the client's units."""

    def __init__(self, uri: str, text: str, document: Document, server: LanguageServer) -> None:
        self.uri, self.text, self.document = uri, text, document
        self._count = server.workspace.position_codec.client_num_units

    def diagnostic(self, diagnostic: Diagnostic) -> lsp.Diagnostic:
        help_line = [f"help: {diagnostic.help}"] if diagnostic.help else []
        related = [
            lsp.DiagnosticRelatedInformation(lsp.Location(self.uri, self.range(label.span)), label.text)
            for label in diagnostic.secondary
        ]
        return lsp.Diagnostic(
            self.range(diagnostic.span or Span(0, 0)),
            "\n".join((diagnostic.message, *help_line, *diagnostic.notes)),
            _SEVERITIES[diagnostic.severity],
            diagnostic.code,
            source="evt",
            related_information=related or None,
        )

    def range(self, span: Span) -> lsp.Range:
        return lsp.Range(self._position(span.start), self._position(span.end))

    def _position(self, offset: int) -> lsp.Position:
        line, column = self.document.source.position(offset)
        return lsp.Position(line - 1, self._count(self.document.source.text[offset - column + 1 : offset]))

    def offset(self, position: lsp.Position) -> int:
        """Return the offset of a position. A position beyond a line is the end of the line."""
        lines = self.document.source.text.split("\n")
        if position.line >= len(lines):
            return len(self.document.source.text)
        column, units = 0, 0
        for character in lines[position.line]:
            if units >= position.character:
                break
            column, units = column + 1, units + self._count(character)
        return sum(len(line) + 1 for line in lines[: position.line]) + column
