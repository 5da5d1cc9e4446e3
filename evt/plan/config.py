"""Kernel configurations: tile shapes and schedules, and which of them serve a problem."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from evt.ir.dtype import DType

Schedule = Literal["pingpong", "cooperative", "one_sm", "two_sm", "multistage"]


@dataclass(frozen=True, slots=True)
class Config:
    """How one kernel is cut into tiles.

    ``tile`` is the thread block's (M, N, K) in elements.
    3.x: ``cluster`` in thread blocks; ``epilogue_tile`` (M, N), of which ``stages_c`` loads and ``stages_d``
    stores are in flight, D over C where ``reuse_c``. The main loop takes the stages that fit.
    2.x: ``warp`` and ``instruction`` tiles, ``stages`` of the main loop.
    """

    tile: tuple[int, int, int]
    schedule: Schedule
    cluster: tuple[int, int, int] = (1, 1, 1)
    epilogue_tile: tuple[int, int] = (0, 0)
    stages_c: int = 0
    stages_d: int = 0
    reuse_c: bool = False
    warp: tuple[int, int, int] = (0, 0, 0)
    instruction: tuple[int, int, int] = (0, 0, 0)
    stages: int = 0

    @property
    def name(self) -> str:
        """How a configuration is named on the command line: ``pingpong_128x128x64_1x2``."""
        parts = [self.schedule, "x".join(map(str, self.tile))]
        if self.cluster != (1, 1, 1):
            parts.append("x".join(map(str, self.cluster[:2])))
        return "_".join(parts)

    @property
    def kernel_schedule(self) -> str:
        """The 3.x main loop's schedule tag."""
        return f"cutlass::gemm::KernelTmaWarpSpecialized{self.schedule.capitalize()}"

    @property
    def epilogue_schedule(self) -> str:
        """The 3.x epilogue's schedule tag."""
        suffix = "Cooperative" if self.schedule == "cooperative" else ""
        return f"cutlass::epilogue::TmaWarpSpecialized{suffix}"


@dataclass(frozen=True, slots=True)
class ConfigSm100(Config):
    """A configuration of sm100: with ``two_sm``, a pair of thread blocks multiplies a tile of twice the rows."""

    @property
    def _multiprocessors(self) -> int:
        return 2 if self.schedule == "two_sm" else 1

    @property
    def mma_tile(self) -> tuple[int, int, int]:
        """The tile of the multiplication, in elements."""
        m, n, k = self.tile
        return self._multiprocessors * m, n, k

    @property
    def kernel_schedule(self) -> str:
        """The main loop's schedule tag."""
        return f"cutlass::gemm::KernelTmaWarpSpecialized{self._multiprocessors}SmSm100"

    @property
    def epilogue_schedule(self) -> str:
        """The epilogue's schedule tag."""
        return f"cutlass::epilogue::TmaWarpSpecialized{self._multiprocessors}Sm"


def _pingpong(m: int, n: int, k: int, cluster: tuple[int, int, int], stages_d: int, reuse: bool = False) -> Config:
    return Config((m, n, k), "pingpong", cluster, (64, 64), stages_c=2, stages_d=stages_d, reuse_c=reuse)


def _cooperative(m: int, n: int, k: int, cluster: tuple[int, int, int]) -> Config:
    return Config((m, n, k), "cooperative", cluster, (128, 32), stages_c=4, stages_d=2, reuse_c=True)


