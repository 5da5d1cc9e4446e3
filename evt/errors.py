"""The exceptions of evt.

::

    EvtError
    ├── ProgramError       the program is invalid (E01xx-E04xx), or not supported yet (E0901)
    ├── TargetError        the target does not support the program (E05xx)
    ├── ArgumentError      the arguments of a call do not fit the program (E06xx)
    ├── BuildError         the kernel cannot be built here (E07xx)
    ├── LaunchError        the kernel cannot run here (E08xx)
    ├── LayoutError        a layout cannot be read, or an operation on it has no result (E067x)
    └── InternalError      a bug in evt (E0902)

    UserWarning
    └── NoKernelWarning    the CPU computed a call that no GPU kernel supports (E05xx)

Each exception holds its :class:`~evt.diagnostics.Diagnostic` values in ``diagnostics``. ``str()`` prints them; its
first line is the code and the message of the first diagnostic.
"""

from __future__ import annotations

from collections.abc import Iterable

from evt.diagnostics import Diagnostic, render_all


class EvtError(Exception):
    """The base class of evt's exceptions."""

    def __init__(self, diagnostics: Diagnostic | Iterable[Diagnostic]) -> None:
        values = (diagnostics,) if isinstance(diagnostics, Diagnostic) else tuple(diagnostics)
        super().__init__(values)
        self.diagnostics: tuple[Diagnostic, ...] = values

    def __str__(self) -> str:
        return render_all(self.diagnostics)


class ProgramError(EvtError):
    """An error for an invalid program."""


class TargetError(EvtError):
    """An error for a target that does not support the program.

    ``refusals`` are pairs of route and reason, in order of preference, if no route compiles the program.
    """

    def __init__(
        self, diagnostics: Diagnostic | Iterable[Diagnostic], refusals: Iterable[tuple[str, str]] = ()
    ) -> None:
        super().__init__(diagnostics)
        self.refusals = tuple(refusals)


class ArgumentError(EvtError):
    """An error for arguments of a call that do not fit the program."""


class BuildError(EvtError):
    """An error for a kernel that cannot be built on this machine."""


class LaunchError(EvtError):
    """An error for a kernel that cannot run on this machine."""


class LayoutError(EvtError):
    """An error for a layout that cannot be read, or an operation on layouts without a result."""


class InternalError(EvtError):
    """An error that reports a bug in evt."""


class NoKernelWarning(UserWarning):
    """A warning that no GPU has a kernel for a call that the CPU computed, or for any product of a model."""
