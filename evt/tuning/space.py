"""The kernels that tuning builds for a problem: ``space_of(work, gpu, options) -> Space``; without torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from evt.compilation import KernelSource
from evt.compilation.source import source_key
from evt.measured import Store, Timing, problem_key
from evt.plan import Survey
from evt.request import Request
from evt.runtime.plans import kernel_sources
from evt.tuning.candidates import MOST, Candidates, candidates
from evt.tuning.device import Model, card_of
from evt.tuning.table import Name

#: The samples of the fastest kernels.
ROUNDS = 31
#: Digits of the digest of a kernel's text.
_DIGITS = 16


@dataclass(frozen=True)
class Options:
    """The effort of tuning.

    ``rounds`` are the samples of the fastest kernels. ``wide`` searches the whole space of configurations, and builds
    ``most`` of them. ``again`` measures kernels that were measured before. ``route`` names a route, or a kind
    of routes, to which tuning is limited: the times of other routes stay.
    """

    rounds: int = ROUNDS
    wide: bool = False
    most: int = MOST
    again: bool = True
    route: str | None = None


DEFAULTS = Options()


@dataclass(frozen=True)
class Work:
    """A problem to tune on a device: its kernels, its sizes, and how to call a kernel.

    ``others`` are calls beside the survey's kernels. ``call`` describes the call for the database.
    """

    request: Request
    found: Survey
    sizes: Mapping[str, int]
    call_of: Callable[[Name], Callable[[], Any]]
    others: Sequence[Name] = ()
    call: str = ""

    @property
    def key(self) -> str:
        """The key of the problem's measurements."""
        return problem_key(self.found.problem, self.sizes)


@dataclass(frozen=True)
class Space:
    """The kernels of a problem that tuning may build, their sources, and the digests of their texts."""

    chosen: Candidates
    sources: Mapping[Name, KernelSource]
    digests: Mapping[Name, str]

    @staticmethod
    def of(chosen: Candidates) -> Space:
        """Return the candidates with their sources."""
        sources = dict(zip(chosen.plans, kernel_sources(chosen.plans.values()), strict=True))
        return Space(chosen, sources, {name: source_key(source)[:_DIGITS] for name, source in sources.items()})


def space_of(work: Work, gpu: Model, options: Options) -> Space:
    """Return the kernels that tuning may build."""
    found = work.found.asked_for(options.route)
    return Space.of(candidates(found, work.sizes, card_of(gpu), wide=options.wide, most=options.most))


def pending(work: Work, space: Space, gpu: Model, options: Options, store: Store) -> dict[Name, KernelSource]:
    """Return the sources of the kernels that :func:`measure` would time."""
    known = {} if options.again else known_times(work, gpu, store, space.digests)
    return {name: source for name, source in space.sources.items() if name not in known}


def known_times(work: Work, gpu: Model, store: Store, digests: Mapping[Name, str]) -> dict[Name, Timing]:
    """Return the times of kernels with the same text that this device and driver measured before."""
    found = store.kernels(work.key, gpu.name, gpu.driver)
    return {name: timing for name, timing in found.items() if digests.get(name, "") == timing.kernel != ""}
