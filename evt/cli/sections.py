"""Help in sections, and completion of values on the command line."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar

import click
from click.shell_completion import CompletionItem

from evt.diagnostics import closest

#: The commands of ``evt --help``, in the order of the work with a kernel.
COMMANDS = {
    "Write a program": ("check", "fmt", "show", "explain", "compare", "graph", "layout", "lsp"),
    "Make a kernel": ("emit", "build", "export"),
    "Run and measure": ("run", "tune", "bench"),
    "This machine": ("doctor", "cache"),
}
_OPTIONS = {
    "Program": ("op", "imports", "dtype", "a", "b"),
    "Target and route": ("arch", "archs", "gpu", "route", "config"),
    "Sizes": ("m", "n", "k", "l", "a_shape", "b_shape"),
    "Numerics": ("numerics", "relaxed", "fast_math", "accumulate", "deterministic", "batch_invariant"),
    "Convolutions": ("stride", "padding", "dilation", "groups", "output_padding", "kernel_size"),
}
_REST = "Options"
_SECTIONS = {name: section for section, names in _OPTIONS.items() for name in names}
#: The mark of a context whose help is long.
LONG_HELP = "evt.cli.long_help"

#: A callback of click that returns the words which may complete a value.
Complete = Callable[[click.Context, click.Parameter, str], list[str]]
CompleteItems = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]


class Command(click.Command):
    """A command whose help lists its own options first, and then the common options, in sections.

    The short help only names the options of the sections ``named``, and ``--help-all`` prints their texts.
    """

    named: ClassVar[tuple[str, ...]] = ("Sizes", "Numerics", "Convolutions")

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        found = super().get_params(ctx)
        has_named = any(_SECTIONS.get(str(parameter.name)) in self.named for parameter in found)
        return [*found, _HELP_ALL] if has_named else found

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        found: dict[str, list[tuple[str, str]]] = {section: [] for section in (_REST, *_OPTIONS)}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx) if isinstance(parameter, click.Option) else None
            if record is not None:
                found[_SECTIONS.get(str(parameter.name), _REST)].append(record)
        is_long = bool(ctx.meta.get(LONG_HELP))
        for section, records in found.items():
            if records and (is_long or section not in self.named):
                with formatter.section(section):
                    formatter.write_dl(records)
        named = [(section, _names(found[section])) for section in self.named if found[section]]
        if named and not is_long:
            with formatter.section("More, described by --help-all"):
                formatter.write_dl(named)


class SizedCommand(Command):
    """A command whose work depends on sizes: its short help describes them."""

    named = ("Numerics", "Convolutions")


class DefaultGroup(click.Group):
    """A group whose default command is ``run``. ``runs_alone`` means that it also runs without arguments."""

    def __init__(self, *arguments: Any, runs_alone: bool = False, **rest: Any) -> None:
        super().__init__(*arguments, **rest)
        self.runs_alone = runs_alone

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Insert ``run`` before the arguments, unless they begin with a command or ask for help."""
        is_named = bool(args) and (args[0] in self.commands or args[0] in ("-h", "--help"))
        if args and not is_named and not ctx.resilient_parsing:
            self._refuse_misspelt(ctx, args[0])
        runs = bool(args) or (self.runs_alone and not ctx.resilient_parsing)  # completion of "" offers the commands
        if runs and not is_named:
            args = ["run", *args]
        return super().parse_args(ctx, args)

    def _refuse_misspelt(self, ctx: click.Context, word: str) -> None:
        """Raise click.UsageError for a word that is like a command, and neither a program nor a file."""
        guess = closest(word, self.commands) if word.isalpha() else None
        if guess is not None and not Path(word).exists():
            ctx.fail(f"no command `{word}`; did you mean `{guess}`?")


def _names(records: Sequence[tuple[str, str]]) -> str:
    return ", ".join(record.split()[0] for record, _ in records)


def _print_all(ctx: click.Context, parameter: click.Parameter, value: bool) -> None:
    if value and not ctx.resilient_parsing:
        ctx.meta[LONG_HELP] = True
        click.echo(ctx.get_help(), color=ctx.color)
        ctx.exit()


_HELP_ALL = click.Option(
    ["--help-all"], is_flag=True, is_eager=True, expose_value=False, callback=_print_all, help="Describe every option."
)


def one_of(words: Sequence[str]) -> Complete:
    """Return a completion for one word out of several, or for a comma-separated list of them."""

    def complete(ctx: click.Context, parameter: click.Parameter, text: str) -> list[str]:
        before, comma, last = text.rpartition(",")
        return [f"{before}{comma}{word}" for word in words if word.startswith(last)]

    return complete


def files(ctx: click.Context, parameter: click.Parameter, text: str) -> list[CompletionItem]:
    """Complete the name of a file, by the shell."""
    return [CompletionItem(text, type="file")]


def codes_or_files(ctx: click.Context, parameter: click.Parameter, text: str) -> list[CompletionItem]:
    """Complete the code of a diagnostic, or the name of a file."""
    from evt.diagnostics import CODES

    found = [CompletionItem(code.id, help=code.title) for code in CODES.values() if text and code.id.startswith(text)]
    return found or files(ctx, parameter, text)


def routes(ctx: click.Context, parameter: click.Parameter, text: str) -> list[str]:
    """Complete the name of a route."""
    from evt.plan import ROUTES

    return [route.name for route in ROUTES if route.name.startswith(text)]


def measured_gpus(ctx: click.Context, parameter: click.Parameter, text: str) -> list[str]:
    """Complete the name of a GPU that was measured."""
    return _measured(lambda key, gpu: gpu, text)


def measured_keys(ctx: click.Context, parameter: click.Parameter, text: str) -> list[str]:
    """Complete the key of a measured problem."""
    return _measured(lambda key, gpu: key, text)


def _measured(part: Callable[[str, str], str], text: str) -> list[str]:
    from evt.errors import EvtError
    from evt.measured import Store

    try:
        found = Store().all()
    except EvtError:
        return []
    return sorted({name for key, each in found if (name := part(key, each.gpu)).startswith(text)})


def targets(ctx: click.Context, parameter: click.Parameter, text: str) -> list[str]:
    """Complete the name of a target, or after a letter the name of a GPU."""
    from evt.plan import TARGETS
    from evt.plan.gpus import GPUS, plain

    gpus = [plain(gpu) for names in GPUS.values() for gpu in names] if text.rpartition(",")[2] else []
    return one_of((*TARGETS, "native", *gpus))(ctx, parameter, text)
