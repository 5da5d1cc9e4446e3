"""Output of a command: standard output as UTF-8 in any locale, or a file that is written atomically."""

from __future__ import annotations

import json as json_format
import os
import stat
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from typing import IO, TYPE_CHECKING, Any, TypeVar

import click
from click.shell_completion import CompletionItem

from evt.version import JSON_SCHEMA

if TYPE_CHECKING:
    from evt.diagnostics import Diagnostic

_Command = TypeVar("_Command", bound=Callable[..., Any])
_JSON = "evt.cli.json"
#: The control characters that lay out text.
_LAYOUT = "\n\t"


def json_option(command: _Command) -> _Command:
    """Add ``--json``. The command gets ``json``, and its diagnostics are printed as JSON too."""

    def remember(ctx: click.Context, parameter: click.Parameter, value: bool) -> bool:
        ctx.meta[_JSON] = value
        return value

    return click.option(
        "--json", is_flag=True, callback=remember, help="Print JSON on standard output, also for diagnostics."
    )(command)


def wants_json(ctx: click.Context) -> bool:
    """Return whether the command of this invocation was given ``--json``."""
    return bool(ctx.meta.get(_JSON))


def output_option(help: str, *, required: bool = False) -> Callable[[_Command], _Command]:
    """Add ``-o FILE``: the command gets ``output``, for :func:`write`."""
    return click.option("-o", "--output", type=OutputPath(), required=required, help=help)


class OutputPath(click.ParamType):  # type: ignore[type-arg]  # generic since click 8.4
    """A file to write. A file that cannot be written is refused before the work begins."""

    name = "file"

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        return [CompletionItem(incomplete, type="file")]

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
        elif is_plain(path) and not os.access(parent, os.W_OK):
            problem = f"the directory {parent} is not writable"
        if problem:
            self.fail(f"cannot write {path!r}: {problem}.", param, ctx)
        return path


def write(
    path: str | None,
    data: str | bytes,
    *,
    executable: bool = False,
    beside: tuple[str, str] | None = None,
    option: str = "'-o' / '--output'",
) -> None:
    """Write a result to a file, or to standard output for None and ``-``, and a header to ``beside``: (path, text).

    ``option`` is the parameter of the command line that names the file, for messages.

    A regular file is replaced in one rename, so readers see either the old file or the new one. No file is replaced if
    one of them cannot be written. Raise click.BadParameter then.
    """
    data = data.encode() if isinstance(data, str) else data
    if beside is not None and path and is_plain(path) and os.path.realpath(path) == os.path.realpath(beside[0]):
        raise click.BadParameter(f"{path!r} is the same file as the output.", param_hint="'--header'")
    files = [(path, data, 0o777 if executable else 0o666, option)]
    if beside is not None:
        files.insert(0, (beside[0], beside[1].encode(), 0o666, "'--header'"))
    with ExitStack() as staged:
        renames = []
        for name, content, mode, option in files:
            with _refusal(name, option):
                if name is None or name == "-":
                    _write_out(content)
                elif is_plain(name):
                    renames.append((_staged(os.path.realpath(name), content, mode, staged), name, option))
                else:
                    with open(name, "wb") as file:  # /dev/null, a pipe
                        file.write(content)
        for temporary, name, option in renames:
            with _refusal(name, option):
                os.replace(temporary, os.path.realpath(name))


@contextmanager
def _refusal(path: str | None, option: str) -> Iterator[None]:
    """Raise click.BadParameter for an option whose file cannot be written."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        if path is None or path == "-":
            raise
        message = f"cannot write {path!r}: {error.strerror or error}."
        raise click.BadParameter(message, param_hint=option) from error


def print_text(text: str, *, mark: str = "") -> None:
    """Print lines to standard output, after a ``mark`` that may have colours."""
    from evt.diagnostics import visible

    _write_out(f"{mark}{visible(text, keep=_LAYOUT)}\n".encode())


def print_path(path: str) -> None:
    """Print a file's name to standard output: unchanged for other programs, escaped on a terminal."""
    if sys.stdout.isatty():
        print_text(path)
    else:
        _write_out(os.fsencode(path) + b"\n")


def json_text(value: Mapping[str, object]) -> str:
    """Return a JSON document, which begins with the version of its schema."""
    return json_format.dumps({"schema": JSON_SCHEMA, **value}, indent=2, allow_nan=False)


def print_json(value: Mapping[str, object]) -> None:
    """Print a JSON document to standard output."""
    print_text(json_text(value))


def report(diagnostics: Iterable[Diagnostic], *, json: bool = False) -> None:
    """Print diagnostics: as text to standard error, or as JSON to standard output."""
    from evt.diagnostics import render_all

    if json:
        print_json({"ok": False, "diagnostics": [diagnostic.to_json() for diagnostic in diagnostics]})
    else:
        color = use_color(sys.stderr)
        click.echo(render_all(diagnostics, color=color), err=True, color=color)


def use_color(stream: IO[str]) -> bool:
    """Return whether to use colours. NO_COLOR, FORCE_COLOR and CLICOLOR_FORCE decide; otherwise only terminals get
    them.
    """
    asked = {name: os.environ.get(name, "") for name in ("NO_COLOR", "FORCE_COLOR", "CLICOLOR_FORCE", "CLICOLOR")}
    if asked["NO_COLOR"]:
        return False
    if any(asked[name] not in ("", "0") for name in ("FORCE_COLOR", "CLICOLOR_FORCE")):
        return True
    try:
        return (
            stream.isatty()
            and os.environ.get("TERM") != "dumb"
            and "0" not in (asked["FORCE_COLOR"], asked["CLICOLOR"])
        )
    except ValueError:  # closed
        return False


def progress(text: str) -> None:
    """Print the current step to standard error, if that is a terminal."""
    if sys.stderr is not None and sys.stderr.isatty():
        from evt.diagnostics import visible

        click.echo(f"evt: {visible(text)}", err=True)


def _write_out(data: bytes) -> None:
    sys.stdout.flush()
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()


def is_plain(path: str) -> bool:
    """Return whether a path is a regular file or does not exist yet."""
    try:
        return stat.S_ISREG(os.stat(path).st_mode)
    except OSError:
        return True


def _staged(path: str, data: bytes, mode: int, staged: ExitStack) -> str:
    """Write a file next to its destination, with the destination's mode, and return its name.

    ``staged`` removes files that were not renamed.
    """
    temporary = os.path.join(os.path.dirname(path), f".evt-{os.urandom(8).hex()}")
    staged.callback(_remove, temporary)
    with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
        file.write(data)
    if os.path.exists(path):
        os.chmod(temporary, stat.S_IMODE(os.stat(path).st_mode))
    return temporary


def _remove(path: str) -> None:
    with suppress(FileNotFoundError):  # renamed
        os.unlink(path)
