"""Help in sections, and completion of values on the command line."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import click

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
    "Numerics": ("numerics", "relaxed", "fast_math", "deterministic"),
    "Sizes": ("m", "n", "k", "l", "a_shape", "b_shape"),
    "Convolutions": ("stride", "padding", "dilation", "groups", "output_padding", "kernel_size"),
}
_REST = "Options"
_SECTIONS = {name: section for section, names in _OPTIONS.items() for name in names}

#: A callback of click that returns the words which may complete a value.
Complete = Callable[[click.Context, click.Parameter, str], list[str]]


class Command(click.Command):
    """A command whose help lists its own options first, and then the common options, in sections."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        found: dict[str, list[tuple[str, str]]] = {section: [] for section in (_REST, *_OPTIONS)}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx) if isinstance(parameter, click.Option) else None
            if record is not None:
                found[_SECTIONS.get(str(parameter.name), _REST)].append(record)
        for section, records in found.items():
            if records:
                with formatter.section(section):
                    formatter.write_dl(records)


def one_of(words: Sequence[str]) -> Complete:
    """Return a completion for one word out of several, or for a comma-separated list of them."""

    def complete(ctx: click.Context, parameter: click.Parameter, text: str) -> list[str]:
        before, comma, last = text.rpartition(",")
        return [f"{before}{comma}{word}" for word in words if word.startswith(last)]

    return complete


def routes(ctx: click.Context, parameter: click.Parameter, text: str) -> list[str]:
    """Complete the name of a route."""
    from evt.plan import ROUTES

    return [route.name for route in ROUTES if route.name.startswith(text)]


def targets(ctx: click.Context, parameter: click.Parameter, text: str) -> list[str]:
    """Complete the name of a target."""
    from evt.plan import TARGETS

    return one_of((*TARGETS, "native"))(ctx, parameter, text)
