"""The compile-time facts of a halo kernel.

Part of :mod:`evt.plan.geometry`.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class KernelClass:
    """Compile-time facts of a kernel that decide its geometry."""

    #: N of WGMMA.
    pixels: int
    #: Channels of a block, and the bytes that a tap multiplies for each pixel.
    channels: int
    block_bytes: int
    #: Bytes of a pixel in a box: fewer than block_bytes if a tap multiplies windows, more if a swizzled row is longer.
    pixel_bytes: int
    #: C or D is moved by TMA through shared memory.
    staged: bool
    volume: bool = False
    #: The CTAs of a cluster share each tile; each has one consumer.
    shared: bool = False
    #: A tile has pixels of one residue class: the gradient of a convolution with a stride.
    residues: bool = False
    #: The convolution has groups. With ``packed``, a block of filters has several; threads load its filters, once.
    grouped: bool = False
    packed: bool = False
    #: Threads copy the input word by word, whose pixels are not aligned as TMA needs.
    words: bool = False
    #: A tile has pixels of one image: a reduction is over the pixels of each image.
    by_images: bool = False
    #: The taps whose filters share a stage, if they fit; 0 if the size of the filters was not known.
    taps_per_stage: int = 0
    #: A row of a tile is a tap of a filter: the products of a filter's taps are summed in the epilogue.
    tap_rows: bool = False
    #: The epilogue loads packed bits of a tile, which stay in shared memory: a word for each pixel.
    loads_bits: bool = False

    @property
    def consumers(self) -> int:
        """Consumer warpgroups."""
        return 1 if self.shared else 2

    @property
    def has_windows(self) -> bool:
        """A row of taps is one tap over a window."""
        return self.pixel_bytes < self.block_bytes

    @property
    def loads_by_threads(self) -> bool:
        """Threads load the input."""
        return self.has_windows or self.words

    @property
    def filters_stay(self) -> bool:
        """Threads load the filters before the first tile, and all of them stay in shared memory."""
        return self.has_windows or self.packed

    @property
    def filter_bytes(self) -> int:
        """Bytes of a filter's row of channels in shared memory."""
        return max(self.block_bytes, self.pixel_bytes)

    def shares(self, taps: int) -> bool:
        """Return whether the kernel has the multiplication of a number of taps in a stage."""
        return taps == 1 or (not self.residues and (self.taps_per_stage == 0 or self.taps_per_stage == taps))
