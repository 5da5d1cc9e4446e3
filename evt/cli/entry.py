"""The group of commands, which imports each command on demand, and the exit codes of the process.

0 success, 1 diagnostics, 2 usage (click's own), 3 a bug in evt; by the shell's convention, 130 interrupted and 141 if
the reader of standard output went away.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import sys
import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from evt.cli import output, sections
from evt.cli.streams import UnwritableError, take_over
from evt.version import __version__

if TYPE_CHECKING:
    from evt.diagnostics import Diagnostic

DIAGNOSTICS, BUG, INTERRUPTED, BROKEN_PIPE = 1, 3, 130, 141

#: The commands. Each command is the function ``command`` in the module of its name.
COMMANDS = tuple(name for names in sections.COMMANDS.values() for name in names)


class Entry(click.Group):
    """A click group that imports a command's module on demand and converts exceptions to exit codes."""

    def __call__(self, *args: Any, **options: Any) -> Any:
        """Run the process.

        The garbage collector is off, because a command's objects live until the process ends: this saves a fifth of the
        time.
        """
        gc.disable()
        take_over()
        warnings.showwarning = _show_warning
        try:
            try:
                return super().__call__(*args, **{"prog_name": "evt", **options})
            finally:
                sys.stdout.flush()
        except UnwritableError as error:
            if not str(error):
                sys.exit(BROKEN_PIPE)
            click.echo(f"Error: {error}", err=True)
            sys.exit(DIAGNOSTICS)
        finally:
            gc.freeze()  # nor when the interpreter exits

    def make_context(self, *args: Any, **options: Any) -> click.Context:
        with _visible():
            return super().make_context(*args, **options)

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        limit = formatter.width - 6 - max(map(len, COMMANDS))
        for section, names in sections.COMMANDS.items():
            commands = ((name, self.get_command(ctx, name)) for name in names)
            with formatter.section(section):
                formatter.write_dl([(name, each.get_short_help_str(limit)) for name, each in commands if each])

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = importlib.import_module(f"evt.cli.{cmd_name}").command
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if name in COMMANDS or name.startswith("-"):
            return super().resolve_command(ctx, args)
        from evt.cli.invocation import is_file
        from evt.diagnostics import closest

        if "=" in name or is_file(name):
            raise click.UsageError("A program needs a command before it, as in `evt emit PROGRAM`.", ctx)
        guess = closest(name, COMMANDS)
        hint = f" Did you mean `{guess}`?" if guess else f" Commands: {', '.join(COMMANDS)}."
        raise click.UsageError(f"There is no command `{name}`.{hint}", ctx)

    def invoke(self, ctx: click.Context) -> Any:
        from evt.errors import EvtError, InternalError

        try:
            with _visible(), _needs_torch(ctx), _needs_directory():
                return super().invoke(ctx)
        except click.ClickException as error:
            if isinstance(error, click.UsageError) or not output.wants_json(ctx):
                raise
            output.print_json({"ok": False, "error": error.format_message(), "diagnostics": []})
            ctx.exit(DIAGNOSTICS)
        except (click.exceptions.Exit, click.Abort, UnwritableError):
            raise
        except KeyboardInterrupt:
            ctx.exit(INTERRUPTED)
        except BrokenPipeError:  # of the file given with -o
            ctx.exit(BROKEN_PIPE)
        except InternalError as error:
            _report_bug(ctx, error, error.diagnostics)
        except EvtError as error:
            output.report(error.diagnostics, json=output.wants_json(ctx))
            ctx.exit(DIAGNOSTICS)
        except Exception as error:
            from evt.diagnostics import Diagnostic

            text = " ".join(str(error).split())
            message = f"{type(error).__name__}: {text}" if text else type(error).__name__
            _report_bug(ctx, error, (Diagnostic("E0902", message),))


def _show_warning(message: Warning | str, *_: object, **__: object) -> None:
    """Print a warning for users, without its place in evt's code."""
    click.echo(f"warning: {message}", err=True)


@contextlib.contextmanager
def _visible() -> Iterator[None]:
    """Escape usage errors, because they quote the command line."""
    try:
        yield
    except click.ClickException as error:
        from evt.diagnostics import visible

        said = error.format_message()
        text = visible(said, keep="\n")
        if text == said:
            raise
        if isinstance(error, click.UsageError):
            raise click.UsageError(text, error.ctx) from error
        raise click.ClickException(text) from error


@contextlib.contextmanager
def _needs_torch(ctx: click.Context) -> Iterator[None]:
    """Turn the failed import of a missing PyTorch into an error for the user."""
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise click.ClickException(f"evt {ctx.invoked_subcommand} needs PyTorch: pip install torch") from error


@contextlib.contextmanager
def _needs_directory() -> Iterator[None]:
    """Turn a relative path in a working directory that was removed into an error for the user."""
    try:
        yield
    except FileNotFoundError as error:
        try:
            os.getcwd()
        except OSError:
            raise click.ClickException("the working directory does not exist") from error
        raise


def _report_bug(ctx: click.Context, error: Exception, diagnostics: tuple[Diagnostic, ...]) -> None:
    if ctx.params["traceback"]:
        import traceback

        from evt.diagnostics import visible

        click.echo(visible("".join(traceback.format_exception(error)), keep="\n"), err=True)
    output.report(diagnostics, json=output.wants_json(ctx))
    with_traceback = "" if ctx.params["traceback"] else ", and the traceback that EVT_TRACEBACK=1 adds"
    click.echo(
        "This is a bug in evt, not in your program. Please report it, with the command line and the program"
        f"{with_traceback}.",
        err=True,
    )
    ctx.exit(BUG)


@click.group(
    cls=Entry,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    epilog="Try: evt emit 'D = relu(alpha*acc + beta*C) + residual' --arch sm90 --dtype f16",
)
@click.version_option(__version__, prog_name="evt", message="%(prog)s %(version)s")
@click.option(
    "--traceback",
    is_flag=True,
    envvar="EVT_TRACEBACK",
    help="Show the Python traceback of a bug in evt (also EVT_TRACEBACK=1).",
)
def main(traceback: bool) -> None:
    """Write the epilogue of a matrix product or a convolution as a formula; get a fused CUDA kernel.

    PROGRAM is a formula, a file that contains one (usually .evt), or - for standard input.

    Exit codes: 0 success, 1 diagnostics, 2 wrong usage, 3 a bug in evt.

    To complete commands, options and values with the Tab key: eval "$(_EVT_COMPLETE=bash_source evt)" in ~/.bashrc; for
    zsh and fish, zsh_source and fish_source.
    """
