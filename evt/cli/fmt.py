"""``evt fmt``: programs in canonical layout."""

from __future__ import annotations

import difflib
from dataclasses import dataclass

import click

from evt.cli.invocation import is_file, read_source
from evt.cli.output import json_option, print_json, print_text, report, write
from evt.cli.sections import files
from evt.diagnostics import Diagnostic


@dataclass(frozen=True)
class _Formatted:
    """A program before and after. After a mistake, ``after`` is ``before``."""

    name: str
    path: str | None
    before: str
    after: str
    mistakes: tuple[Diagnostic, ...] = ()

    @property
    def is_changed(self) -> bool:
        return self.after != self.before


@click.command("fmt", epilog="Example: evt fmt --check samples/*.evt")
@click.argument("programs", nargs=-1, required=True, metavar="PROGRAM...", shell_complete=files)
@click.option("--check", is_flag=True, help="Write nothing; name the programs that would change, with exit code 1.")
@click.option("--diff", is_flag=True, help="Write nothing; print the changes.")
@json_option
@click.pass_context
def command(ctx: click.Context, programs: tuple[str, ...], check: bool, diff: bool, json: bool) -> None:
    """Format programs.

    Files are formatted in place; a formula or standard input goes to standard output. The formatter changes white space
    alone, and gives each statement its own line. Comments stay. A file is replaced in one step, and only if it changes.
    A program with a syntax error is reported, and its file is not written.
    """
    found = [_format(text) for text in programs]
    for each in found:
        if not check and not diff and each.path is not None and each.is_changed:
            write(each.path, each.after, option="'PROGRAM...'")
        if not json and not each.mistakes:
            _show(each, check, diff)
    mistakes = [mistake for each in found for mistake in each.mistakes]
    ok = not mistakes and not (check and any(each.is_changed for each in found))
    if json:
        documents = [
            {
                "name": each.name,
                "changed": each.is_changed,
                "text": each.after,
                "diagnostics": [mistake.to_json() for mistake in each.mistakes],
            }
            for each in found
        ]
        print_json({"ok": ok, "diagnostics": [mistake.to_json() for mistake in mistakes], "programs": documents})
    elif mistakes:
        report(mistakes)
    ctx.exit(0 if ok else 1)


def _format(text: str) -> _Formatted:
    from evt.errors import ProgramError
    from evt.language import format_text

    path = text if is_file(text) else None
    name, before = path or "<formula>", ""
    try:
        source = read_source(text)
        name, before = source.name, source.text
        return _Formatted(name, path, before, format_text(source))
    except ProgramError as error:
        return _Formatted(name, path, before, before, error.diagnostics)


def _show(formatted: _Formatted, check: bool, diff: bool) -> None:
    if diff:
        before, after = formatted.before.split("\n"), formatted.after.split("\n")
        names = (formatted.name, f"{formatted.name}, formatted")
        if changes := list(difflib.unified_diff(before, after, *names, lineterm="")):
            print_text("\n".join(changes))
    elif check and formatted.is_changed:
        print_text(f"{formatted.name}: would change")
    elif not check and formatted.path is None:
        print_text(formatted.after.rstrip("\n"))
