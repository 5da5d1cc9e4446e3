"""Programs from files."""

from __future__ import annotations

from pathlib import Path

from evt.diagnostics import Diagnostic, Source
from evt.errors import ProgramError

#: The largest file, in bytes. A larger file is a mistake (a binary, a log), not an epilogue.
MAX_BYTES = 1 << 20


def read_program(path: str | Path) -> Source:
    """Read a ``.evt`` file. Raise ProgramError (E0105) if it cannot be read as UTF-8 text."""
    path = Path(path)
    try:
        if path.is_dir():
            raise ProgramError(_unreadable(path, "it is a directory"))
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise ProgramError(_unreadable(path, error.strerror or str(error))) from error
    except ValueError as error:  # a NUL in the name
        raise ProgramError(_unreadable(path, str(error))) from error
    return decode(data, str(path))


def decode(data: bytes, name: str) -> Source:
    """Return the program text in bytes. Raise ProgramError (E0105) if it is not UTF-8 or too large."""
    if len(data) > MAX_BYTES:
        raise ProgramError(_unreadable(name, f"it is larger than {MAX_BYTES} bytes"))
    try:
        return Source(data.decode("utf-8-sig"), name)
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ProgramError(_unreadable(name, f"byte 0x{data[error.start]:02x} on line {line} is not UTF-8")) from error


def _unreadable(path: Path | str, why: str) -> Diagnostic:
    return Diagnostic(
        "E0105",
        f"cannot read `{str(path)!r}`: {why}".replace("`'", "`").replace("'`", "`"),
        help="name a UTF-8 text file with a program; a formula itself is the argument of `evt check` and of evt.gemm",
    )
