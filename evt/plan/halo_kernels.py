"""The halo kernels that are built for a convolution: ``fastest_kernels(fitting_kernels(...), filters)``.

A few kernels serve all batch sizes. Their number of tiles decides which one runs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from functools import lru_cache
from itertools import product
from math import inf
from typing import NamedTuple

from evt.plan.geometry.halo import FILTERS, Geometry
from evt.plan.halo_cost import BlockedConvolution, Cycles, Groups, choose

#: The number of kernels that are built, to choose from by the number of tiles.
_OFFERED = 5
#: Batch sizes scored jointly; 256 has double weight.
BATCHES = (1, 2, 4, 12, 32, 64, 256, 256)
#: The saving that another kernel must bring: relative to the best time for a batch size, summed over the sizes.
_WORTH_A_KERNEL = 0.02


class Variant(NamedTuple):
    """A kernel: the bytes of a block of channels, the pixels of its instruction, and whether CTAs share its tiles.

    ``groups``: how they relate to its blocks of filters.
    """

    block_bytes: int
    pixels: int
    shared: bool = False
    groups: Groups = "one"


class Tiled(NamedTuple):
    """A convolution of one image, the tile of a kernel, and the costs of its tiles.

    With groups, the convolution has the filters of whole blocks, otherwise none.
    """

    blocked: BlockedConvolution
    tile: Geometry
    cycles: Cycles
    shared: bool

    def tiles(self, images: int, filters: int) -> int:
        """Return the number of tiles, of all blocks of filters."""
        return (
            self._of_class(images)
            * max(len(self.blocked.classes), 1)
            * -(-(self.blocked.problem.filters or filters) // FILTERS)
        )

    def time(self, images: int, filters: int, instructions: float = 0) -> float:
        """Return the clock cycles of sm90 for numbers of images and filters."""
        if self.shared:
            return self.cycles.shared(self.tiles(images, filters))
        return self.cycles.alone(self._of_class(images), self.blocked.problem.filters or filters, instructions)

    def _of_class(self, images: int) -> int:
        """Return the number of tiles of a residue class, of one block of filters."""
        return -(-images // self.tile.images) * self.tile.tiles(self.blocked.problem)


@lru_cache(maxsize=256)
def fitting_kernels(convolutions: tuple[BlockedConvolution, ...], widths: range) -> Mapping[Variant, Tiled]:
    """Return the kernels whose tiles fit."""
    made = {
        Variant(blocked.block_bytes, pixels, shared, blocked.groups): _kernel(blocked, pixels, shared)
        for blocked, shared, pixels in product(convolutions, (False, True), widths)
        if not shared or blocked.is_shareable
    }
    return {variant: each for variant, each in made.items() if each is not None}


def widest_kernels(known: Collection[Variant], widths: range) -> tuple[tuple[Variant, ...], tuple[Variant, ...]]:
    """Return the widest kernels of each kind whose tiles fit, and the narrower ones whose tiles do not."""
    widest: dict[Variant, Variant] = {}
    for each in known:
        kind = each._replace(pixels=0)
        widest[kind] = max(each, widest.get(kind, each))
    narrower = (each._replace(pixels=pixels) for each in widest.values() for pixels in widths if pixels < each.pixels)
    return tuple(widest.values()), tuple(each for each in narrower if each not in known)


@lru_cache(maxsize=4096)
def _kernel(blocked: BlockedConvolution, pixels: int, shared: bool) -> Tiled | None:
    """Return the tile of a kernel and its costs; None if no tile fits."""
    tile = choose(blocked, pixels, shared=shared)
    if tile is None:
        return None
    cycles = Cycles.of(blocked, tile, pixels, shared=shared)
    if cycles.sharing is not None and not cycles.sharing.cluster_sizes:
        return None
    return Tiled(blocked, tile, cycles, shared)


def time(
    blocked: BlockedConvolution,
    pixels: int,
    images: int,
    filters: int,
    *,
    shared: bool = False,
    instructions: float = 0,
) -> float:
    """Return the clock cycles of sm90 of a kernel for numbers of images and filters; infinity if it cannot run.

    ``instructions`` are the ones of the epilogue for each element; a light epilogue is part of the constants.
    """
    found = _kernel(blocked, pixels, shared)
    return inf if found is None else found.time(images, filters, instructions)


def start_of(blocked: BlockedConvolution, pixels: int, *, shared: bool = False) -> float:
    """Return the clock cycles of sm90 of a kernel's launch and set-up, and of its end; 0 if it cannot run."""
    found = _kernel(blocked, pixels, shared)
    return 0.0 if found is None else found.cycles.start


def tiles_of(blocked: BlockedConvolution, pixels: int, images: int, filters: int, *, shared: bool = False) -> int:
    """Return the number of tiles of a kernel; 0 if it cannot run."""
    found = _kernel(blocked, pixels, shared)
    return 0 if found is None else found.tiles(images, filters)


def fastest_kernels(
    known: Mapping[Variant, Tiled], filters: int, images: Sequence[int] = BATCHES
) -> tuple[Variant, ...]:
    """Return the kernels that are the fastest together, the best one first, for several batch sizes.

    The loss of a set is, for each batch size, the time of its best kernel minus the time of the best of all. The set
    grows one by one, as long as another kernel saves enough.
    """
    counts = Counter(images)
    times = {variant: [found.time(each, filters) for each in counts] for variant, found in known.items()}
    least = [min(each) for each in zip(*times.values(), strict=True)]
    # Times relative to the best, each as often as its batch size counts.
    scores = {
        variant: [
            time / shortest
            for time, shortest, count in zip(each, least, counts.values(), strict=True)
            for _ in range(count)
        ]
        for variant, each in times.items()
    }

    def best_beside(taken: Sequence[Variant]) -> tuple[float, Variant]:
        """Return the variant that is the best beside others, and the loss of all together."""
        others = [min(each) for each in zip(*(scores[each] for each in taken), strict=True)]
        losses = {variant: sum(map(min, others, score)) if others else sum(score) for variant, score in scores.items()}
        found = min(losses, key=losses.__getitem__)
        return losses[found], found

    taken: list[Variant] = []
    least_loss = inf
    for _ in range(_OFFERED):
        loss, added = best_beside(taken)
        found = [*taken, added]
        for place in range(len(found)):  # the first best may not be the best beside the others
            loss, found[place] = best_beside([*found[:place], *found[place + 1 :]])
        if loss > least_loss - _WORTH_A_KERNEL:
            break
        taken, least_loss = found, loss
    return tuple(sorted(taken, key=lambda each: sum(scores[each])))
