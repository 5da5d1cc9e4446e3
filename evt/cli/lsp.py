"""``evt lsp``: the language server."""

from __future__ import annotations

import gc

import click

from evt.cli.invocation import operation_option


@click.command("lsp", epilog="Example: evt lsp --import functions.py")
@operation_option
def command(op: str | None) -> None:
    """Serve an editor by the Language Server Protocol.

    It reads standard input and writes standard output. The server shows diagnostics while a program is written, the
    type, modes and meaning of each word, completions and definitions, and formats programs as `evt fmt` does. It needs
    pygls: pip install pygls.
    """
    from evt.ir.lower import OPERATIONS, unknown_operation
    from evt.request import GROUPED

    if op is not None and op not in (*OPERATIONS, GROUPED):
        raise click.UsageError(f"There is no operation `{op}`: {unknown_operation(op)}.")
    try:
        from evt.editor.server import serve
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("pygls", "lsprotocol"):
            raise
        raise click.UsageError("`evt lsp` needs pygls: pip install pygls.") from error
    gc.enable()  # a server runs for long
    serve(op or "gemm")
