"""Targets: GPU architectures, and what each offers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from evt.diagnostics import Diagnostic, hint, shown
from evt.errors import TargetError

#: The generations of CUTLASS's kernels.
Generation = Literal["3x", "2x"]
#: The families of kernels: CUTLASS 2.x, and 3.x for sm90 (``3x``), for sm100 and sm103, for sm120.
Family = Literal["2x", "3x", "sm100", "sm120", "3x_grouped"]

GENERATION_OF: Mapping[Family, Generation] = {
    "2x": "2x",
    **dict.fromkeys(("3x", "sm100", "sm120", "3x_grouped"), "3x"),
}


@dataclass(frozen=True, slots=True)
class Target:
    """A GPU architecture.

    ``gencode`` is nvcc's name of the code (``sm_90a``: TMA and WGMMA exist only in the ``a`` variant);
    ``families`` the kernels that run there, best first: those of CUTLASS 2.x and, where there are any, of 3.x, which
    every architecture has its own of; ``shared_memory`` the bytes that one thread block may have.
    """

    name: str
    gencode: str
    families: tuple[Family, ...]
    shared_memory: int

    @property
    def number(self) -> int:
        """89 of ``sm89``."""
        return int(self.name.removeprefix("sm"))

    @property
    def generations(self) -> tuple[Generation, ...]:
        """Those whose kernels run here, best first."""
        return tuple(GENERATION_OF[each] for each in self.families)

    def family(self, generation: Generation) -> Family | None:
        """The family of a generation's kernels that runs here, if one does."""
        return next((each for each in self.families if GENERATION_OF[each] == generation), None)

    @property
    def virtual(self) -> str:
        """The virtual architecture that nvcc compiles through, ``compute_90a``."""
        return self.gencode.replace("sm_", "compute_")


TARGETS: dict[str, Target] = {
    target.name: target
    for target in (
        Target("sm80", "sm_80", ("2x",), 163 * 1024),
        Target("sm86", "sm_86", ("2x",), 99 * 1024),
        Target("sm89", "sm_89", ("2x",), 99 * 1024),
        Target("sm90", "sm_90a", ("3x", "2x"), 227 * 1024),
        Target("sm100", "sm_100a", ("sm100", "2x"), 227 * 1024),
        Target("sm103", "sm_103a", ("sm100", "2x"), 227 * 1024),
        Target("sm120", "sm_120a", ("sm120", "2x"), 99 * 1024),
    )
}


def find_target(name: str | int) -> Target:
    """The target ``sm90``; ``sm_90``, ``sm_90a`` and ``90`` mean the same.

    Raises TargetError (E0501) for an unknown target.
    """
    text = str(name) if isinstance(name, int) else shown(name)
    key = "sm" + text.lower().removeprefix("sm").removeprefix("_").removesuffix("a")
    target = TARGETS.get(key)
    if target is None:
        raise TargetError(Diagnostic("E0501", f"there is no target `{text}`", help=hint(key, TARGETS, "targets")))
    return target
