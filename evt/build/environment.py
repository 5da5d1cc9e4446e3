"""What of the process's environment reaches the compilers: a short list, so that nothing unknown decides the result.

nvcc, its profile and gcc read dozens of variables (CPATH, LIBRARY_PATH, INCLUDES, PTXAS_FLAGS, GCC_EXEC_PREFIX...) that
are set for other work, and would put other headers in the place of those that evt means. What has to be said to nvcc
is said in its own variables, which are kept.
"""

from __future__ import annotations

import itertools
import os
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

from evt.diagnostics import Diagnostic
from evt.errors import BuildError

#: What nvcc takes to be part of every command line, and its host compiler.
FLAGS = ("NVCC_PREPEND_FLAGS", "NVCC_APPEND_FLAGS")
COMPILER = "NVCC_CCBIN"
#: Part of the key. The toolkit's are for scripts that stand for nvcc; compilers may need the last to run at all.
_DECIDING = (*FLAGS, COMPILER, "CUDA_HOME", "CUDA_PATH", "LD_LIBRARY_PATH")
#: No part of it: of what is on PATH the compilers are, and the home directory holds nothing that they compile.
_OTHER = ("PATH", "HOME")
#: What a shell makes something of, besides quotes.
_ACTIVE = re.compile(r"[$`;|&<>\n]")
#: What a shell makes something of between double quotes, and what no terminal should see.
_ACTIVE_IN_QUOTES = re.compile(r'[$`"\\\x00-\x1f\x7f]')


def deciding_variables() -> dict[str, str]:
    """The variables that a compilation may depend on."""
    return {name: os.environ[name] for name in _DECIDING if name in os.environ}


def compiler_environment() -> dict[str, str]:
    """The environment of every compiler.

    nvcc hands its command lines to a shell, with what these variables say. Raises BuildError E0701 for those of nvcc
    that would make a shell do something.
    """
    for name in (*FLAGS, COMPILER):
        active = (_ACTIVE if name in FLAGS else _ACTIVE_IN_QUOTES).search(os.environ.get(name, ""))
        if active is not None:
            message = f"{name} has a {active[0]!r}, and nvcc hands it to a shell"
            raise BuildError(Diagnostic("E0701", message, help=f"set {name} to plain options, or unset it"))
    others = {name: os.environ[name] for name in _OTHER if name in os.environ}
    return {**others, **deciding_variables(), "LC_ALL": "C"}


def is_plain(path: Path | str) -> bool:
    """Whether a path may stand between double quotes in a shell's command line, as nvcc puts it there."""
    return not _ACTIVE_IN_QUOTES.search(str(path))


def host_compilers() -> list[str]:
    """The programs that nvcc calls for C++, or the directory where they are, in the order of its preference."""
    found = []
    for word, following in _pairs():
        option, equals, value = word.partition("=")
        if option in ("-ccbin", "--compiler-bindir"):
            found.append(value if equals else following)
    return found or [os.environ.get(COMPILER, "")]


def _pairs() -> Iterator[tuple[str, str]]:
    """The words in nvcc's variables, each with the next."""
    for name in FLAGS:
        text = os.environ.get(name, "")
        try:
            words = shlex.split(text)
        except ValueError:  # a quote that is not closed, which nvcc will refuse
            words = text.split()
        yield from itertools.zip_longest(words, words[1:], fillvalue="")
