"""The registers that an epilogue needs, before it is compiled: ``estimate_registers(program, ...)``."""

from __future__ import annotations

from collections.abc import Sequence

from evt.ir.dtype import DType
from evt.plan.configurations.config import (
    Config,
    ConfigConvolution,
    ConfigDepthwise,
    ConfigSm100,
    ConfigWgrad,
    ceil_div,
)
from evt.plan.epilogue.program import EpilogueProgram
from evt.plan.epilogue.step import Share, Step

#: Registers for addresses, coordinates, loop counters and predicates.
_BASE = {"2x": 40, "3x": 6}
#: Rows of an mma instruction's tile: one step of a 2.x epilogue stores these rows of each warp.
_STEP_ROWS = 8
#: Registers of a consumer thread of the halo kernel beside warps that widen the input.
BESIDE_WIDENERS = 200
#: Registers of a thread of the depthwise kernel, and its most threads.
_DEPTHWISE, _DEPTHWISE_THREADS = 128, 256
#: The threads that share a tile of the sums of a filter gradient.
_WARP = 32
#: Elements of a value that are alive at a time: the compiler interleaves the operations on a fragment.
_INTERLEAVED = 4
#: Tiles of a 3.x kernel that come through shared memory, C among them; the compiler delays their loads.
_STAGED = 4


def estimate_registers(program: EpilogueProgram, config: Config, accumulator: DType, primary: DType) -> int:
    """Return the 32-bit registers per thread that an epilogue needs; beyond :func:`register_limit` the kernel spills.

    They hold the accumulators, the fragments that are loaded or wait to be stored, and the computed values that later
    steps need. ``accumulator`` and ``primary`` are the types of the sums and of the primary output. The estimate is
    rough. It was compared with the spills of a dozen kernels by nvcc 13.0: kernels far below the limit do not spill,
    kernels far above it do.
    """
    share = _share(config)
    total = _BASE[_family(config)] + accumulator_registers(accumulator, config)
    total += sum(step.registers(share) for step in program.steps if not step.is_prefetched)
    tiles = sorted(step.registers(share) for step in program.steps if step.is_prefetched)
    if _family(config) == "3x":
        tiles = [registers // 4 for registers in tiles[:_STAGED]] + tiles[_STAGED:]
        total += share.registers(primary, share.elements) // 2
    return total + sum(tiles) + _live(program.steps)


def register_limit(config: Config) -> int:
    """Return the registers that a thread of the epilogue may have.

    2.x and sm100: the most that an instruction can address. Other 3.x: the request of the consumers of CUTLASS's
    warp-specialised kernels. Depthwise: the most that leaves room for a second thread block.
    """
    if _family(config) == "2x" or isinstance(config, ConfigSm100):
        return 255
    if isinstance(config, ConfigConvolution):
        return config.registers
    if isinstance(config, ConfigDepthwise | ConfigWgrad):
        return _DEPTHWISE
    if config.schedule == "halo_words":
        return BESIDE_WIDENERS
    m, n, _ = config.tile
    return 240 if m * n // threads_of(config) >= 208 else 232


def accumulator_registers(accumulator: DType, config: Config) -> int:
    """Return the registers of a thread's part of the accumulator tile."""
    m, n = config.epilogue_tile if isinstance(config, ConfigWgrad) else config.tile[:2]
    return ceil_div(m * n * accumulator.bits, 32 * threads_of(config))


def _family(config: Config) -> str:
    return "2x" if config.schedule == "multistage" else "3x"


def threads_of(config: Config) -> int:
    """Return the threads that share one tile of accumulators; in a pingpong kernel each warp group has its own tile."""
    if config.schedule == "multistage":
        return 32 * (config.tile[0] // config.warp[0]) * (config.tile[1] // config.warp[1])
    if isinstance(config, ConfigConvolution):
        return 128 * config.consumers
    if isinstance(config, ConfigDepthwise):
        return _DEPTHWISE_THREADS
    if isinstance(config, ConfigWgrad):
        return _WARP
    return 256 if config.schedule in ("cooperative", "own_cooperative", "own_rows") else 128


def _share(config: Config) -> Share:
    """Return a thread's part of a tile."""
    (m, n, _), threads = config.tile, threads_of(config)
    if config.schedule == "multistage":
        elements = m * n // threads * _STEP_ROWS // config.warp[0]
    else:
        rows, columns = config.epilogue_tile
        elements = rows * columns // threads
    return Share(elements, m * n // (threads * elements) if elements else 0)


def _live(steps: Sequence[Step]) -> int:
    """Return the most registers that computed values take while the steps run in order."""
    last = list(range(len(steps)))
    for index, step in enumerate(steps):
        for operand in step.operands:
            last[operand] = index
    alive = most = 0
    for index, step in enumerate(steps):
        alive += 0 if step.is_prefetched else Share.registers(step.result, _INTERLEAVED)
        most = max(most, alive)
        for operand in dict.fromkeys((*step.operands, index)):
            if last[operand] == index and not steps[operand].is_prefetched:
                alive -= Share.registers(steps[operand].result, _INTERLEAVED)
    return most
