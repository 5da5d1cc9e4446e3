"""Validation of the public functions' arguments: a program's text, types by name, flags."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from evt.diagnostics import Diagnostic, Source, shown
from evt.errors import ArgumentError, TargetError
from evt.ir.dtype import BY_NAME, OPERANDS, DType
from evt.ir.missing import unknown_type


def read_text(text: object) -> Source:
    """Return a program's text. Raise ArgumentError (E0607) for other values."""
    if isinstance(text, Source | str):
        return text if isinstance(text, Source) else Source(text)
    help_text = "evt.load reads a file" if isinstance(text, Path | bytes) else ""
    message = f"a program is a str, not {type(text).__name__}"
    raise ArgumentError(Diagnostic("E0607", message, help=help_text))


def check_kind(name: str, value: object, kind: Any, wanted: str) -> None:
    """Raise ArgumentError (E0607) for a value of another kind."""
    if not isinstance(value, kind):
        raise ArgumentError(Diagnostic("E0607", f"`{name}` is {shown(value)}; expected {wanted}"))


def read_dtype(name: object) -> DType:
    """Return the type with a name, or of a torch dtype, which prints as ``torch.float16``.

    Raise TargetError (E0303) for an unknown type.
    """
    text = str(name).removeprefix("torch.") if type(name).__name__ == "dtype" else shown(name)
    dtype = BY_NAME.get(text)
    if dtype is None:
        message, help_text = unknown_type(text, OPERANDS)
        raise TargetError(Diagnostic("E0303", message, help=help_text))
    return dtype
