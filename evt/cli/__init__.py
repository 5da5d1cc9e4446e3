"""The command line: ``evt COMMAND ...``, one module per command.

:mod:`entry` is the group of commands and the exit codes; :mod:`invocation` reads PROGRAM and the options that
say what it is compiled for; :mod:`output` writes to standard output or to a file of ``-o``; :mod:`trial` does
the work of ``evt run``. A command's module imports click at the top, and everything else inside its function:
``evt emit`` loads no torch, no rich and no build room.
"""

from evt.cli.entry import main

__all__ = ["main"]
