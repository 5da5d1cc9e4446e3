"""How many registers an epilogue needs: ``estimate_registers(dag, graph, config)``, before it is compiled."""

from __future__ import annotations

from collections.abc import Sequence

from evt.ir import TypedDag
from evt.ir.dtype import DType, accumulator
from evt.ir.node import divisor
from evt.plan.configurations.config import Config, ConfigConvolution, ConfigDepthwise, ceil_div
from evt.plan.epilogue.visitors import WRITES, Graph, Visitor

#: Registers for addresses, coordinates, loop counters and predicates.
_BASE = {"2x": 40, "3x": 6}
#: Registers for pointers and strides that a node keeps between its accesses.
_ADDRESS = 3
#: Rows of an mma instruction's tile: one step of a 2.x epilogue stores that many of each warp.
_STEP_ROWS = 8
#: Those of a consumer of the halo kernel, where others widen the input.
BESIDE_WIDENERS = 200
#: Those of the depthwise kernel, and its threads at most.
_DEPTHWISE, _DEPTHWISE_THREADS = 128, 256
#: Elements of a value that are alive at a time: the compiler interleaves the operations on a fragment.
_INTERLEAVED = 4
#: Kinds whose whole fragment is loaded before the first operation.
_LOADED = frozenset({"source", "tile", "half", "mask", "gather"})
#: Tiles of a 3.x kernel that come through shared memory, whose loads the compiler delays, the source among them.
_STAGED = 4


def estimate_registers(dag: TypedDag, graph: Graph, config: Config) -> int:
    """Return the 32-bit registers per thread that an epilogue needs; beyond :func:`register_limit` the kernel spills.

    They are shared by the tile of accumulators, the fragments that are loaded or wait to be stored, and the computed
    values of the visitor graph that are still needed. The estimate is rough. It was compared with what nvcc 13.0 spills
    for a dozen kernels: those far below the limit do not spill, those far above do.
    """
    fragment = _fragment(config)
    total = _BASE[_family(config)] + accumulator_registers(dag, config)
    held = [(visitor.kind in _LOADED, _held(dag, visitor, config, fragment)) for visitor in graph.visitors]
    total += sum(registers for loaded, registers in held if not loaded)
    tiles = sorted(registers for loaded, registers in held if loaded)
    if _family(config) == "3x":
        tiles = [registers // 4 for registers in tiles[:_STAGED]] + tiles[_STAGED:]
        total += _registers(dag.primary.dtype, fragment) // 2
    return total + sum(tiles) + _live(dag, graph.visitors)


def register_limit(config: Config) -> int:
    """Return the registers that a thread of the epilogue may have.

    2.x: the most that an instruction can address. 3.x: what the consumers of CUTLASS's warp-specialised kernels
    request; of our depthwise kernel, what leaves room for a second thread block.
    """
    if _family(config) == "2x":
        return 255
    if isinstance(config, ConfigConvolution):
        return config.registers
    if isinstance(config, ConfigDepthwise):
        return _DEPTHWISE
    m, n, _ = config.tile
    return 240 if m * n // _threads(config) >= 208 else 232


def accumulator_registers(dag: TypedDag, config: Config) -> int:
    """Return the registers of a thread's part of the accumulator tile."""
    m, n, _ = config.tile
    return ceil_div(m * n * accumulator(dag.operands[0].dtype).bits, 32 * _threads(config))


def _family(config: Config) -> str:
    return "2x" if config.schedule == "multistage" else "3x"


def _threads(config: Config) -> int:
    """Return the threads that share one tile of accumulators; in a pingpong kernel each warp group has its own tile."""
    if config.schedule == "multistage":
        return 32 * (config.tile[0] // config.warp[0]) * (config.tile[1] // config.warp[1])
    if isinstance(config, ConfigConvolution):
        return 128 * config.consumers
    if isinstance(config, ConfigDepthwise):
        return _DEPTHWISE_THREADS
    return 256 if config.schedule == "cooperative" else 128


def _fragment(config: Config) -> int:
    """Return how many elements a thread processes in one step of the epilogue."""
    if config.schedule == "multistage":
        m, n, _ = config.tile
        return m * n // _threads(config) * _STEP_ROWS // config.warp[0]
    m, n = config.epilogue_tile
    return m * n // _threads(config)


def _held(dag: TypedDag, visitor: Visitor, config: Config, fragment: int) -> int:
    """Return the registers that a node holds from step to step, or during a whole one."""
    kind = visitor.kind
    if kind in _LOADED or kind in ("row", "column"):
        value = dag.input[visitor.name]
        if kind == "mask":
            return _ADDRESS + ceil_div(fragment, 8)
        if kind == "row":  # of a fragment, which has two rows
            return _ADDRESS + _registers(value.dtype, fragment // 2)
        if kind == "column":  # two rows of a fragment, for every step down the tile
            steps = config.tile[0] * config.tile[1] // (_threads(config) * fragment)
            return _ADDRESS + _registers(value.dtype, 2 * steps)
        return _ADDRESS + _registers(value.dtype, fragment // max(map(divisor, value.modes), default=1))
    if kind in ("scalar", "size"):
        return 1
    if kind == "reduce":
        assert visitor.reduction is not None
        kept = {"m", "n"} - set(dag.reduced[visitor.reduction])
        return _ADDRESS + (fragment // 2 if kept else 1)
    if kind in ("random", "fold", "pick", "once", "keys"):
        return 2 * _ADDRESS
    return _ADDRESS if kind in WRITES else 0


def _live(dag: TypedDag, visitors: Sequence[Visitor]) -> int:
    """Return the most registers that computed values take while the nodes are visited in order."""
    last = list(range(len(visitors)))
    for index, visitor in enumerate(visitors):
        for operand in visitor.operands:
            last[operand] = index
    alive = most = 0
    for index, visitor in enumerate(visitors):
        size = _registers(dag.types[visitor.value].dtype.compute, _INTERLEAVED)
        alive += size if visitor.kind not in _LOADED else 0
        most = max(most, alive)
        for operand in dict.fromkeys((*visitor.operands, index)):
            if last[operand] == index and visitors[operand].kind not in _LOADED:
                alive -= _registers(dag.types[visitors[operand].value].dtype.compute, _INTERLEAVED)
    return most


def _registers(dtype: DType | None, elements: int) -> int:
    assert dtype is not None
    return ceil_div(elements * dtype.bits, 32)
