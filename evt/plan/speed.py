"""The duration of a kernel on a card, and the choice of a problem's fastest kernel: ``fastest(plans, sizes, card)``.

    start    the launch, and the set-up of a kernel
    work     its tiles, by their waves
    memory   the memory traffic; the L4 norm combines it with the work

Each kind of kernels has a model of its start and its work, in clock cycles of sm90 or in microseconds of an H100.
Constants of the card correct them, so that the times of all kinds are comparable: see :mod:`evt.plan.cards`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import hypot, inf, prod, sqrt
from typing import NamedTuple

from evt.plan import gemm, gemm_speed, gemv, wgrad
from evt.plan.cards import CARDS, Card, card_of, traffic_of
from evt.plan.configurations.config import Config, ConfigDepthwise, ceil_div
from evt.plan.epilogue.broadcasts import ColumnBroadcast
from evt.plan.epilogue.loads import Auxiliary, Indexed, MaskLoad, Packed, SourceFetch
from evt.plan.epilogue.registers import threads_of
from evt.plan.epilogue.values import Access
from evt.plan.epilogue.writes import AuxStore, MaskStore
from evt.plan.geometry.convolution import Axis, Problem
from evt.plan.geometry.gemv import MOST_ROW_BYTES
from evt.plan.halo import TOO_LARGE, forward
from evt.plan.halo_cost import INSTRUCTION, BlockedConvolution, axes_of
from evt.plan.halo_few import beyond_windows
from evt.plan.halo_kernels import start_of, tiles_of
from evt.plan.halo_kernels import time as halo_time
from evt.plan.moved import moved_bytes
from evt.plan.pairs import product_columns
from evt.plan.plan import (
    Convolution,
    Convolution2x,
    Convolution3x,
    DepthwiseConvolution,
    FilterGradient,
    HaloConvolution,
    OwnProduct,
    Plan,
)
from evt.plan.signature import bytes_of
from evt.plan.sizes import BEYOND_OFFSETS, Sizes

#: Multiply-adds of 16 bits in a clock cycle of an SM of sm90, and the cycles of a launch.
A_CYCLE, _LAUNCH = 2048, 8500
#: The card that the speed of own products is fitted to.
_H100 = CARDS["H100"]
#: The instructions of the epilogues that the constants are fitted to.
_LIGHT = 4
#: Cycles of an element of a thread in CUTLASS's kernels: a light epilogue, and each further instruction. Fitted to
#: gelu and dropout at k = 768 and 1024 on an H200, 2026-11.
_VISITED, _VISITED_INSTRUCTION = 30.0, 6.0
#: The instructions of a thread of a halo kernel for an element that it moves alone, and for one that it stores in rows.
#: Fitted to 105 kernels of layers with 1 to 128 filters on an H100, 2026-11, and the second one to 29 kernels of five
#: 1x1 layers with 3 to 90 filters on an H200, 2026-11-30.
_MOVED, _STORED_ROWS = 48, 4
#: The instructions of an element of C, which the constants of 1x1 convolutions include. Fitted to 29 kernels on an
#: H200, 2026-11-29.
_SOURCE = 8
#: Microseconds of a kernel that copies a convolution's operands with padded channels, and the time of a byte of them
#: relative to one of rows. Fitted to 12 layers on an H100 and 22 on an H200, 2026-11.
_COPY_PIXELS, _COPIED_PIXELS = 4.0, 1.2
#: Schedules with two consumers that alternate.
_ALTERNATING = ("pingpong", "implicit_pingpong")
#: The minimum advantage of a kernel of another route than the preferred ones: the error of the estimates.
_DOUBT = 1.05


class Duration(NamedTuple):
    """The microseconds of a kernel: its ``start`` with the launch, the ``work`` of its tiles, and memory traffic."""

    start: float
    work: float
    memory: float

    @property
    def total(self) -> float:
        return self.start + norm(self.work, self.memory)


def norm(first: float, second: float) -> float:
    """Combine the costs of overlapping work (L4 norm)."""
    return sqrt(hypot(first * first, second * second))


def fastest(plans: Sequence[Plan], sizes: Mapping[str, int], card: Card | int) -> int:
    """Return the index of the fastest kernel for a problem's sizes; of equally fast kernels, the first.

    Own routes are preferred, because own kernels are built in a second and CUTLASS's in half a minute; without own
    kernels, the first route. A kernel of another route must be faster than all of the preferred ones by more than the
    error of the estimates. A number as ``card`` is the SMs of the target's usual card.
    """
    if len(plans) == 1:
        return 0
    preferred = {plan.route for plan in plans if plan.family == "own"} or {plans[0].route}
    doubts = [1.0 if plan.route in preferred else _DOUBT for plan in plans]
    times = [duration(plan, sizes, card).total * doubt for plan, doubt in zip(plans, doubts, strict=True)]
    return times.index(min(times))


def kind_of(plan: Plan) -> str:
    """Return the kind of a kernel, whose constants a card has."""
    loop = plan.mainloop
    if isinstance(loop, OwnProduct):
        return "product"
    if isinstance(loop, gemv.Gemv):
        return "gemv"
    if isinstance(loop, HaloConvolution):
        return "windows" if loop.windows else "shared halo" if loop.shared else "halo"
    if isinstance(loop, DepthwiseConvolution):
        return "depthwise"
    if isinstance(loop, FilterGradient):
        return "wgrad"
    return f"CUTLASS {plan.generation}"


def refusal(plan: Plan, extents: Mapping[str, int], sizes: Sizes) -> str:
    """Return the reason that a kernel cannot run a call of these extents and sizes, or "".

    A rule of its route gives the reason when a kernel is planned; this function serves kernels that were planned for
    other sizes.
    """
    loop = plan.mainloop
    if isinstance(loop, Convolution2x) and sizes.exceeds_offsets(plan.operand_bits // 8):
        return BEYOND_OFFSETS
    if isinstance(loop, OwnProduct):
        stage, splits = plan.config.tile[2], plan.config.cluster[2]
        if splits > 1 and extents["k"] <= (splits - 1) * stage:
            return f"k = {extents['k']}: {plan.config.name} has {splits} thread blocks that take {stage} of k or more"
    if isinstance(loop, gemv.Gemv) and extents["k"] * plan.operand_bits // 8 > MOST_ROW_BYTES:
        return f"k = {extents['k']}: {plan.config.name} takes rows of at most {MOST_ROW_BYTES >> 30} GiB"
    if isinstance(loop, HaloConvolution):
        found = beyond_windows(extents) if loop.windows else ""
        return found or ("" if _halo_time(plan, extents) < inf else TOO_LARGE)
    if isinstance(loop, FilterGradient):
        return "" if wgrad.fits(wgrad.problem_of(extents), loop.part) else TOO_LARGE
    return ""


def duration(plan: Plan, sizes: Mapping[str, int], card: Card | int) -> Duration:
    """Return the duration of a kernel on a card; a number as ``card`` is as for :func:`fastest`."""
    card = card if isinstance(card, Card) else card_of("", plan.target.name, card)
    start_factor, work_factor = card.fit.factors(kind_of(plan))
    memory = traffic(plan, sizes) / card.bytes_per_us
    if isinstance(plan.mainloop, OwnProduct):
        tile, size = _product(plan, sizes, card.multiprocessors)
        count = _launches(plan.mainloop, sizes)
        start = count * (gemm_speed.LAUNCH + gemm_speed.refills(tile, size))
        work = count * gemm_speed.work(tile, size, card.bytes_per_us, _evaluated(plan), _clock(card))
        memory /= gemm_speed.memory_rate(tile, size, card.bytes_per_us)
    elif isinstance(plan.mainloop, gemv.Gemv):
        row_bytes = sizes["k"] * plan.operand_bits // 8
        start, work = gemv.start_and_work(plan.mainloop.tile, sizes["m"], sizes["n"], row_bytes, card.multiprocessors)
    else:
        start, work = _cycles(plan, sizes, card.multiprocessors)
        start, work = start / card.ghz / 1e3, card.microseconds(work * (A_CYCLE / rate(plan, card)))
    return Duration(start * start_factor + _copying(plan, sizes, card), work * work_factor, memory)


def _copying(plan: Plan, sizes: Mapping[str, int], card: Card) -> float:
    """Return the microseconds of the copies of operands before a product, or before an own kernel's convolution."""
    copies = plan.copies if isinstance(plan.mainloop, HaloConvolution) else ()
    if copies:
        start, relative = _COPY_PIXELS, _COPIED_PIXELS
        copied = sum(
            prod(sizes[each.name] for each in (*copy.extents, copy.channels)) * bytes_of(copy.dtype) for copy in copies
        )
    elif plan.row_copies:
        start, relative = gemm_speed.COPY, 1.0
        copied = sum(
            prod(sizes[each.name] for each in (copy.rows, copy.columns, copy.batches) if each)
            * bytes_of(copy.matrix.dtype)
            for copy in plan.row_copies
        )
    else:
        return 0.0
    return start + relative * traffic_of(copied, copied) / card.bytes_per_us


