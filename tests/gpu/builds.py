"""The kernels of all selected tests of a file, built in one go."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence

import pytest

import evt
from evt.compilation import Cache, KernelSource, build, cache_key, find_toolchain


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
    except evt.BuildError as error:
        toolchain, cache = find_toolchain(), Cache()
        missing = {each for each in sources if cache.find(cache_key(each, toolchain))[0] is None}
        return dict.fromkeys(missing, str(error))
    return {}