def configs_3x(operand: DType) -> tuple[Config, ...]:
    """The sm90 configurations for an operand type; a kernel is built in the first :data:`DEFAULTS`.

    Measured on an H200 (bf16, linear combination with residual): two pingpong kernels, whose epilogue runs behind
    the other consumer's main loop, beat every cooperative one, also where the product itself is largest.
    Products of 8-bit floats are summed in two sets of accumulators, which leaves registers for 96 elements of the
    tile per thread: nothing spills, and the general configuration is the one with the larger tile.
    """
    k = 1024 // operand.bits
    if operand.is_float and operand.bits == 8:
        return (
            _cooperative(128, 128, k, (1, 1, 1)),
            _pingpong(64, 128, k, (1, 1, 1), stages_d=1, reuse=True),
            _pingpong(64, 192, k, (1, 1, 1), stages_d=1, reuse=True),
            _cooperative(128, 128, k, (1, 2, 1)),
            _cooperative(128, 192, k, (1, 1, 1)),
        )
    return (
        _pingpong(128, 128, k, (1, 2, 1), stages_d=1, reuse=True),
        _pingpong(192, 128, k, (1, 2, 1), stages_d=2),
        _pingpong(128, 128, k, (2, 1, 1), stages_d=1, reuse=True),
        _pingpong(64, 128, k, (1, 1, 1), stages_d=1, reuse=True),
        _cooperative(128, 256, k, (2, 1, 1)),
        _cooperative(256, 128, k, (1, 2, 1)),
        _cooperative(128, 128, k, (1, 1, 1)),
    )


def configs_sm100(operand: DType, columns: int) -> tuple[Config, ...]:
    """The configurations of sm100 and sm103; the epilogue visits at least ``columns`` columns at a time.

    Nothing is measured yet: the general one comes first.
    """
    k = 1024 // operand.bits
    narrow = columns <= 32

    def config(schedule: Schedule, n: int, cluster: tuple[int, int, int]) -> Config:
        epilogue_tile = (128, 32 if narrow else 64)
        stages_c, stages_d = (4, 2) if narrow else (2, 1)
        return ConfigSm100((128, n, k), schedule, cluster, epilogue_tile, stages_c, stages_d, reuse_c=True)

    return config("one_sm", 128, (1, 1, 1)), config("two_sm", 128, (2, 1, 1)), config("two_sm", 256, (2, 1, 1))


def configs_sm120(operand: DType) -> tuple[Config, ...]:
    """The configurations of sm120: of those that fit its shared memory with stages enough, the one without spills."""
    return (Config((128, 128, 512 // operand.bits), "cooperative", (1, 1, 1), (64, 32), 2, 1, reuse_c=True),)


#: How many configurations of a family are built for a light epilogue, to choose from by the problem's size.
DEFAULTS = {"3x": 2}


def best_config(configs: tuple[Config, ...], m: int, n: int, l: int, multiprocessors: int) -> int:  # noqa: E741
    """Which of several compiled configurations serves an (m, n, l) problem, as an index.

    The cost of a persistent kernel is its waves of tiles times the rows of a tile. A later configuration has to
    win by 3 %: its epilogue is less overlapped.
    """

    def waves_of_rows(config: Config) -> int:
        tile_rows, tile_columns, _ = config.tile
        width = config.cluster[1] * tile_columns
        tiles = ceil_div(m, tile_rows) * ceil_div(n, width) * config.cluster[1] * l
        return ceil_div(tiles, multiprocessors) * tile_rows * tile_columns

    costs = [waves_of_rows(config) * (1.03 if index else 1.0) for index, config in enumerate(configs)]
    return costs.index(min(costs))


def ceil_div(a: int, b: int) -> int:
    return -(-a // b)


def config_2x(operand: DType, alignment: int) -> Config:
    """The 2.x configuration for operands of an alignment, in elements; it fits the 99 KiB of sm86 and sm89.

    Accesses of at least 4 bytes go through cp.async in four stages. Narrower ones go through registers in two,
    with a smaller tile so that nothing spills. (f32 always has four: CUTLASS's two-stage f32 main loop
    multiplies in f16.) 8-bit floats are summed twice over and need half the accumulators per warp.
    """
    if alignment * operand.bits < 32:
        return Config((64, 64, 32), "multistage", warp=(32, 32, 32), instruction=(16, 8, 16), stages=2)
    k = 512 // operand.bits
    if operand.bits == 64:
        return Config((64, 64, 16), "multistage", warp=(32, 32, 16), instruction=(8, 8, 4), stages=4)
    instruction = (16, 8, 256 // operand.bits)
    if operand.bits == 8:
        warp = (64, 32, k) if operand.is_float else (64, 64, k)
        return Config((128, 128, k), "multistage", warp=warp, instruction=instruction, stages=3)
    return Config((128, 128, k), "multistage", warp=(64, 64, k), instruction=instruction, stages=4)
