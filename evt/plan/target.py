"""Targets: GPU architectures, with their kernel families and shared memory."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from evt.diagnostics import Diagnostic, closest, quoted, shown
from evt.errors import TargetError
from evt.plan.gpus import GPUS, NATIVE, find_gpu, native_target, plain

#: The generations of CUTLASS's kernels.
Generation = Literal["3x", "2x"]
#: The families of kernels: CUTLASS 2.x; CUTLASS 3.x for sm90, sm90 grouped, sm100 and sm103, and sm120; and evt's own
#: kernels for sm90, with a straight-line epilogue.
Family = Literal["2x", "3x", "sm100", "sm120", "3x_grouped", "own"]

GENERATION_OF: Mapping[Family, Generation] = {
    "2x": "2x",
    **dict.fromkeys(("3x", "sm100", "sm120", "3x_grouped", "own"), "3x"),
}


@dataclass(frozen=True, slots=True)
class Target:
    """A GPU architecture.

    ``families`` are the kernel families that run there, best first: CUTLASS 2.x, and the architecture's family of 3.x
    if it has one. ``shared_memory`` is the limit of one thread block in bytes. ``variant`` is the suffix of the
    architecture with the instructions of 3.x: TMA and WGMMA exist in sm_90a only.
    """

    number: int
    families: tuple[Family, ...]
    shared_memory: int
    variant: str = ""

    @property
    def name(self) -> str:
        """The name that users know, ``sm90``."""
        return f"sm{self.number}"

    @property
    def gencode(self) -> str:
        """The name of the code for nvcc, ``sm_90a``."""
        return f"sm_{self.number}{self.variant}"

    @property
    def virtual(self) -> str:
        """The virtual architecture that nvcc compiles through, ``compute_90a``."""
        return f"compute_{self.number}{self.variant}"

    @property
    def generations(self) -> tuple[Generation, ...]:
        """The generations whose kernels run here, best first."""
        return tuple(GENERATION_OF[each] for each in self.families)

    def family(self, generation: Generation) -> Family | None:
        """Return the family of a generation's kernels that runs here, or None."""
        return next((each for each in self.families if GENERATION_OF[each] == generation), None)


TARGETS: dict[str, Target] = {
    target.name: target
    for target in (
        Target(80, ("2x",), 163 * 1024),
        Target(86, ("2x",), 99 * 1024),
        Target(89, ("2x",), 99 * 1024),
        Target(90, ("3x", "2x"), 227 * 1024, "a"),
        Target(100, ("sm100", "2x"), 227 * 1024, "a"),
        Target(103, ("sm100", "2x"), 227 * 1024, "a"),
        Target(120, ("sm120", "2x"), 99 * 1024, "a"),
    )
}


def find_target(name: str | int) -> Target:
    """Return the target ``sm90``; ``sm_90a``, ``90``, ``H100`` and, on a machine with one, ``native`` mean the same.

    Raises TargetError (E0501) for an unknown target, and for ``native`` on a machine without a GPU.
    """
    text = str(name) if isinstance(name, int) else shown(name)
    given = native_target() if text.lower() == NATIVE else text
    key = _architecture(given) or find_gpu(given)
    target = TARGETS.get(key or "")
    if target is not None:
        return target
    if key is None:
        names = {plain(each): each for each in (*TARGETS, NATIVE, *(gpu for gpus in GPUS.values() for gpu in gpus))}
        guess = names.get(closest(plain(text), names) or "")
        examples = ", ".join(each[0] for each in GPUS.values())
        known = f"targets: {', '.join(TARGETS)}; GPUs such as {examples}; {NATIVE}"
        hint = f"did you mean `{guess}`?" if guess else known
        raise TargetError(
            Diagnostic("E0501", f"there is no target {quoted(text if isinstance(name, int) else name)}", help=hint)
        )
    said = f"`{text}` is {key}, and evt" if key != _architecture(text) else f"evt has no target `{text}`: it"
    number = int(key[2:])
    older = "; a kernel needs sm80 or newer" if number < min(each.number for each in TARGETS.values()) else ""
    raise TargetError(
        Diagnostic("E0501", f"{said} has kernels for {', '.join(TARGETS)} only{older}", help="choose one of these")
    )


def _architecture(name: str) -> str | None:
    """Return ``sm90`` for ``sm_90a``, ``SM90``, ``90``, ``9.0`` and ``compute_90``; None for other names."""
    found = re.fullmatch(r"(?:sm|compute)?_?([0-9]{1,2})\.?([0-9])[af]?", name.strip().lower())
    return f"sm{found[1]}{found[2]}" if found else None
