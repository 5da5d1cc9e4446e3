"""The reference of the command line, from the commands themselves."""

from __future__ import annotations

import click

from evt.cli import main
from evt.cli.sections import COMMANDS, LONG_HELP

#: Columns of a block of text in the site.
_WIDTH = 92


def commands() -> str:
    """Return the help of every command, in the order of `evt --help`."""
    return "\n".join(
        f"### evt {name}\n\n```text\n{helped(name)}\n```\n" for names in COMMANDS.values() for name in names
    )


def helped(name: str) -> str:
    """Return the help of a command and of its subcommands."""
    # A command keeps the first help option that it makes, and makes it of the settings of its context.
    settings = {**main.context_settings, "max_content_width": _WIDTH, "terminal_width": _WIDTH}
    parent = click.Context(main, info_name="evt", **settings)
    command = main.get_command(parent, name)
    assert command is not None
    context = click.Context(command, info_name=name, parent=parent, max_content_width=_WIDTH, terminal_width=_WIDTH)
    context.meta[LONG_HELP] = True
    texts = [command.get_help(context)]
    if isinstance(command, click.Group):
        for inner in command.list_commands(context):
            found = command.get_command(context, inner)
            assert found is not None
            texts.append(found.get_help(click.Context(found, info_name=inner, parent=context, terminal_width=_WIDTH)))
    return "\n\n".join(texts)
