"""The kernel of a group norm and its clusters: ``kernel_of(images, channels, pixels, groups, ...) -> GroupNorm``."""

from __future__ import annotations

import math
from dataclasses import dataclass

#: The elements of a thread's vector, and the fewest channels of a group: a vector then has at most two groups.
VECTOR = 8
#: The fewest channels of a cluster: a sector of memory has 32 bytes.
_SECTOR = 16
_THREADS = 256
#: The most bytes of a CTA's shared memory, and the CTAs of the largest portable cluster. An SM has three such CTAs.
SHARED_BYTES, _MOST_CTAS = 72 * 1024, 8
#: The fewest CTAs of a call, and the most bytes of a CTA, if the cluster can have more CTAs. With these, seven norms of
#: 0.5 to 8 million elements take at most 1.08 of the time of their best clusters on an H200, 2026-11-28. A norm of 17
#: million elements with CTAs of 128 KB takes 84 us, and 46 us by Inductor.
_BUSY, _ENOUGH = 99, 24 * 1024


@dataclass(frozen=True, slots=True)
class GroupNorm:
    """A kernel of codegen/include/evt/group_norm.hpp, for elements of 16 bits.

    ``element`` and ``gain`` are types of element.hpp: of the image, and of the vectors of channels. A cluster of
    ``ctas`` normalizes ``slice`` channels of an image, which are whole groups of ``of_group`` channels.
    """

    element: str
    gain: str
    of_group: int
    slice: int
    ctas: int
    is_silu: bool
    threads: int = _THREADS

    def shared_bytes(self, pixels: int) -> int:
        """Return the bytes of a CTA's shared memory: the moments of its groups, a barrier, and its pixels."""
        moments = 8 * (self.threads // 32 + self.ctas + 1) * (self.slice // self.of_group) + 8
        return -(-moments // 16) * 16 + -(-pixels // self.ctas) * self.slice * 2


def kernel_of(
    images: int, channels: int, pixels: int, groups: int, *, element: str, gain: str, is_silu: bool
) -> GroupNorm | None:
    """Return the kernel of a norm, or None if a cluster cannot keep the pixels of a group.

    Clusters grow until the CTAs keep the GPU busy.
    """
    of_group = channels // groups
    of_cluster = max(math.lcm(of_group, VECTOR), _SECTOR)
    if of_group < VECTOR or channels % of_cluster or of_cluster > VECTOR * _THREADS:
        return None
    clusters, ctas = images * channels // of_cluster, 1
    while ctas <= _MOST_CTAS:
        made = GroupNorm(element, gain, of_group, of_cluster, ctas, is_silu)
        if clusters * ctas >= _BUSY and made.shared_bytes(pixels) <= _ENOUGH:
            return made
        ctas *= 2
    return made if made.shared_bytes(pixels) <= SHARED_BYTES else None


__all__ = ["SHARED_BYTES", "VECTOR", "GroupNorm", "kernel_of"]
