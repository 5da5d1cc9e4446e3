"""Where a command's result goes: standard output as UTF-8 in any locale, or a file that is written as a whole."""

from __future__ import annotations

import json as json_format
import os
import stat
import sys
from collections.abc import Callable, Iterable
from typing import IO, TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from evt.diagnostics import Diagnostic

_Command = TypeVar("_Command", bound=Callable[..., Any])
_JSON = "evt.cli.json"
#: The control characters that lay out text.
_LAYOUT = "\n\t"


def json_option(command: _Command) -> _Command:
    """Add ``--json``: the command gets ``json``, and its diagnostics are printed as JSON too."""

    def remember(ctx: click.Context, parameter: click.Parameter, value: bool) -> bool:
        ctx.meta[_JSON] = value
        return value

    return click.option(
        "--json", is_flag=True, callback=remember, help="Print JSON, diagnostics too, on standard output."
    )(command)


def wants_json(ctx: click.Context) -> bool:
    """Return whether the command of this invocation was given ``--json``."""
    return bool(ctx.meta.get(_JSON))


def output_option(help: str, *, required: bool = False) -> Callable[[_Command], _Command]:
    """Add ``-o FILE``: the command gets ``output``, for :func:`write`."""
    return click.option("-o", "--output", type=_OutputPath(), required=required, help=help)


class _OutputPath(click.ParamType):  # type: ignore[type-arg]  # generic since click 8.4
    """A file to write. One that cannot be written is refused before the work begins."""

    name = "file"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        path = str(value)
        if path == "-":
            return path
        problem = ""
        parent = os.path.dirname(os.path.realpath(path)) if "\0" not in path else ""
        if not path or not parent:
            problem = "it is not a file name"
        elif os.path.isdir(path):
            problem = "it is a directory"
        elif not os.path.isdir(parent):
            problem = f"there is no directory {parent}"
        elif _is_plain(path) and not os.access(parent, os.W_OK):
            problem = f"the directory {parent} is not writable"
        if problem:
            self.fail(f"cannot write {path!r}: {problem}.", param, ctx)
        return path


def write(path: str | None, data: str | bytes, *, executable: bool = False) -> None:
    """Write a result to a file, or to standard output for None and ``-``.

    A regular file is replaced in one rename: readers see the old file or the new one, never half of it. Raise
    click.BadParameter when it cannot be written.
    """
    data = data.encode() if isinstance(data, str) else data
    if path is None or path == "-":
        _write_out(data)
        return
    try:
        if _is_plain(path):
            _replace(os.path.realpath(path), data, 0o777 if executable else 0o666)
        else:
            with open(path, "wb") as file:  # /dev/null, a pipe
                file.write(data)
    except BrokenPipeError:
        raise
    except OSError as error:
        message = f"cannot write {path!r}: {error.strerror or error}."
        raise click.BadParameter(message, param_hint="'-o' / '--output'") from error


def print_text(text: str, *, mark: str = "") -> None:
    """Print a line, or several, to standard output, after a ``mark`` that may have colours."""
    from evt.diagnostics import visible

    _write_out(f"{mark}{visible(text, keep=_LAYOUT)}\n".encode())


def print_path(path: str) -> None:
    """Print a file's name to standard output, for other programs: unchanged, unless a terminal reads it."""
    if sys.stdout.isatty():
        print_text(path)
    else:
        _write_out(os.fsencode(path) + b"\n")


def print_json(value: object) -> None:
    """Print a JSON document to standard output."""
    print_text(json_format.dumps(value, indent=2, allow_nan=False))


def report(diagnostics: Iterable[Diagnostic], *, json: bool = False) -> None:
    """Print diagnostics: for people to standard error, or as JSON to standard output."""
    from evt.diagnostics import render_all

    if json:
        print_json({"ok": False, "diagnostics": [diagnostic.to_json() for diagnostic in diagnostics]})
    else:
        click.echo(render_all(diagnostics, color=use_color(sys.stderr)), err=True)


def use_color(stream: IO[str]) -> bool:
    """Return whether to use colours: on terminals, unless the user asked for none."""
    try:
        return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    except ValueError:  # closed
        return False


def progress(text: str) -> None:
    """Print a step that takes a while to standard error, if that is a terminal."""
    if sys.stderr is not None and sys.stderr.isatty():
        from evt.diagnostics import visible

        click.echo(f"evt: {visible(text)}", err=True)


def _write_out(data: bytes) -> None:
    sys.stdout.flush()
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()


def _is_plain(path: str) -> bool:
    """Return whether a path is a regular file, or none yet."""
    try:
        return stat.S_ISREG(os.stat(path).st_mode)
    except OSError:
        return True


def _replace(path: str, data: bytes, mode: int) -> None:
    temporary = os.path.join(os.path.dirname(path), f".evt-{os.urandom(8).hex()}")
    try:
        with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
            file.write(data)
        if os.path.exists(path):
            os.chmod(temporary, stat.S_IMODE(os.stat(path).st_mode))
        os.replace(temporary, path)
    except BaseException:
        if os.path.exists(temporary):
            os.unlink(temporary)
        raise
