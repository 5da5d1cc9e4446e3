"""The command line: ``evt COMMAND ...``, one module per command.

:mod:`entry` holds the group of commands and the exit codes. :mod:`invocation` reads PROGRAM and the options that select
a target. :mod:`output` writes to standard output or to the file of ``-o``. :mod:`trial` does the work of ``evt run``. A
command's module imports click at the top and everything else inside its function. Thus ``evt emit`` loads neither torch
nor rich nor the compilation room.
"""

from evt.cli.entry import main

__all__ = ["main"]
