"""GPUs as cost models see them: ``find_card("H200") -> Card``.

Data sheets give the SMs, the clock rate, the tensor cores' rate and the bandwidth. :data:`FITS` has the constants of
measured cards, which ``evt tune fit`` computes: they replace rates of the data sheet, and correct each kind of kernel.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from evt.plan.gpus import NATIVE, native_name, plain
from evt.plan.target import find_target

#: Fractions of a data sheet's clock rate and bandwidth that kernels reach, as on the measured cards.
_BUSY, _REACHED = 0.8, 0.92
#: Earlier kernels leave written lines in L2, which are moved to memory when others replace them: this part of the bytes
#: that a kernel reads, and the most bytes. Fitted to products on an H100, 2026-11.
_REPLACED, _MOST_REPLACED = 0.44, 33e6


@dataclass(frozen=True, slots=True)
class Fit:
    """The constants of a card that are fitted to measurements; ``source`` names the measurements and their date.

    ``busy_ghz`` is the clock rate under load, and ``moved`` are the bytes that kernels move in a microsecond.
    ``kernels`` has a factor of the start and a factor of the work for each kind of kernels: see
    :func:`evt.plan.speed.kind_of`.
    """

    source: str
    busy_ghz: float
    moved: float
    kernels: Mapping[str, tuple[float, float]] = field(default_factory=dict, hash=False)

    def factors(self, kind: str) -> tuple[float, float]:
        """Return the factors of a kind of kernels."""
        return self.kernels.get(kind, (1.0, 1.0))

    def to_json(self) -> dict[str, Any]:
        """Return a dict ready for JSON."""
        kernels = {kind: list(factors) for kind, factors in self.kernels.items()}
        return {"source": self.source, "busy_ghz": self.busy_ghz, "moved": self.moved, "kernels": kernels}

    @staticmethod
    def from_json(value: Any) -> Fit:
        """Return the constants in a dict of :meth:`to_json`. Raise ValueError for anything else."""
        try:
            kernels = {str(kind): (float(start), float(work)) for kind, (start, work) in value["kernels"].items()}
            made = Fit(str(value["source"]), float(value["busy_ghz"]), float(value["moved"]), kernels)
        except (TypeError, KeyError, AttributeError) as error:
            raise ValueError("it is no fit of a card") from error
        if not all(0 < each < math.inf for each in (made.busy_ghz, made.moved, *sum(kernels.values(), ()))):
            raise ValueError("a constant of a card is not positive")
        return made


@dataclass(frozen=True, slots=True)
class Card:
    """A GPU.

    ``tensor`` is the rate of an SM's tensor cores: dense multiply-adds of 16 bits in a cycle. ``mma`` is the rate by
    the instructions of sm80, if it differs. ``double`` is the rate of 64 bits. ``ghz`` is the clock rate of short
    kernels. ``bandwidth`` is the peak of the memory in bytes per microsecond.
    """

    name: str
    target: str
    multiprocessors: int
    ghz: float
    tensor: int
    double: int
    bandwidth: float
    mma: int = 0
    measured: Fit | None = None

    @property
    def is_fitted(self) -> bool:
        """Whether the constants are fitted to measurements on this card."""
        return self.measured is not None

    @property
    def fit(self) -> Fit:
        """The fitted constants, or the usual fractions of the data sheet."""
        return self.measured or Fit("", _BUSY * self.ghz, _REACHED * self.bandwidth)

    @property
    def source(self) -> str:
        """The origin of the constants, in words."""
        return self.fit.source or "from its data sheet, not fitted to measurements"

    def microseconds(self, cycles: float) -> float:
        """Return the duration of clock cycles under load."""
        return cycles / self.fit.busy_ghz / 1e3

    @property
    def bytes_per_us(self) -> float:
        """The bytes that kernels move in a microsecond."""
        return self.fit.moved


def traffic_of(read: float, written: float) -> float:
    """Return the bytes of memory traffic of a kernel, with the lines of earlier kernels that it replaces in L2."""
    return read + written + min(_REPLACED * read, _MOST_REPLACED)


def _fits() -> dict[str, Fit]:
    found = json.loads(Path(__file__).with_name("fits.json").read_text(encoding="utf-8"))
    return {name: Fit.from_json(value) for name, value in found.items()}


#: The constants of measured cards.
FITS: Mapping[str, Fit] = _fits()
#: The cards of each target, its usual one first. Clock rates are boost rates; tensor rates accumulate in f32.
CARDS: Mapping[str, Card] = {
    card.name: card
    for card in (
        Card("A100", "sm80", 108, 1.41, 1024, 64, 2.04e6),
        Card("A800", "sm80", 108, 1.41, 1024, 64, 2.04e6),
        Card("A30", "sm80", 56, 1.44, 1024, 64, 0.933e6),
        Card("A10", "sm86", 72, 1.695, 512, 2, 0.6e6),
        Card("A10G", "sm86", 80, 1.71, 256, 2, 0.6e6),
        Card("A40", "sm86", 84, 1.74, 512, 2, 0.696e6),
        Card("RTX A6000", "sm86", 84, 1.8, 512, 2, 0.768e6),
        Card("RTX 3090", "sm86", 82, 1.695, 256, 2, 0.936e6),
        Card("L4", "sm89", 58, 2.04, 512, 2, 0.3e6),
        Card("L40S", "sm89", 142, 2.52, 512, 2, 0.864e6),
        Card("L40", "sm89", 142, 2.49, 256, 2, 0.864e6),
        Card("RTX 4090", "sm89", 128, 2.52, 256, 2, 1.008e6),
        Card("RTX 6000 Ada", "sm89", 142, 2.505, 512, 2, 0.96e6),
        Card("H100", "sm90", 132, 1.98, 2048, 128, 3.35e6, 1270, FITS["H100"]),
        Card("H200", "sm90", 132, 1.98, 2048, 128, 4.8e6, 1270, FITS["H200"]),
        Card("H100 PCIe", "sm90", 114, 1.755, 2048, 128, 2.0e6, 1270),
        Card("H100 NVL", "sm90", 132, 1.785, 2048, 128, 3.9e6, 1270),
        Card("GH200", "sm90", 132, 1.98, 2048, 128, 4.0e6, 1270),
        Card("H800", "sm90", 132, 1.98, 2048, 2, 3.35e6, 1270),
        Card("H20", "sm90", 78, 1.98, 480, 2, 4.0e6, 480),
        Card("B200", "sm100", 148, 1.855, 4096, 64, 8.0e6, 1024),
        Card("GB200", "sm100", 148, 1.855, 4096, 64, 8.0e6, 1024),
        Card("B300", "sm103", 148, 1.855, 4096, 2, 8.0e6, 1024),
        Card("GB300", "sm103", 148, 1.855, 4096, 2, 8.0e6, 1024),
        Card("RTX 5090", "sm120", 170, 2.407, 256, 2, 1.792e6),
        Card("RTX PRO 6000", "sm120", 188, 2.617, 512, 2, 1.792e6),
    )
}
_BY_NAME = {plain(name): card for name, card in CARDS.items()}


def find_card(name: str | int) -> Card:
    """Return the card that is called so: ``H200``, ``NVIDIA H100 PCIe``; or the usual card of a target, ``sm90``.

    Raise TargetError (E0501) for an unknown target or GPU.
    """
    target = find_target(name).name
    return asked_card(name) or next(card for card in CARDS.values() if card.target == target)


def asked_card(name: str | int) -> Card | None:
    """Return the card that is called so; None for a target, or for a GPU whose data are unknown.

    Raise TargetError (E0501) for an unknown target or GPU.
    """
    return _named(native_name() if str(name).lower() == NATIVE else str(name), find_target(name).name)


def is_called(card: Card, gpu: str) -> bool:
    """Return whether a GPU's name is one of a card."""
    return _named(gpu, card.target) is card


def _named(name: str, target: str) -> Card | None:
    """Return the card of a target with a name, which may end in the form or the memory."""
    words = re.split("[ _-]+", name.strip())
    for count in range(len(words), 0, -1):
        card = _BY_NAME.get(plain("".join(words[:count])))
        if card is not None and card.target == target:
            return card
    return None


@lru_cache(maxsize=64)
def card_of(name: str, target: str, multiprocessors: int) -> Card:
    """Return the card of a device; the usual card of its target if the name is unknown."""
    return replace(_named(name, target) or find_card(target), multiprocessors=multiprocessors)
