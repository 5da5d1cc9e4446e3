"""Builds of sources that may fail, one by one: ``build_each(sources) -> libraries, errors``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from evt.compilation.builder import build
from evt.compilation.source import KernelSource
from evt.errors import BuildError


def build_each(
    sources: Sequence[KernelSource], build: Callable[[Sequence[KernelSource]], Sequence[Path]] = build
) -> tuple[dict[KernelSource, Path], dict[KernelSource, BuildError]]:
    """Return the libraries of sources, built side by side, and the errors of the sources that cannot be built."""
    wanted = list(dict.fromkeys(sources))
    with suppress(BuildError):
        return dict(zip(wanted, build(wanted), strict=True)), {}
    libraries: dict[KernelSource, Path] = {}
    errors: dict[KernelSource, BuildError] = {}
    for each in wanted:  # the cache has the libraries that were built, and keeps the failures
        try:
            (libraries[each],) = build([each])
        except BuildError as error:  # noqa: PERF203
            errors[each] = error
    return libraries, errors
