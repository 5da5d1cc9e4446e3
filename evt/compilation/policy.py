"""Whether this process may compile: ``evt.compile`` and ``EVT_COMPILE``, each ``"auto"`` or ``"never"``."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar

from evt.compilation.contents import heading
from evt.compilation.source import KernelSource
from evt.diagnostics import Diagnostic
from evt.errors import ArgumentError, BuildError

_AUTO, _NEVER = "auto", "never"
#: Whether this thread builds kernels that were requested before a setting became "never".
_GRANTED = ContextVar("granted", default=False)


@contextmanager
def granted(grant: bool) -> Iterator[None]:
    """Let this thread compile within the ``with`` block although a setting is "never", if ``grant``."""
    token = _GRANTED.set(grant)
    try:
        yield
    finally:
        _GRANTED.reset(token)


def may_compile() -> bool:
    """Return False if either setting is "never", unless :func:`granted`.

    Raise ArgumentError (E0607) for an unknown value.
    """
    if _GRANTED.get():
        return True
    for name, value in _settings().items():
        if value not in (_AUTO, _NEVER):
            message = f'`{name}` is {value!r}; expected "{_AUTO}" or "{_NEVER}"'
            raise ArgumentError(Diagnostic("E0607", message, help=f'set {name} to "{_AUTO}"'))
    return _NEVER not in _settings().values()


def uncompiled(sources: Sequence[KernelSource]) -> BuildError:
    """Return the error E0709 for kernels that this process needs and may not compile."""
    return BuildError([_uncompiled(source) for source in sources])


def _settings() -> dict[str, object]:
    """Return the value of each setting: the attribute that a user has set, and the environment variable."""
    return {"evt.compile": sys.modules["evt"].compile, "EVT_COMPILE": os.environ.get("EVT_COMPILE") or _AUTO}


def _uncompiled(source: KernelSource) -> Diagnostic:
    known = heading(source.text, source.kernel)
    kernel = f"the kernel {known.kernel}" if known.kernel else "a kernel"
    setting = next(name for name, value in _settings().items() if value == _NEVER)
    message = f'{kernel} for {known.target or source.gencode} is not in the cache, and {setting} is "{_NEVER}"'
    formula = (f"it computes {'; '.join(known.formula.splitlines())}",) if known.formula else ()
    mend = f'run `evt cache import FILE` with a pack that has it, or set {setting} to "{_AUTO}"'
    return Diagnostic("E0709", message, help=mend, notes=formula)