def _cycles(plan: Plan, sizes: Mapping[str, int], multiprocessors: int) -> tuple[float, float]:
    """Return the clock cycles of sm90 of a kernel's start and of its tiles, without the memory traffic."""
    heavy = max(0, plan.epilogue_instructions - _LIGHT)
    if isinstance(plan.mainloop, HaloConvolution):
        by_threads = _MOVED * len(_moved_by_threads(plan)) + _STORED_ROWS * (plan.mainloop.stored > 0)
        blocked, pixels, *_ = _halo_problem(plan, sizes)
        is_pointwise = blocked.problem.tap_count == 1 and blocked.groups == "one" and not blocked.classes
        if by_threads:  # which no other tile hides, if each SM has one
            heavy += by_threads if waves(plan, sizes, multiprocessors) > 1 else 2 * by_threads
        elif is_pointwise and _moves_one_matrix(plan):
            heavy -= _SOURCE
        start = start_of(blocked, pixels, shared=plan.mainloop.shared)
        return start, _halo_time(plan, sizes, heavy) - start
    if isinstance(plan.mainloop, DepthwiseConvolution):
        assert isinstance(plan.config, ConfigDepthwise)
        unit, forward_sizes = plan.config.unit, forward(plan.mainloop.operator, sizes)
        return _LAUNCH, plan.mainloop.filter.time(unit, forward_sizes, multiprocessors, heavy)
    if isinstance(plan.mainloop, FilterGradient):
        return wgrad.START, wgrad.time(plan.mainloop.part, sizes)
    rows, columns, moved = sizes[plan.rows], sizes[plan.columns], plan.read_bytes + plan.written_bytes
    steps = max(1, depth(plan, sizes) * plan.operand_bits // 16)
    work = time(plan.config, rows, columns, steps, sizes["l"], multiprocessors, moved, heavy)
    return _LAUNCH, work / A_CYCLE


def _moves_one_matrix(plan: Plan) -> bool:
    """Return whether the epilogue loads no matrix and stores only one."""
    return sum(isinstance(step, SourceFetch | Auxiliary | Packed | Indexed) for step in plan.steps) <= 1


def _moved_by_threads(plan: Plan) -> list[Auxiliary]:
    """Return the matrices that threads of an own kernel load and store, element by element."""
    return [step for step in plan.steps if isinstance(step, Auxiliary) and step.access is Access.DIRECT]


def rate(plan: Plan, card: Card) -> float:
    """Return the multiply-adds of a kernel in a cycle of an SM, in units of 16-bit ones."""
    if plan.operand_bits == 64:
        return card.double * 4
    return (card.mma or card.tensor) if plan.family == "2x" else card.tensor


def traffic(plan: Plan, sizes: Mapping[str, int]) -> float:
    """Return the bytes of memory traffic: operands and tensors of the epilogue, each once; vectors are not counted.

    A filter without taps at some pixels of a stride does not load them.
    """
    if isinstance(plan.mainloop, OwnProduct):
        return _launches(plan.mainloop, sizes) * gemm_speed.traffic(_product(plan, sizes, 0)[1])
    elements = sizes["m"] * sizes["n"] * sizes.get("l", 1)
    read, written = elements * plan.read_bytes, elements * plan.written_bytes
    if not isinstance(plan.mainloop, Convolution):
        read += (sizes["m"] + sizes["n"]) * sizes["k"] * sizes.get("l", 1) * plan.operand_bits / 8
        return traffic_of(read, written) * (gemv.MOVED if isinstance(plan.mainloop, gemv.Gemv) else 1.0)
    spatial = plan.mainloop.spatial
    inputs, outputs, taps = (prod(sizes[f"{part}{name}"] for name in spatial) for part in ("", "output_", "filter_"))
    operands: dict[str, float] = {
        "A": sizes["images"] * inputs * sizes["channels"],
        "B": sizes["filters"] * sizes["channels"] // sizes["groups"] * taps,
        "D": sizes["images"] * outputs * sizes["filters"],
    }
    if plan.mainloop.operator == "fprop":
        operands["A"] *= prod(min(1.0, sizes[f"filter_{name}"] / sizes[f"stride_{name}"]) for name in spatial)
    names = {"fprop": ("A", "B"), "dgrad": ("D", "B"), "wgrad": ("D", "A")}[plan.mainloop.operator]
    return traffic_of(read + sum(operands[name] for name in names) * plan.operand_bits / 8, written)


def evaluation(plan: Plan) -> float:
    """Return the clock cycles of an element of the epilogue in a thread."""
    of_own = isinstance(plan.mainloop, HaloConvolution | OwnProduct | DepthwiseConvolution | FilterGradient)
    each = INSTRUCTION if of_own else _VISITED_INSTRUCTION
    return _VISITED + each * max(0, plan.epilogue_instructions - _LIGHT)


def waves(plan: Plan, sizes: Mapping[str, int], multiprocessors: int) -> float:
    """Return the tiles of a kernel over the tiles that run at a time; 0 for kernels without such a number."""
    if isinstance(plan.mainloop, OwnProduct):
        return gemm_speed.waves(*_product(plan, sizes, multiprocessors))
    if isinstance(plan.mainloop, HaloConvolution):
        return tiles_of(*_halo_problem(plan, sizes), shared=plan.mainloop.shared) / multiprocessors
    if isinstance(plan.mainloop, DepthwiseConvolution | FilterGradient):
        return 0.0
    tiles = _tiles(plan.config, sizes[plan.rows], sizes[plan.columns], sizes["l"])
    return tiles / (multiprocessors * plan.config.blocks)


def _tiles(config: Config, rows: int, columns: int, batches: int) -> int:
    """Return the number of tiles, including the idle thread blocks of clusters."""
    (m, n, _), (across, along, _) = config.tile, config.cluster
    return ceil_div(rows, across * m) * ceil_div(columns, along * n) * across * along * batches


def time(
    config: Config,
    rows: int,
    columns: int,
    steps: int,
    batches: int,
    multiprocessors: int,
    traffic: float,
    instructions: float = 0,
) -> float:
    """Return the time of a kernel in relative units: see :class:`evt.plan.configurations.config.Speed`.

    ``steps`` are elements of k, of 16 bits; ``traffic`` are the bytes that the epilogue moves per element.
    ``instructions`` are the additional instructions of a heavy epilogue. A consumer that alternates with another one
    evaluates its epilogue during the other's main loop.
    """
    speed, (m, n, _) = config.speed, config.tile
    passes = ceil_div(_tiles(config, rows, columns, batches), multiprocessors * config.blocks)
    multiplied: float = steps + speed.overhead
    evaluated = _VISITED_INSTRUCTION * instructions
    if config.schedule in _ALTERNATING:
        visited = (_VISITED + evaluated) * A_CYCLE / threads_of(config)
        multiplied = max(multiplied, (multiplied + visited) / 2)
    else:
        multiplied += evaluated * A_CYCLE / threads_of(config)
    tile = max(multiplied, speed.bound * traffic)
    return m * n * speed.cost * ((speed.alone if passes == 1 else passes) * config.blocks * tile + speed.tail)


def _halo_time(plan: Plan, sizes: Mapping[str, int], instructions: float = 0) -> float:
    """Return the time of a halo kernel in clock cycles; infinity if it cannot run."""
    assert isinstance(plan.mainloop, HaloConvolution)
    return halo_time(*_halo_problem(plan, sizes), shared=plan.mainloop.shared, instructions=instructions)


def _halo_problem(plan: Plan, sizes: Mapping[str, int]) -> tuple[BlockedConvolution, int, int, int]:
    """Return the convolution of a halo kernel, the pixels of its instruction, its images and filters."""
    loop, (pixels, _, channels), element_bytes = plan.mainloop, plan.config.tile, plan.operand_bits // 8
    assert isinstance(loop, HaloConvolution)
    sizes = forward(loop.operator, sizes)
    if loop.windows:
        height, width, depth = axes_of(sizes)
        blocked = BlockedConvolution.of_windows(height, width, depth, channels * element_bytes, loop.windows[1])
    elif loop.groups != "one":
        given = Problem(1, sizes["channels"], sizes["filters"], Axis.of(sizes, "height"), Axis.of(sizes, "width"))
        if loop.groups == "taps":
            blocked = BlockedConvolution.of_taps(given, channels, element_bytes)
        else:
            blocked = BlockedConvolution.of_groups(given, sizes["groups"], channels, element_bytes, loop.groups)
    else:
        blocked = BlockedConvolution.of(sizes, channels, element_bytes, residues=loop.residues)
    return blocked, pixels, sizes["images"], sizes["filters"]


def product_microseconds(plan: Plan, sizes: Mapping[str, int], multiprocessors: int) -> float:
    """Return the microseconds of an own product on an H100: see :mod:`evt.plan.gemm_speed`."""
    assert isinstance(plan.mainloop, OwnProduct)
    each = gemm_speed.microseconds(*_product(plan, sizes, multiprocessors), _evaluated(plan))
    return _launches(plan.mainloop, sizes) * each + _copying(plan, sizes, _H100)


def _launches(loop: OwnProduct, sizes: Mapping[str, int]) -> int:
    """Return the number of launches of a call: a kernel of single products is launched for each batch."""
    return 1 if loop.has_many else sizes.get("l", 1)


def _evaluated(plan: Plan) -> float:
    """Return the microseconds in which a thread of an own product evaluates a sum beyond a light epilogue."""
    assert isinstance(plan.mainloop, OwnProduct)
    tile = gemm.tile_of(plan.config, plan.operand_bits // 8)
    instructions = gemm_speed.visited(tile, max(0, plan.epilogue_instructions - _LIGHT))
    bits = gemm_speed.BIT * sum(isinstance(step, MaskStore) for step in plan.steps)
    of_bit = gemm_speed.LOADED_BIT_PINGPONG if tile.pingpong else gemm_speed.LOADED_BIT
    bits += of_bit * sum(isinstance(step, MaskLoad) for step in plan.steps)
    moved = sum(
        gemm_speed.STORED if isinstance(step, AuxStore) else gemm_speed.loaded(tile) for step in _moved_by_threads(plan)
    )
    # A thread of a tile by rows has two rows, which are few to exchange.
    rows = 0 if tile.by_rows else len({step.name for step in plan.steps if isinstance(step, ColumnBroadcast)})
    exchanged = rows * gemm_speed.exchanged(tile)
    # The other consumer does not hide it: both wait for the same memory.
    each = instructions + bits + exchanged + (2 * moved if tile.pingpong else moved)
    return each / 2 if plan.mainloop.pairs else each  # a pair of sums has one element


def _clock(card: Card) -> float:
    """Return the clock rate of a card under load, relative to an H100."""
    return card.fit.busy_ghz / _H100.fit.busy_ghz


def _product(plan: Plan, sizes: Mapping[str, int], multiprocessors: int) -> tuple[gemm.Tile, gemm_speed.Size]:
    """Return the tile of an own product and the size of a call."""
    operand_bytes, moved = plan.operand_bits // 8, plan.read_bytes + plan.written_bytes
    assert isinstance(plan.mainloop, OwnProduct)
    groups = 1 if plan.mainloop.ends is None else sizes["l"]
    relative = plan.mainloop.b.dtype.bits / plan.operand_bits
    m, n = sizes["m"], product_columns(plan.mainloop, sizes["n"])
    row_bytes, written = sizes["k"] * operand_bytes, plan.written_bytes
    if plan.row_copies:  # whose rows begin at lines
        row_bytes = ceil_div(row_bytes, gemm.MAX_ROW_BYTES) * gemm.MAX_ROW_BYTES
    batches, tile = sizes["l"] if plan.mainloop.batched else 1, gemm.tile_of(plan.config, operand_bytes)
    scaled = any(factor.role == "factor" for factor in plan.factors) and not tile.by_rows
    packed, converts = plan.mainloop.is_packed, plan.mainloop.converts
    promoted = gemm.ProductClass(plan.mainloop.a.dtype, fast_sums=plan.options.fast_sums).promoted
    stage, least, added = gemm_speed.FACTORS if scaled else 1.0, 0.0, 0.0
    staged = moved_bytes(plan) if plan.source is not None else 2
    warps = plan.mainloop.b.dtype.bits if converts and tile.rows <= gemm.FEW_ROWS else 0
    if packed:
        stage = gemm_speed.PACKED_BY_STAGES if tile.by_stages else 1.0
        least = gemm_speed.UNPACKED[len(plan.factors)]
    elif converts and (tile.pingpong or tile.by_stages):
        rows = tile.rows * (2 if tile.by_stages else 1) if m % tile.rows else 0
        least = max(gemm_speed.CONVERTED, gemm_speed.BEYOND * rows)
    elif converts:
        stage, added = gemm_speed.AFTER * stage, gemm_speed.CONVERTED
    return tile, gemm_speed.Size(
        m,
        n,
        row_bytes,
        moved,
        multiprocessors,
        groups,
        relative,
        written,
        batches,
        stage,
        least,
        added,
        warps,
        packed,
        staged,
        plan.mainloop.pairs > 0,
        promoted and not plan.factors and not converts,
    )


def depth(plan: Plan, sizes: Mapping[str, int]) -> int:
    """Return the contraction dimension; for a convolution, ``k`` alone counts only the channels.

    TMA's im2col mode loads whole tiles of each tap's channels. The halo kernel leaves out taps: of other residue
    classes in gradients with a stride, and outside of volumes.
    """
    channels = sizes["k"]
    if isinstance(plan.mainloop, Convolution3x) and plan.mainloop.operator != "wgrad":
        channels = ceil_div(channels, plan.config.tile[2]) * plan.config.tile[2]
    taps = prod(size for name, size in sizes.items() if name.startswith("filter_"))
    loop = plan.mainloop
    if isinstance(loop, HaloConvolution) and loop.groups != "one":
        blocked, *_ = _halo_problem(plan, sizes)
        channels = blocked.problem.channels * 8 // plan.operand_bits  # of the groups in a tile
    if isinstance(loop, HaloConvolution) and loop.residues:
        taps = ceil_div(taps, prod(sizes[f"stride_{name}"] for name in loop.spatial))
    elif isinstance(loop, HaloConvolution) and loop.rank == 3:
        axis = Axis.of(forward(loop.operator, sizes), "depth")
        taps = ceil_div(taps * axis.taps_inside, axis.taps * axis.output)
    return channels * taps
