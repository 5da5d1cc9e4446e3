"""How the halo kernel cuts a convolution's output into tiles, and what these take: ``choose(plane, pixels) -> tile``.

A tile is 64 filters by at most ``pixels`` output pixels: ``rows`` rows of ``columns`` pixels. Its input, with the halo
that the taps reach, is a box of rows of ``pitch`` pixels, one after the other in shared memory; of a pixel it has the
channels of one plane. A tap's operand is the same memory, from ``dy * pitch + dx`` pixels on. So the instruction also
multiplies the pixels between ``columns`` and ``pitch``, in vain. Small images may be several in a tile. Of a stride,
the taps form groups of those that meet the same pixels of every ``stride``, and each group has its own box. A volume
is a stack of slices, whose taps along the depth are like planes of channels.

Of few channels, a row of taps is one tap of a window: a pixel is 16 bytes of a padded copy of the input, the next
windows of a row begin with the next pixels, and the instruction reads rows that overlap.

All this is codegen/include/evt/halo_geometry.hpp in Python: the kernel finds the same tile at the call.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

#: The filters of a tile.
FILTERS = 64
#: Clock cycles: see evt::halo::Cycles of halo_geometry.hpp. How many thread blocks may share a tile.
_START, _BETWEEN, _EPILOGUE_PER_PIXEL, _EXCHANGE, _EXCHANGE_PER_PIXEL = 3500, 1000, 10, 3500, 12
_LEFT_OVER, _LOADED_BYTES, _DEPTH_BYTES, _SPLITS = 28, 33, 32, (1, 2, 4, 8)

_LARGEST_BOX = 256  # of TMA
#: The bytes of a pixel that is a part of windows, whose rows TMA moves by 8 bytes at a time.
WINDOW_BYTES, _MOVED_BYTES = 16, 8

#: Shared memory: all that there is, its alignment, and what is left of it for tiles.
SHARED_BYTES = 232448
_ALIGNMENT = 1024
_FOR_TILES = SHARED_BYTES - 4 * _ALIGNMENT
#: How many taps' filters are loaded together, if all taps are a multiple of so many; how many such runs are in flight.
_RUNS, _RUNS_IN_FLIGHT = (3, 5, 1), 3


@dataclass(frozen=True, slots=True)
class Axis:
    """A spatial dimension: ``size`` and ``output`` are its pixels, ``pad`` those before the input.

    A tap multiplies a ``window`` of so many of them.
    """

    size: int
    output: int
    taps: int
    stride: int
    dilation: int
    pad: int
    window: int = 1

    @staticmethod
    def of(sizes: Mapping[str, int], name: str) -> Axis:
        """Return the dimension that a convolution's sizes have under a name: see ConvolutionProblem."""
        parts = ("", "output_", "filter_", "stride_", "dilation_", "pad_")
        return Axis(*(sizes[f"{part}{name}"] for part in parts))

    @property
    def halo(self) -> int:
        """How far the taps reach beyond a tile, in pixels of a box."""
        return (self.taps - 1) * self.dilation // self.stride + self.window - 1

    @property
    def groups(self) -> tuple[int, ...]:
        """The number of taps in each group."""
        found = [tap * self.dilation % self.stride for tap in range(self.taps)]
        return tuple(map(found.count, sorted(set(found))))

    @property
    def shared_pitch(self) -> int:
        """The smallest distance between two tiles of the whole dimension whose inputs lie one after the other.

        A tile may end before the pixels that its last taps reach: those then are the first ones of the next tile, and
        must be zeros like them.
        """
        reach = self.output + self.halo
        zeros_after = -(-(self.size + self.pad) // self.stride)
        zeros_before = reach - -(-self.pad // self.stride)
        return min(reach, max(self.output, zeros_after, zeros_before))


@dataclass(frozen=True, slots=True)
class Tile:
    """A tile: its images, of which several are whole ones, and the output pixels of each; the pitch of its input.

    ``box_rows`` are the rows from one image to the next, ``tiles`` are those of so many images.
    """

    images: int
    rows: int
    columns: int
    pitch: int
    box_rows: int
    tiles: int

    @property
    def positions(self) -> int:
        """The pixels that the instruction has to multiply."""
        return ((self.images - 1) * self.box_rows + self.rows - 1) * self.pitch + self.columns

    @property
    def box_pixels(self) -> int:
        return self.images * self.box_rows * self.pitch

    @property
    def score(self) -> int:
        """What is least for the best: the tiles of an image, then the pixels that are loaded."""
        return (self.tiles << 20) // self.images + self.box_pixels // self.images


@dataclass(frozen=True)
class Plane:
    """A convolution cut into ``planes`` of channels, of a ``volume`` for each tap along the depth.

    Of each a tap multiplies so many ``bytes`` for a pixel, which are those of the pixel itself if it is no window.
    """

    height: Axis
    width: Axis
    bytes: int
    planes: int
    volume: bool = False

    @staticmethod
    def of(sizes: Mapping[str, int], channels: int, element_bytes: int) -> Plane:
        """Return a convolution of these sizes with planes of so many channels."""
        height, width = Axis.of(sizes, "height"), Axis.of(sizes, "width")
        planes, volume = -(-sizes["channels"] // channels), "depth" in sizes
        return Plane(height, width, channels * element_bytes, planes * sizes.get("filter_depth", 1), volume)

    @staticmethod
    def of_windows(height: Axis, columns: int, window_bytes: int) -> Plane:
        """Return a convolution with so many columns, in which a tap multiplies so many bytes of a window."""
        windows = Axis(0, columns, 1, 1, 1, 0, window_bytes // WINDOW_BYTES)  # rows of the copy are as long as it needs
        return Plane(height, windows, window_bytes, 1)

    @property
    def pixel_bytes(self) -> int:
        """The bytes of a pixel in a box."""
        return WINDOW_BYTES if self.width.window > 1 else self.bytes

    @property
    def is_one_group(self) -> bool:
        """Whether all taps meet the same pixels, so that tiles may share their padding."""
        return len(self.height.groups) * len(self.width.groups) == 1

    @property
    def image_rows(self) -> int:
        """The rows from one image of a tile to the next."""
        return self.height.shared_pitch if self.is_one_group else self.height.output + self.height.halo

    def pitch(self, columns: int) -> int:
        """Return the pitch of rows of so many output pixels."""
        whole = columns == self.width.output and self.is_one_group
        return self.width.shared_pitch if whole else columns + self.width.halo

    @cached_property
    def filters(self) -> list[tuple[int, int]]:
        """The fewest bytes of filters in flight, and of boxes, for each length of a run."""
        groups = [rows * columns for rows in self.height.groups for columns in self.width.groups]
        enters = [tap == 0 for taps in groups for tap in range(taps)]
        taps = len(enters)
        found = []
        for run in _RUNS:
            if taps % run == 0:
                two = ([enters[tap % taps] for tap in range(at + 1, at + 2 * run)] for at in range(0, taps, run))
                boxes = max(2, 1 + max(map(sum, two)))
                found.append((min(_RUNS_IN_FLIGHT, taps // run * self.planes) * run * FILTERS * self.bytes, boxes))
        return found


@dataclass(frozen=True, slots=True)
class Cycles:
    """What tiles of a halo kernel take, in clock cycles; thread blocks may share the planes of each.

    ``plane`` is what a plane of a tile takes.
    """

    planes: int
    plane: int
    pixels: int

    @staticmethod
    def of(plane: Plane, tile: Tile, pixels: int) -> Cycles:
        """Return those of a convolution's tiles, by instructions of so many pixels."""
        taps, groups = plane.height.taps * plane.width.taps, len(plane.height.groups) * len(plane.width.groups)
        multiplied = taps * (plane.bytes // _DEPTH_BYTES) * pixels // 2
        loaded = (groups * tile.box_pixels * plane.pixel_bytes + taps * FILTERS * plane.bytes) // _LOADED_BYTES
        return Cycles(plane.planes, max(multiplied, loaded), pixels)

    def all(self, tiles: int, splits: int, multiprocessors: int) -> int:
        """Return the time of so many tiles, of which each is shared by so many thread blocks."""
        waves = -(-tiles * splits // (multiprocessors - multiprocessors * (splits - 1) // _LEFT_OVER))
        once = _START + self.pixels * _EPILOGUE_PER_PIXEL
        if splits == 1:
            return once + waves * (self.planes * self.plane + _BETWEEN)
        exchange = _EXCHANGE + self.pixels * _EXCHANGE_PER_PIXEL
        return waves * (once + exchange + -(-self.planes // splits) * self.plane)

    def splits(self, tiles: int, multiprocessors: int) -> int:
        """Return how many thread blocks share each of so many tiles."""
        known = [each for each in _SPLITS if each <= max(1, self.planes)]
        return min(known, key=lambda each: self.all(tiles, each, multiprocessors))

    def least(self, tiles: int, multiprocessors: int) -> int:
        """Return the time of so many tiles."""
        return self.all(tiles, self.splits(tiles, multiprocessors), multiprocessors)


def choose(plane: Plane, pixels: int) -> Tile | None:
    """Return the tile for a width of the instruction, or None: the one with the fewest, then with the least to load."""
    parts = (_tallest(plane, columns, pixels) for columns in _columns(plane.width, pixels))
    found = [tile for tile in (*parts, _most_images(plane, pixels)) if tile is not None]
    return min(found, key=lambda tile: tile.score, default=None)


def _columns(width: Axis, pixels: int) -> Iterator[int]:
    """Yield the widths of tiles that divide the output evenly, the widest first, down to an eighth of the pixels."""
    across = -(-width.output // min(width.output, pixels))
    while across <= width.output:
        columns = -(-width.output // across)
        yield columns
        if columns * 8 < pixels or columns <= 8:
            return
        across = -(-width.output // (columns - 1))  # the fewest tiles that are narrower


def _tallest(plane: Plane, columns: int, pixels: int) -> Tile | None:
    """Return the tile of so many columns with the most rows that fits, or None."""
    output = plane.height.output
    most = min(output, (pixels - columns) // plane.pitch(columns) + 1)
    heights = (-(-output // high) for high in range(-(-output // most), output + 1))
    return next((tile for rows in heights if (tile := _arrange(plane, 1, rows, columns, pixels)) is not None), None)


def _most_images(plane: Plane, pixels: int) -> Tile | None:
    """Return the tile of several whole images with the most of them that fits, or None; those of a volume are apart."""
    if plane.volume:
        return None
    rows, columns = plane.height.output, plane.width.output
    counts = range(pixels // (plane.image_rows * plane.pitch(columns)) + 1, 1, -1)
    return next((tile for count in counts if (tile := _arrange(plane, count, rows, columns, pixels)) is not None), None)


def _arrange(plane: Plane, images: int, rows: int, columns: int, pixels: int) -> Tile | None:
    """Return a tile, or None where TMA does not move its boxes, or shared memory has no room for what is in flight."""
    height, width, pitch = plane.height, plane.width, plane.pitch(columns)
    reach = rows + height.halo
    box_rows = plane.image_rows if images > 1 else reach
    made = Tile(images, rows, columns, pitch, box_rows, -(-height.output // rows) * -(-width.output // columns))
    across = pitch * plane.pixel_bytes // _MOVED_BYTES - 1 if width.window > 1 else (pitch - 1) * width.stride
    if made.positions > pixels or max(across, (box_rows - 1) * height.stride) >= _LARGEST_BOX:
        return None
    guard = (reach - box_rows) * pitch + columns + width.halo - pitch
    box = _aligned((made.box_pixels + guard) * plane.pixel_bytes)
    stored = made.box_pixels if images > 1 else rows * pitch
    left = _FOR_TILES - 2 * _aligned(max(pixels, stored) * 2 * FILTERS)
    return made if any(filters + boxes * box <= left for filters, boxes in plane.filters) else None


def _aligned(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT
