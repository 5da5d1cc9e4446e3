"""The exceptions that evt raises.

::

    EvtError
    ├── ProgramError       the program is wrong (E01xx-E04xx), or uses what is not supported yet (E0901)
    ├── TargetError        the target cannot do it (E05xx)
    ├── ArgumentError      a call's arguments do not fit the program (E06xx)
    ├── BuildError         the kernel cannot be built here (E07xx)
    ├── LaunchError        the kernel cannot run here (E08xx)
    ├── LayoutError        a layout cannot be read, or an operation on it has no result (E067x)
    └── InternalError      a bug in evt (E0902)

    UserWarning
    └── NoKernelWarning    the CPU computed what no kernel would (E05xx)

Each carries its :class:`~evt.diagnostics.Diagnostic` values in ``diagnostics``; ``str()`` prints them, and its first
line is the code and the message of the first.
"""

from __future__ import annotations

from collections.abc import Iterable

from evt.diagnostics import Diagnostic, render_all


class EvtError(Exception):
    """Base of all errors that evt raises on purpose."""

    def __init__(self, diagnostics: Diagnostic | Iterable[Diagnostic]) -> None:
        values = (diagnostics,) if isinstance(diagnostics, Diagnostic) else tuple(diagnostics)
        super().__init__(values)
        self.diagnostics: tuple[Diagnostic, ...] = values

    def __str__(self) -> str:
        return render_all(self.diagnostics)


class ProgramError(EvtError):
    """The program is wrong."""


class TargetError(EvtError):
    """The target cannot do what the program asks for.

    ``refusals`` are (route, reason), in order of preference, if no route compiles the program.
    """

    def __init__(
        self, diagnostics: Diagnostic | Iterable[Diagnostic], refusals: Iterable[tuple[str, str]] = ()
    ) -> None:
        super().__init__(diagnostics)
        self.refusals = tuple(refusals)


class ArgumentError(EvtError):
    """A call's arguments do not fit the program."""


class BuildError(EvtError):
    """The kernel cannot be built on this machine."""


class LaunchError(EvtError):
    """The kernel cannot run on this machine."""


class LayoutError(EvtError):
    """A layout cannot be read, or an operation on it has no result."""


class InternalError(EvtError):
    """A bug in evt: please report it."""


class NoKernelWarning(UserWarning):
    """The CPU computed a call for which no GPU would have a kernel, or no product of a model gets one."""
