"""The shipped text files: ``grammar/`` and ``codegen/``, in the wheel or next to ``evt/`` in a checkout."""

from __future__ import annotations

from functools import cache
from pathlib import Path

#: The flags of nvcc for emitted files. NDEBUG disables CUTLASS's assertions, which would terminate the caller's
#: process.
NVCC_FLAGS = ("-std=c++17", "-O3", "-DNDEBUG", "--expt-relaxed-constexpr")
_PACKAGE = Path(__file__).resolve().parent


@cache
def directory(name: str) -> Path:
    """Return the directory ``grammar`` or ``codegen``. Raise FileNotFoundError if the installation is incomplete."""
    for candidate in (_PACKAGE / name, _PACKAGE.parent / name):
        if candidate.is_dir():
            return candidate
    raise FileNotFoundError(f"evt is incompletely installed: no {name}/ in {_PACKAGE} or beside it")


@cache
def text(name: str, file: str) -> str:
    """Return the text of one shipped file, for example ``text("grammar", "evt.lark")``."""
    return (directory(name) / file).read_text(encoding="utf-8")
