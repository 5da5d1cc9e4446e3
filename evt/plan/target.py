"""Targets: GPU architectures, and what each offers."""

from __future__ import annotations

from dataclasses import dataclass

from evt.diagnostics import Diagnostic, hint
from evt.errors import TargetError


@dataclass(frozen=True, slots=True)
class Target:
    """A GPU architecture.

    ``gencode`` is nvcc's name of the code (``sm_90a``: TMA and WGMMA exist only in the ``a`` variant);
    ``families`` the CUTLASS generations whose kernels run there, best first; ``shared_memory`` the bytes
    that one thread block may have.
    """

    name: str
    gencode: str
    families: tuple[str, ...]
    shared_memory: int
    supported: bool = True

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
        Target("sm100", "sm_100a", ("3x",), 227 * 1024, supported=False),
        Target("sm103", "sm_103a", ("3x",), 227 * 1024, supported=False),
        Target("sm120", "sm_120a", ("2x",), 99 * 1024, supported=False),
    )
}


def find_target(name: str) -> Target:
    """The target ``sm90``; ``sm_90``, ``sm_90a`` and ``90`` mean the same.

    Raises TargetError: E0501 for an unknown target, E0901 for one that is planned.
    """
    key = "sm" + str(name).lower().removeprefix("sm").removeprefix("_").removesuffix("a")
    target = TARGETS.get(key)
    if target is None:
        raise TargetError(Diagnostic("E0501", f"there is no target `{name}`", help=hint(key, TARGETS, "targets")))
    if not target.supported:
        supported = ", ".join(t.name for t in TARGETS.values() if t.supported)
        raise TargetError(
            Diagnostic("E0901", f"the target {target.name} is not supported yet", help=f"use one of: {supported}")
        )
    return target
