"""The kernels of all selected tests of a file, built in one go."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence

import pytest

import evt
from evt.compilation import KernelSource, build


def build_selected(
    request: pytest.FixtureRequest, test: Callable[..., None], sources_of: Callable[..., Sequence[KernelSource]]
) -> Mapping[KernelSource, str]:
    """Build the kernels of a test's selected cases, given their parameters; return nvcc's refusals."""
    sources: list[KernelSource] = []
    for item in request.session.items:
        if getattr(item, "function", None) is test:
            with contextlib.suppress(evt.EvtError):  # the test itself will say so
                sources += sources_of(**item.callspec.params)  # type: ignore[attr-defined]
    sources = list(dict.fromkeys(sources))
    try:
        build(sources)
    except evt.BuildError:
        return {each: refusal for each in sources if (refusal := _refusal(each))}
    return {}


def _refusal(source: KernelSource) -> str:
    """Return why a kernel cannot be built, or ""; the others are in the cache."""
    try:
        build([source])
    except evt.BuildError as error:
        return str(error)
    return ""
