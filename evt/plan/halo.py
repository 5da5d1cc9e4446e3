"""How the halo kernel cuts a convolution's output into tiles, and which widths of its instruction suit that.

A tile is 64 filters by at most ``pixels`` output pixels: ``rows`` rows of ``columns`` pixels. Its input, with the halo
that the taps reach, is a box of rows of ``pitch`` pixels, one after the other in shared memory; of a pixel it has the
channels of one plane. A tap's operand is the same memory, from ``dy * pitch + dx`` pixels on. So the instruction also
multiplies the pixels between ``columns`` and ``pitch``, in vain. Of a stride, the taps form groups of those that meet
the same pixels of every ``stride``, and each group has its own box.

``choose`` is evt::halo::choose of codegen/include/evt/halo_geometry.hpp: the kernel finds the same tile at the call.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from evt.ir.convolution import Convolution, ConvolutionProblem

#: What the instruction multiplies at a time: so many pixels, by so many filters.
PIXELS = range(64, 257, 8)
FILTERS = 64
#: The bytes of a pixel in a plane, and the time for a byte of its channels, relative to that of a wide one.
_PLANES = {128: 1.0, 64: 1.08, 32: 1.2}
#: What a tile takes besides its multiplications, as the number of pixels that take as long.
OVERHEAD = 24
#: How many widths are built, to choose from by the number of tiles.
_OFFERED = 3

_MOST_TAPS = 64
_LARGEST_STEP = 8  # of TMA's boxes
_LARGEST_BOX = 256

#: Shared memory: all that there is, its alignment, and what is left of it for tiles.
SHARED_BYTES = 232448
_ALIGNMENT = 1024
_FOR_TILES = SHARED_BYTES - 4 * _ALIGNMENT
#: How many taps' filters are loaded together, if all taps are a multiple of so many; how many such runs are in flight.
_RUNS, _RUNS_IN_FLIGHT = (3, 5, 1), 3


@dataclass(frozen=True, slots=True)
class Halo:
    """What a halo kernel is specialised for: its ``pixels``, those of the fastest first, and the bytes of a plane.

    ``fast``: whether it is expected to be faster than an implicit GEMM by TMA's im2col mode. ``reason``: why there is
    no such kernel, or "".
    """

    pixels: tuple[int, ...]
    plane_bytes: int = 128
    fast: bool = False
    reason: str = ""


#: Of sizes that are not known: tiles of 4, 3 and 2 rows of 56 pixels.
UNKNOWN = Halo((232, 176, 120))


@dataclass(frozen=True, slots=True)
class Axis:
    """A spatial dimension: ``size`` and ``output`` are its pixels, ``pad`` those before the input."""

    size: int
    output: int
    taps: int
    stride: int
    dilation: int
    pad: int

    @staticmethod
    def of(sizes: Mapping[str, int], name: str) -> Axis:
        """Return the dimension that a convolution's sizes have under a name: see ConvolutionProblem."""
        parts = ("", "output_", "filter_", "stride_", "dilation_", "pad_")
        return Axis(*(sizes[f"{part}{name}"] for part in parts))

    @property
    def halo(self) -> int:
        """How far the taps reach beyond a tile, in pixels of a box."""
        return (self.taps - 1) * self.dilation // self.stride

    @property
    def groups(self) -> tuple[int, ...]:
        """The number of taps in each group."""
        found = [tap * self.dilation % self.stride for tap in range(self.taps)]
        return tuple(map(found.count, sorted(set(found))))


@dataclass(frozen=True, slots=True)
class Tile:
    """A tile's output pixels, the pitch of its input, the rows of a box of that, and how many tiles an image has."""

    rows: int
    columns: int
    pitch: int
    box_rows: int
    tiles: int

    @property
    def positions(self) -> int:
        """The pixels that the instruction has to multiply."""
        return (self.rows - 1) * self.pitch + self.columns


