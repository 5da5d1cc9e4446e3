"""How the halo kernel cuts a convolution's output into tiles, and what these take: ``choose(plane, pixels) -> tile``.

A tile is 64 filters by at most ``pixels`` output pixels: ``rows`` rows of ``columns`` pixels. Its input, with the halo
that the taps reach, is a box of rows of ``pitch`` pixels, one after the other in shared memory; of a pixel it has the
channels of one plane. A tap's operand is the same memory, from ``dy * pitch + dx`` pixels on. So the instruction also
multiplies the pixels between ``columns`` and ``pitch``, in vain; of eight columns there are none between rows, as it
takes each eight pixels from where the next row is. Small images may be several in a tile. Of a stride, the taps form
groups of those that meet the same pixels of every ``stride``, and each group has its own box. A volume is a stack of
slices, whose taps along the depth are like planes of channels.

Of few channels, a row of taps is one tap of a window: a pixel is 16 bytes, of so many pixels of the input as a step of
the stride has, the next windows of a row begin with the next pixels, and the instruction reads rows that overlap.

All this is codegen/include/evt/halo_geometry.hpp in Python: the kernel finds the same tile at the call. Where it has to
itself what C and D have here, because TMA moves neither, it may find one with longer runs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice
from math import inf, sqrt

#: The filters of a tile, and the bytes of k that an instruction multiplies by them.
FILTERS, DEPTH_BYTES = 64, 32
#: Clock cycles, fits to measurements on an H200: of a kernel with its launch, and of each pixel of its tile; of a
#: tile's epilogue, and of each of its pixels; and of a run of taps at least.
_START, _START_PER_PIXEL, _EPILOGUE, _EPILOGUE_PER_PIXEL, _STEP = 13700, 1.5, 465, 15, 240
#: The eighths of a line of L2 that TMA loads in a cycle, the bytes of shared memory that the tensor cores read, and
#: those that are written.
_EIGHTHS_A_CYCLE, _READ_BYTES, _WRITTEN_BYTES = 5, 128, 320
#: The same where thread blocks share tiles, whose epilogue is not hidden: see evt::halo::Cycles of halo_geometry.hpp.
_START_SHARED, _BETWEEN_SHARED, _EXCHANGE_PER_BLOCK, _EXCHANGE_PER_STEP = 10350, 2950, 180, 790
_LEFT_OVER, _MULTIPROCESSORS = 28, 132
#: How much longer they take where they keep all multiprocessors busy.
_CONTENTION = 0.06
#: Of one tap: the planes from which on the consumers are paired; how much longer a plane takes that each loads alone,
#: where more than half of the multiprocessors do; and the part of an epilogue that pairs do not hide.
_MANY_PLANES, _NOT_PAIRED, _NOT_HIDDEN = 4, 1.3, 0.25
#: Where pixels are widened, of each tile, pixel and row of taps: for first layers, whose C and D are large.
_WIDENED, _WIDENED_PIXEL, _WIDENED_TAP = 640, 12, 150
#: How many thread blocks may share a tile, and the pixels of a step of their epilogue.
_BLOCKS, _STEP_PIXELS = (2, 4, 8), 16
#: A line of L2.
_LINE_BYTES = 128

_LARGEST_BOX = 256  # of TMA
#: The pixels that follow one another in an operand: how far the next are is its stride.
EIGHT = 8
#: The bytes of a pixel that is a part of windows.
WINDOW_BYTES = 16

#: Shared memory: all that there is, its alignment, and what is left of it for tiles.
SHARED_BYTES = 232448
_ALIGNMENT = 1024
_FOR_TILES = SHARED_BYTES - 4 * _ALIGNMENT
#: How many taps' filters are loaded together, if all taps are a multiple of so many; how many such runs are in flight.
_RUNS, _RUNS_IN_FLIGHT = (3, 5, 1), 3
_MOST_BOXES = 8
#: Of windows, the boxes in flight are a multiple of the warps that load them.
_WIDENERS = 3


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
    """A tile: its images, of which several are whole ones, and the output pixels of each.

    ``pitch`` is that of its input, ``sum_pitch`` that of its sums; ``box_rows`` are the rows from one image to the
    next, ``tiles`` are those of so many images, ``run`` the taps whose filters are loaded together. ``box_bytes`` are
    those of the boxes that are needed at least, ``left`` is what they and filters may have of shared memory.
    """

    images: int
    rows: int
    columns: int
    pitch: int
    sum_pitch: int
    box_rows: int
    tiles: int
    run: int
    box_bytes: int = 0
    left: int = 0

    @property
    def positions(self) -> int:
        """The pixels that the instruction has to multiply."""
        return ((self.images - 1) * self.box_rows + self.rows - 1) * self.sum_pitch + self.columns

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
    Eight pixels are in so many lines of L2: see :meth:`cut`.
    """

    height: Axis
    width: Axis
    bytes: int
    planes: int
    volume: bool = False
    lines_of_eight: int = EIGHT

    @staticmethod
    def of(sizes: Mapping[str, int], channels: int, element_bytes: int) -> Plane:
        """Return a convolution of these sizes with planes of so many channels."""
        height, width = Axis.of(sizes, "height"), Axis.of(sizes, "width")
        depth = sizes["filter_depth"] if "depth" in sizes else None
        return Plane.cut(height, width, depth, sizes["channels"] * element_bytes, channels * element_bytes)

    @staticmethod
    def cut(height: Axis, width: Axis, depth_taps: int | None, channel_bytes: int, plane_bytes: int) -> Plane:
        """Return a convolution cut into planes of so many bytes of its pixels' channels, of a volume with its taps.

        Pixels and filters are taken to be dense, so that where these bytes are no multiple of a line's, many begin in
        the middle of one: TMA takes as long for each line that a pixel touches as for a whole one.
        """
        planes, loaded = -(-channel_bytes // plane_bytes), min(channel_bytes, plane_bytes)
        starts = (pixel * channel_bytes % _LINE_BYTES for pixel in range(EIGHT))
        lines = sum(-(-(start + loaded) // _LINE_BYTES) for start in starts)
        return Plane(height, width, plane_bytes, planes * (depth_taps or 1), depth_taps is not None, lines)

    @staticmethod
    def of_product(rows: int, row_bytes: int, plane_bytes: int) -> Plane:
        """Return a matrix as an image of one row, which has a pixel of so many bytes for each of the matrix's rows."""
        return Plane.cut(Axis(1, 1, 1, 1, 1, 0), Axis(rows, rows, 1, 1, 1, 0), None, row_bytes, plane_bytes)

    @staticmethod
    def of_windows(height: Axis, columns: int, window_bytes: int) -> Plane:
        """Return a convolution with so many columns, in which a tap multiplies so many bytes of a window."""
        windows = Axis(0, columns, 1, 1, 1, 0, window_bytes // WINDOW_BYTES)  # they do not share their padding
        return Plane(height, windows, window_bytes, 1)

    @property
    def pixel_bytes(self) -> int:
        """The bytes of a pixel in a box."""
        return WINDOW_BYTES if self.has_windows else self.bytes

    @property
    def has_windows(self) -> bool:
        return self.width.window > 1

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
    def runs(self) -> list[tuple[int, int]]:
        """The lengths of a run, and of each the fewest boxes in flight, of which there can be so many."""
        groups = [rows * columns for rows in self.height.groups for columns in self.width.groups]
        enters = [tap == 0 for taps in groups for tap in range(taps)]
        taps = len(enters)
        found = []
        for run in _RUNS:
            if taps % run == 0:
                two = ([enters[tap % taps] for tap in range(at + 1, at + 2 * run)] for at in range(0, taps, run))
                boxes = max(2, 1 + max(map(sum, two)))
                if self.has_windows:
                    boxes = -(-boxes // _WIDENERS) * _WIDENERS
                if boxes <= _MOST_BOXES:
                    found.append((run, boxes))
        return found

    def filter_bytes(self, run: int, planes: int) -> int:
        """Return the fewest bytes of filters in flight, in runs of so many taps, for so many planes."""
        taps = self.height.taps * self.width.taps
        runs = taps // run * planes  # those of windows stay
        return (runs if self.has_windows else min(_RUNS_IN_FLIGHT, runs)) * run * FILTERS * self.bytes


@dataclass(frozen=True, slots=True)
class Cycles:
    """What tiles of a halo kernel take, in clock cycles.

    ``plane`` is what each of the ``planes`` of a tile takes, by instructions of so many ``pixels``; ``sharers`` are the
    numbers of thread blocks for whose sums shared memory has room. ``held_up`` is how many times longer a plane takes
    where shared memory has room for fewer boxes than a plane has groups of taps: 64 -> 128 channels at 160x160 with a
    stride of 2 took 49 us with 3 boxes, 42 with 4. ``waits``: whether there is one tap, so that the tensor cores wait
    for L2, and two consumers may share tiles of pixels: see evt::halo::pair in halo_geometry.hpp.
    """

    planes: int
    plane: int
    pixels: int
    sharers: tuple[int, ...]
    held_up: float = 1.0
    waits: bool = False

    @staticmethod
    def of(plane: Plane, tile: Tile, pixels: int) -> Cycles:
        """Return those of a convolution's tiles, by instructions of so many pixels."""
        taps, groups = plane.height.taps * plane.width.taps, len(plane.height.groups) * len(plane.width.groups)
        known = (each for each in _BLOCKS if each <= plane.planes)
        sharers = tuple(each for each in known if _has_room_for_sums(plane, tile, pixels, each))
        box_bytes = tile.box_bytes // dict(plane.runs)[tile.run]
        boxes = (tile.left - plane.filter_bytes(tile.run, plane.planes)) // box_bytes
        instructions = taps * (plane.bytes // DEPTH_BYTES)
        multiplied = instructions * pixels // 2
        if plane.has_windows:
            cycles = max(multiplied, pixels * _WIDENED_PIXEL + taps * _WIDENED_TAP) + _WIDENED
        else:
            rows = groups * tile.box_pixels + taps * FILTERS
            loaded = rows * plane.lines_of_eight // _EIGHTHS_A_CYCLE
            read, written = instructions * (FILTERS + pixels) * DEPTH_BYTES, rows * plane.bytes
            memory = read // _READ_BYTES + written // _WRITTEN_BYTES
            cycles = _together(max(multiplied, taps // tile.run * _STEP), loaded, memory)
        return Cycles(plane.planes, cycles, pixels, sharers, max(1.0, groups / boxes), waits=taps == 1)

    def alone(self, tiles: int, filters: int) -> float:
        """Return the time of so many tiles for each 64 of the filters, of which a thread block has some to itself."""
        items, pairs = tiles * -(-filters // FILTERS), tiles * -(-filters // (2 * FILTERS))
        waves, waves_of_pairs = -(-items // _MULTIPROCESSORS), 2 * -(-pairs // _MULTIPROCESSORS)
        multiplied = self.planes * self.plane * self.held_up
        epilogue = _EPILOGUE + self.pixels * _EPILOGUE_PER_PIXEL
        start = _START + self.pixels * _START_PER_PIXEL
        if self.waits and self.planes >= _MANY_PLANES and filters > FILTERS:
            if waves_of_pairs - waves <= waves // 8:
                return start + waves_of_pairs * (multiplied + _NOT_HIDDEN * epilogue)
            multiplied *= _NOT_PAIRED if 2 * items > _MULTIPROCESSORS else 1
        # One consumer completes its tile while the other multiplies.
        return start + waves * max(multiplied, (multiplied + epilogue) / 2)

    def shared(self, tiles: int) -> float:
        """Return the time of so many tiles that thread blocks share; infinity where they cannot."""
        blocks = self.blocks(tiles)
        busy = min(1.0, tiles * blocks / _MULTIPROCESSORS)
        return self._shared(tiles, blocks) * (1 + _CONTENTION * busy) if blocks else inf

    def blocks(self, tiles: int) -> int:
        """Return how many thread blocks share each of so many tiles, or 0."""
        return min(self.sharers, key=lambda blocks: self._shared(tiles, blocks), default=0)

    def _shared(self, tiles: int, blocks: int) -> int:
        # The multiprocessors of a cluster are neighbours: of some groups of them, a few are left over.
        waves = -(-tiles * blocks // (_MULTIPROCESSORS - _MULTIPROCESSORS * (blocks - 1) // _LEFT_OVER))
        steps = -(-self.pixels // _STEP_PIXELS)
        exchange = blocks * _EXCHANGE_PER_BLOCK + -(-steps // blocks) * _EXCHANGE_PER_STEP
        return _START_SHARED + waves * (_BETWEEN_SHARED + exchange + -(-self.planes // blocks) * self.plane)


def choose(plane: Plane, pixels: int, *, shared: bool = False) -> Tile | None:
    """Return the tile for a width of the instruction, or None: the one with the fewest, then with the least to load.

    A thread block that shares its tiles has one consumer, whose buffer of C and D is the only one.
    """
    consumers = 1 if shared else 2
    tallest = filter(None, (_tallest(plane, columns, pixels, consumers) for columns in _columns(plane.width, pixels)))
    # Fewer columns of a single row make more tiles.
    wide = islice(tallest, 1 if plane.height.output == 1 else None)
    several = (_most_images(plane, pixels, consumers, eights=eights) for eights in (False, True))
    parts = (*wide, _tallest(plane, EIGHT, pixels, consumers, eights=True), *several)
    return min((tile for tile in parts if tile is not None), key=lambda tile: tile.score, default=None)


def _columns(width: Axis, pixels: int) -> Iterator[int]:
    """Yield the widths of tiles that divide the output evenly, the widest first, down to an eighth of the pixels."""
    across = -(-width.output // min(width.output, pixels))
    while across <= width.output:
        columns = -(-width.output // across)
        yield columns
        if columns * 8 < pixels or columns <= 8:
            return
        across = -(-width.output // (columns - 1))  # the fewest tiles that are narrower


def _tallest(plane: Plane, columns: int, pixels: int, consumers: int, *, eights: bool = False) -> Tile | None:
    """Return the tile of so many columns with the most rows that fits, or None."""
    output = plane.height.output
    most = min(output, pixels // EIGHT if eights else (pixels - columns) // plane.pitch(columns) + 1)
    heights = (-(-output // high) for high in range(-(-output // most), output + 1))
    found = (_arrange(plane, 1, rows, columns, pixels, consumers, eights=eights) for rows in heights)
    return next((tile for tile in found if tile is not None), None)


def _most_images(plane: Plane, pixels: int, consumers: int, *, eights: bool) -> Tile | None:
    """Return the tile of several whole images with the most of them that fits, or None; those of a volume are apart."""
    rows, columns = plane.height.output, plane.width.output
    if plane.volume or (eights and columns > EIGHT):
        return None
    columns, pitch = (EIGHT, EIGHT) if eights else (columns, plane.pitch(columns))
    counts = range(pixels // (plane.image_rows * pitch) + 1, 1, -1)
    found = (_arrange(plane, images, rows, columns, pixels, consumers, eights=eights) for images in counts)
    return next((tile for tile in found if tile is not None), None)


def _arrange(
    plane: Plane, images: int, rows: int, columns: int, pixels: int, consumers: int, *, eights: bool
) -> Tile | None:
    """Return a tile, or None where TMA does not move its boxes, or shared memory has no room for what is in flight."""
    height, width = plane.height, plane.width
    pitch = EIGHT + width.halo if eights else plane.pitch(columns)
    sum_pitch = EIGHT if eights else pitch
    reach = rows + height.halo
    box_rows = plane.image_rows if images > 1 else reach
    tiles = -(-height.output // rows) * -(-width.output // columns)
    made = Tile(images, rows, columns, pitch, sum_pitch, box_rows, tiles, run=0)
    largest = 0 if plane.has_windows else max((pitch - 1) * width.stride, (box_rows - 1) * height.stride)
    if made.positions > pixels or sum_pitch > _LARGEST_BOX or largest >= _LARGEST_BOX:
        return None
    guard = (reach - box_rows) * pitch + columns + width.halo - pitch
    box = _aligned((made.box_pixels + guard) * plane.pixel_bytes)
    idle = pixels - made.positions
    beyond = (idle // EIGHT * pitch if eights else idle) * plane.pixel_bytes  # read, and multiplied in vain
    stored = (images * box_rows if images > 1 else rows) * sum_pitch
    left = _FOR_TILES - consumers * _aligned(max(pixels, stored) * 2 * FILTERS)
    for run, boxes in plane.runs:
        fits = plane.filter_bytes(run, plane.planes) + boxes * box <= left
        if fits and boxes * box + beyond <= SHARED_BYTES - _ALIGNMENT:
            return replace(made, run=run, box_bytes=boxes * box, left=left)
    return None


def _has_room_for_sums(plane: Plane, tile: Tile, pixels: int, blocks: int) -> bool:
    """Return whether shared memory has room for the sums of so many thread blocks, and for what each of them loads."""
    steps = -(-pixels // _STEP_PIXELS)
    completed = -(-steps // blocks)
    sums = blocks * completed * _STEP_PIXELS * FILTERS * 4
    return sums + tile.box_bytes + plane.filter_bytes(tile.run, -(-plane.planes // blocks)) <= tile.left


def _together(*cycles: int) -> int:
    """Return how long takes what is done at the same time: little longer than the longest, if the rest is shorter."""
    return int(sqrt(sqrt(sum(float(each) ** 4 for each in cycles))))


def _aligned(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT
