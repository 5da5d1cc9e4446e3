"""The files that compilers report to have read, except the headers in the key, and their changes."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

#: The parts of the toolkit that nvcc runs, reads or links by itself.
_TOOLKIT = (
    *("bin/nvcc", "bin/nvcc.profile", "bin/cudafe++", "bin/ptxas", "bin/fatbinary", "nvvm/bin/cicc"),
    *("nvvm/libdevice/libdevice.10.bc", "lib64/libcudart_static.a", "lib/libcudart_static.a"),
)
#: A name in a make rule: a backslash precedes spaces in it.
_NAME = re.compile(r"(?:\\.|[^\s\\])+", re.DOTALL)

#: Size and time of the last change by path.
Read = dict[str, tuple[int, int]]


def files_read(work: Path, rules: Iterable[Path], known: Iterable[str], toolkit: Path | None) -> tuple[Read, int]:
    """Return the files in nvcc's make rules and the files of its toolkit that it uses, and the latest change.

    Files in ``work``, or behind a link there that is ``known``, are omitted.
    """
    names = [name for rule in rules for name in _names(rule.read_text(encoding="utf-8", errors="surrogateescape"))]
    names += [str(toolkit / name) for name in _TOOLKIT] if toolkit else []
    own = os.path.realpath(work) + os.sep
    read: Read = {}
    last = 0
    for name in dict.fromkeys(names):
        if name.split("/")[0] in known:
            continue
        path = os.path.realpath(work / name)
        if not path.startswith(own) and os.path.isfile(path):
            status = os.stat(path)
            read[path], last = (status.st_size, status.st_mtime_ns), max(last, status.st_ctime_ns)
    return read, last


def changed_since(read: Mapping[str, object]) -> str:
    """Return the first file that has changed since it was read, or ""."""
    for path, facts in read.items():
        try:
            status = os.stat(path)
        except OSError:
            return path
        if [status.st_size, status.st_mtime_ns] != facts:
            return path
    return ""


def _names(rule: str) -> list[str]:
    """Return the prerequisites of a make rule."""
    words = _NAME.findall(rule.partition(":")[2].replace("\\\n", " "))
    return [re.sub(r"\\(.)", r"\1", word).replace("$$", "$") for word in words]
