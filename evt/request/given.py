"""Validation of the public functions' arguments: a program's text, types by name, flags."""

from __future__ import annotations

from collections.abc import Sequence
from keyword import iskeyword
from pathlib import Path
from typing import Any, NoReturn

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


def refuse_positional(inputs: Sequence[str], given: Sequence[object]) -> NoReturn:
    """Raise ArgumentError (E0602) for inputs that a call gives by position, after A and B."""
    count = f"{len(given)} input{'s' * (len(given) > 1)}"
    named = ", ".join(as_keyword(name) for name in inputs)
    help_text = f"pass them by keyword: op(A, B, {named})" if inputs else "the program has no inputs"
    message = f"a call takes A and B by position, and no other argument; {count} given"
    raise ArgumentError(Diagnostic("E0602", message, help=help_text))


def as_keyword(name: str) -> str:
    """Return a keyword argument as Python code: ``lambda`` and similar names are no keywords there."""
    return f'**{{"{name}": ...}}' if iskeyword(name) else f"{name}=..."


def read_dtype(name: object) -> DType:
    """Return the type with a name, or of a torch dtype, which prints as ``torch.float16``.

    Raise TargetError (E0303) for an unknown type.
    """
    text = str(name).removeprefix("torch.") if type(name).__name__ == "dtype" else name
    if not isinstance(text, str):
        message = f"a type is a str or a torch.dtype, not {type(name).__name__}"
        raise TargetError(Diagnostic("E0303", message, help=f"types: {' '.join(map(str, OPERANDS))}"))
    dtype = BY_NAME.get(text)
    if dtype is None:
        message, help_text = unknown_type(text, OPERANDS)
        raise TargetError(Diagnostic("E0303", message, help=help_text))
    return dtype
