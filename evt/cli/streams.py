"""Standard output and error that cannot be written: reported once, in one line, and not again at exit."""

from __future__ import annotations

import io
import os
import sys
from typing import TextIO


class UnwritableError(Exception):
    """An error of writing to standard output. Without a text, its reader went away, which is not a failure."""


def take_over() -> None:
    """Let ``sys.stdout`` raise UnwritableError when it first fails; let ``sys.stderr`` ignore failures.

    A closed descriptor is opened on the null device. Otherwise the next opened file would be standard output.
    """
    for descriptor in range(3):
        if not _is_open(descriptor):
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
    sys.stdout = _stream(_Out(1, sys.stdout is None), sys.stdout)
    sys.stderr = _stream(_Err(2, sys.stderr is None), sys.stderr)


def _is_open(descriptor: int) -> bool:
    try:
        os.fstat(descriptor)
    except OSError:
        return False
    return True


class _Raw(io.FileIO):
    """The raw stream below a text stream. It passes its first failure to ``failed``."""

    def __init__(self, descriptor: int, is_closed: bool) -> None:
        super().__init__(descriptor, "wb", closefd=False)
        self._is_closed, self._given_up = is_closed, False

    def write(self, data: object) -> int:
        size = len(memoryview(data))  # type: ignore[arg-type]
        if self._given_up:
            return size
        try:
            if not self._is_closed:
                return super().write(data) or 0  # type: ignore[arg-type]
            reason = "standard output is closed"
        except BrokenPipeError:
            reason = ""
        except OSError as error:
            reason = f"cannot write to standard output: {error.strerror or error}"
        self._given_up = True
        self.failed(reason)
        return size

    def failed(self, reason: str) -> None:
        raise NotImplementedError


class _Out(_Raw):
    def failed(self, reason: str) -> None:
        raise UnwritableError(reason)


class _Err(_Raw):
    def failed(self, reason: str) -> None:
        """Ignore the failure, because there is no stream left to report it to."""


def _stream(raw: _Raw, replaced: TextIO | None) -> TextIO:
    encoding = replaced.encoding if replaced is not None else "utf-8"
    errors = replaced.errors if replaced is not None else None
    return io.TextIOWrapper(io.BufferedWriter(raw), encoding, errors, line_buffering=raw.isatty() or raw.fileno() == 2)
