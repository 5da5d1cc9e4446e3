"""The kernels that a run of the fuzzer builds, by route: ``schedule(count) -> kinds and types``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ..dtypes import PACKED, PAIRS

Pair = tuple[str, str]

_WIDE = tuple(pair for pair in PAIRS if "f64" not in pair)
_HALVES: tuple[Pair, ...] = (("f16", "f16"), ("bf16", "bf16"))
#: The operand types of depthwise kernels.
_SCALAR: tuple[Pair, ...] = (*_HALVES, ("f32", "f32"))
#: A weight of 4 or 8 bits that is converted to the type of A.
_WEIGHTS: tuple[Pair, ...] = tuple(
    (half, b) for half, _ in _HALVES for b in (*PACKED, "i8", *PACKED, "u8", "e4m3", "e5m2")
)
#: The operand types of products of few rows.
_FEW: tuple[Pair, ...] = (*_HALVES, ("i8", "i8"), ("u8", "u8"))
_PRODUCTS = ("gemm", "gemm", "linear")
_FPROPS = ("conv1d", "conv2d", "conv2d", "conv3d")
_GRADIENTS = ("conv1d_dgrad", "conv2d_dgrad", "conv3d_dgrad")
_FILTERS = ("conv1d_wgrad", "conv2d_wgrad", "conv3d_wgrad")


@dataclass(frozen=True)
class Kind:
    """A route, the operations and types of A and B that reach it, and how many kernels of a cycle take it.

    ``vector``: bytes by which the extents along columns and along k are aligned; 0 where any extent will do.
    ``seconds``: the CPU time of a build, measured with nvcc 13.0 on an H100's host, 2026-11.
    """

    route: str
    operations: tuple[str, ...]
    pairs: tuple[Pair, ...]
    weight: int
    seconds: float
    vector: tuple[int, int] = (16, 16)
    feeds: bool = False
    stock: bool = False
    depthwise: bool = False
    groups: tuple[int, ...] = ()

    @property
    def grouped(self) -> bool:
        return "grouped_gemm" in self.operations

    @property
    def by_offsets(self) -> bool:
        """Whether the groups are consecutive rows, whose ends are on the device."""
        return self.grouped and "ragged" in self.route


KINDS: tuple[Kind, ...] = (
    Kind("gemm-own-3x", _PRODUCTS, (*_WIDE, *_WEIGHTS), 8, 3, (0, 0)),
    Kind("gemm-own-ragged", ("grouped_gemm",), (*_WIDE, *_WEIGHTS), 4, 3),
    Kind("gemv-own-3x", _PRODUCTS, _FEW, 3, 3, (0, 0)),
    Kind("conv-halo-3x", (*_FPROPS, *_GRADIENTS), _WIDE, 7, 3, (0, 16)),
    Kind("conv-halo-padded-3x", ("conv2d",), _WIDE, 2, 3, (0, 0)),
    Kind("conv-halo-groups-3x", ("conv1d", "conv2d", "conv2d_dgrad"), _HALVES, 4, 3, (0, 16), groups=(2, 3, 8)),
    Kind("conv-halo-words-3x", ("conv1d", "conv2d"), _HALVES, 2, 3, (0, 0), groups=(1, 1, 2)),
    Kind("conv-halo-taps-3x", ("conv1d", "conv2d"), _HALVES, 2, 3, (0, 16)),
    Kind("conv-halo-copied-3x", _FPROPS, _HALVES, 2, 3, (0, 0)),
    Kind("conv-depthwise-3x", ("conv1d", "conv2d", "conv2d_dgrad"), _SCALAR, 4, 3, depthwise=True),
    Kind("conv-wgrad-3x", _FILTERS, _HALVES, 3, 3, (0, 16)),
    Kind("evt-2x", _PRODUCTS, PAIRS, 6, 18, (0, 0)),
    Kind("stock-2x", _PRODUCTS, _WIDE, 2, 15, (0, 0), stock=True),
    Kind("mainloop-2x", _PRODUCTS, _WIDE, 3, 20, (0, 0), feeds=True),
    Kind("conv-evt-2x", (*_FPROPS, *_GRADIENTS, *_FILTERS), _WIDE, 3, 20, (0, 0)),
    Kind("conv-stock-2x", (*_FPROPS, *_GRADIENTS, *_FILTERS), _WIDE, 1, 15, (0, 0), stock=True),
    Kind("conv-mainloop-2x", ("conv1d", "conv2d"), _WIDE, 1, 22, (0, 0), feeds=True),
    Kind("evt-3x", _PRODUCTS, _WIDE, 3, 40),
    Kind("stock-3x", _PRODUCTS, _WIDE, 1, 35, stock=True),
    Kind("evt-3x-grouped", ("grouped_gemm",), _WIDE, 1, 45),
    Kind("conv-evt-3x", (*_FPROPS, "conv2d_dgrad"), _WIDE, 1, 45),
    Kind("conv-padded-3x", _FPROPS, _WIDE, 1, 45, (16, 0)),
)
ROUTES = tuple(kind.route for kind in KINDS)
TYPES = tuple(dict.fromkeys(name for pair in (*PAIRS, *_WEIGHTS) for name in pair))


@dataclass(frozen=True)
class Slot:
    """A place of the schedule: the route, types and settings of its kernel."""

    index: int
    kind: Kind
    pair: Pair


def schedule(count: int, routes: Sequence[str] = ROUTES, types: Sequence[str] = TYPES) -> list[Slot]:
    """Return the kernels of a run in their order; every route and pair of types comes round again."""
    found: list[Slot] = []
    turns = dict.fromkeys(ROUTES, 0)
    cycle = _cycle([kind for kind in KINDS if kind.route in routes and _pairs(kind, types)])
    while cycle and len(found) < count:
        for kind in cycle[: count - len(found)]:
            pairs = _pairs(kind, types)
            found.append(Slot(len(found), kind, pairs[turns[kind.route] % len(pairs)]))
            turns[kind.route] += 1
    return found


def _pairs(kind: Kind, types: Sequence[str]) -> list[Pair]:
    return [pair for pair in kind.pairs if set(pair) <= set(types)]


def _cycle(kinds: Sequence[Kind]) -> list[Kind]:
    """Return one cycle, in which the kernels of a kind are spread evenly."""

    def places() -> Iterator[tuple[float, int]]:
        for order, kind in enumerate(kinds):
            yield from (((each + 0.5) / kind.weight, order) for each in range(kind.weight))

    return [kinds[order] for _, order in sorted(places())]
