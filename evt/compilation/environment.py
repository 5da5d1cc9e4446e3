"""The environment variables for the compilers: a short list, so that no unknown variable affects the result.

nvcc, its profile and gcc read dozens of variables (CPATH, LIBRARY_PATH, INCLUDES, PTXAS_FLAGS, GCC_EXEC_PREFIX...) that
are set for other work, and would substitute other headers for evt's. Options for nvcc belong in nvcc's own variables,
which are passed on.
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

#: Options that nvcc adds to every command line, and its host compiler.
FLAGS = ("NVCC_PREPEND_FLAGS", "NVCC_APPEND_FLAGS")
COMPILER = "NVCC_CCBIN"
#: Part of the key. CUDA_HOME and CUDA_PATH serve scripts that wrap nvcc; compilers may need the last one to run.
_DECIDING = (*FLAGS, COMPILER, "CUDA_HOME", "CUDA_PATH", "LD_LIBRARY_PATH")
#: Not part of the key: the compilers found on PATH are, and compilers read nothing from the home directory.
_OTHER = ("PATH", "HOME")
#: Characters that a shell interprets, besides quotes.
_ACTIVE = re.compile(r"[$`;|&<>\n]")
#: Characters that a shell interprets within double quotes, and control characters.
_ACTIVE_IN_QUOTES = re.compile(r'[$`"\\\x00-\x1f\x7f]')


def deciding_variables() -> dict[str, str]:
    """Return the variables that a compilation may depend on."""
    return {name: os.environ[name] for name in _DECIDING if name in os.environ}


def host() -> tuple[str, str]:
    """Return the kind of machine and its C library, on which a library that is built here depends."""
    return os.uname().machine, os.confstr("CS_GNU_LIBC_VERSION") or ""


def compiler_environment() -> dict[str, str]:
    """Return the environment of every compiler.

    nvcc passes its command lines, with the options in these variables, to a shell. Raise BuildError E0701 for variables
    of nvcc that a shell would interpret.
    """
    for name in (*FLAGS, COMPILER):
        active = (_ACTIVE if name in FLAGS else _ACTIVE_IN_QUOTES).search(os.environ.get(name, ""))
        if active is not None:
            message = f"{name} has a {active[0]!r}, and nvcc passes it to a shell"
            raise BuildError(Diagnostic("E0701", message, help=f"set {name} to plain options, or unset it"))
    others = {name: os.environ[name] for name in _OTHER if name in os.environ}
    return {**others, **deciding_variables(), "LC_ALL": "C"}


def has_flags() -> bool:
    """Return whether variables add options to nvcc's command lines."""
    return any(os.environ.get(name) for name in FLAGS)


def is_plain(path: Path | str) -> bool:
    """Return whether a shell takes a path literally between the double quotes of nvcc's command line."""
    return not _ACTIVE_IN_QUOTES.search(str(path))


def host_compilers() -> list[str]:
    """Return the programs that nvcc may call for C++, or their directories; "" for its own choice."""
    found = []
    for word, following in _pairs():
        option, equals, value = word.partition("=")
        if option in ("-ccbin", "--compiler-bindir"):
            found.append(value if equals else following)
    return found or [os.environ.get(COMPILER, "")]


def _pairs() -> Iterator[tuple[str, str]]:
    """Yield the words in nvcc's variables, each with the next one."""
    for name in FLAGS:
        text = os.environ.get(name, "")
        try:
            words = shlex.split(text)
        except ValueError:  # an unclosed quote, which nvcc will refuse
            words = text.split()
        yield from itertools.zip_longest(words, words[1:], fillvalue="")