def halo_of(geometry: Convolution, problem: ConvolutionProblem | None, element_bytes: int) -> Halo:
    """Return how the halo kernel serves a convolution with elements of this many bytes."""
    if geometry.operator != "fprop" or geometry.rank > 2 or geometry.groups > 1:
        return Halo((), reason="it is no fprop of one or two dimensions without groups")
    if max(geometry.stride) > _LARGEST_STEP:
        return Halo((), reason=f"a stride is beyond {_LARGEST_STEP}, the largest step of TMA's boxes")
    if problem is None:
        return UNKNOWN
    sizes = problem.sizes
    taps = sizes["filter_height"] * sizes["filter_width"]
    if taps > _MOST_TAPS:
        return Halo((), reason=f"the filters have more than {_MOST_TAPS} taps")
    # To be measured: where the input is read so often that an implicit GEMM waits for it. Of few channels, the windows
    # of padded copies make fewer steps.
    fast = 8 < problem.channels <= (256 if taps > 1 else 128)
    for plane_bytes in sorted(_PLANES, key=lambda each: padded_bytes(problem.channels * element_bytes, each)):
        planes = -(-problem.channels * element_bytes // plane_bytes)
        pixels = fastest_pixels(sizes, plane_bytes, planes)
        if pixels:
            return Halo(pixels, plane_bytes, fast)
    return Halo((), reason="a tile and its halo do not fit in shared memory")


def padded_bytes(channel_bytes: int, plane_bytes: int) -> float:
    """Return the channels of a pixel in whole planes, in the time for bytes of wide planes."""
    return -(-channel_bytes // plane_bytes) * plane_bytes * _PLANES[plane_bytes]


def fastest_pixels(sizes: Mapping[str, int], plane_bytes: int, planes: int) -> tuple[int, ...]:
    """Return the widths of the instruction that waste least, the best first; () where no tile fits.

    Of those that make equally many tiles, only the smallest counts.
    """
    times: dict[int, int] = {}
    fewest = 0
    for pixels in PIXELS:
        tile = choose(sizes, pixels, plane_bytes, planes)
        if tile is not None and (not fewest or tile.tiles < fewest):
            fewest = tile.tiles
            times[pixels] = tile.tiles * (pixels + OVERHEAD)
    return tuple(sorted(times, key=times.__getitem__)[:_OFFERED])


def choose(sizes: Mapping[str, int], pixels: int, plane_bytes: int, planes: int) -> Tile | None:
    """Return the tile for a width of the instruction, or None: the one with the fewest, then with the least to load."""
    height, width = Axis.of(sizes, "height"), Axis.of(sizes, "width")
    filters = _filters_in_flight(height, width, plane_bytes, planes)
    found = (_tallest(height, width, columns, pixels, plane_bytes, filters) for columns in _columns(width, pixels))
    fitting = (tile for tile in found if tile is not None)
    return min(fitting, key=lambda tile: (tile.tiles, tile.box_rows * tile.pitch), default=None)


def _columns(width: Axis, pixels: int) -> Iterator[int]:
    """Yield the widths of tiles that divide the output evenly, the widest first, down to an eighth of the pixels."""
    across = -(-width.output // min(width.output, pixels))
    while across <= width.output:
        columns = -(-width.output // across)
        yield columns
        if columns * 8 < pixels or columns <= 8:
            return
        across += 1


def _filters_in_flight(height: Axis, width: Axis, plane_bytes: int, planes: int) -> list[tuple[int, int]]:
    """Return the fewest bytes of filters that memory has room for and the fewest boxes, for each length of a run."""
    groups = [rows * columns for rows in height.groups for columns in width.groups]
    enters = [tap == 0 for taps in groups for tap in range(taps)]
    taps = len(enters)
    found = []
    for run in _RUNS:
        if taps % run == 0:
            two = ([enters[tap % taps] for tap in range(first + 1, first + 2 * run)] for first in range(0, taps, run))
            boxes = max(2, 1 + max(map(sum, two)))
            found.append((min(_RUNS_IN_FLIGHT, taps // run * planes) * run * FILTERS * plane_bytes, boxes))
    return found


def _tallest(
    height: Axis, width: Axis, columns: int, pixels: int, plane_bytes: int, filters: list[tuple[int, int]]
) -> Tile | None:
    """Return the tile of so many columns with the most rows that fits in memory beside the filters, or None."""
    pitch = pitch_of(height, width, columns)
    most = min(height.output, (pixels - columns) // pitch + 1)
    for high in range(-(-height.output // most), height.output + 1):
        rows = -(-height.output // high)
        tiles = -(-height.output // rows) * -(-width.output // columns)
        made = Tile(rows, columns, pitch, rows + height.halo, tiles)
        boxed = (pitch - 1) * width.stride < _LARGEST_BOX and (made.box_rows - 1) * height.stride < _LARGEST_BOX
        guard = columns + width.halo - pitch
        box = _aligned((made.box_rows * pitch + guard) * plane_bytes)
        results = _aligned(max(pixels, rows * pitch) * 2 * FILTERS)
        if boxed and any(bytes_ + boxes * box + 2 * results <= _FOR_TILES for bytes_, boxes in filters):
            return made
    return None


def pitch_of(height: Axis, width: Axis, columns: int) -> int:
    """Return the smallest pitch of rows of so many output pixels.

    A box whose rows are as wide as the output's may end before the pixels that its last taps reach: those then are the
    first ones of the next row, and must be zeros like them.
    """
    reach = columns + width.halo
    if columns < width.output or len(height.groups) * len(width.groups) > 1:
        return reach
    zeros_after = -(-(width.size + width.pad) // width.stride)
    zeros_before = reach - -(-width.pad // width.stride)
    return min(reach, max(columns, zeros_after, zeros_before))


def _aligned(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT
