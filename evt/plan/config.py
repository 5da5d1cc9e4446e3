"""Kernel configurations: tile shapes and schedules, and which of them serve a problem."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from evt.ir.dtype import DType
from evt.plan.target import Family

Schedule = Literal["pingpong", "cooperative", "implicit", "implicit_own", "one_sm", "two_sm", "multistage"]


@dataclass(frozen=True, slots=True)
class Config:
    """How one kernel is cut into tiles.

    ``tile`` is the thread block's (M, N, K) in elements.
    3.x: ``cluster`` in thread blocks; ``epilogue_tile`` (M, N), of which ``stages_c`` loads and ``stages_d``
    stores are in flight, D over C where ``reuse_c``. The main loop takes the stages that fit.
    2.x: ``warp`` and ``instruction`` tiles, ``stages`` of the main loop; ``swizzle``, how many tiles of columns are
    visited before the next tile of rows.
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
    swizzle: int = 8

    @property
    def threadblock_swizzle(self) -> str:
        """The order of tiles, in CUTLASS 2.x's words."""
        return f"cutlass::gemm::threadblock::GemmIdentityThreadblockSwizzle<{self.swizzle}>"

    @property
    def name(self) -> str:
        """How a configuration is named on the command line: ``pingpong_128x128x64_1x2``."""
        parts = [self.schedule, "x".join(map(str, self.tile))]
        if self.cluster != (1, 1, 1):
            parts.append("x".join(map(str, self.cluster[:2])))
        return "_".join(parts)

    @property
    def tile_shape(self) -> str:
        """The tile as 3.x collectives take it."""
        return f"cute::Shape<{', '.join(f'cute::Int<{extent}>' for extent in self.tile)}>"

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
class ConfigConvolution(Config):
    """A configuration of sm90's convolution: ``consumers`` warp groups share a tile, ``min_blocks`` tiles an SM.

    ``cost`` is the time for an element of a tile with all of a wave at work, relative to the general configuration's.
    """

    consumers: int = 1
    min_blocks: int = 1
    cost: float = 1.0

    @property
    def tile_shape(self) -> str:
        """The tile, in which the modes of the sums are nested."""
        m, n, k = self.tile
        return f"cute::Shape<cute::Int<{m}>, cute::Int<{n}>, cute::Shape<cute::Int<{k}>>>"

    @property
    def kernel_schedule(self) -> str:
        """The main loop's schedule tag."""
        return "cutlass::conv::KernelImplicitTmaWarpSpecializedSm90"

    @property
    def epilogue_schedule(self) -> str:
        """The epilogue's schedule tag."""
        return f"cutlass::epilogue::TmaWarpSpecialized{'Cooperative' if self.consumers == 2 else ''}"

    @property
    def registers(self) -> int:
        """What a consumer's thread may have: see Sm90Kernel in convolution_3x.hpp."""
        shared = 65536 // (128 * (1 + self.consumers) * self.min_blocks) // 8 * 8
        return min(240, (shared * (1 + self.consumers) - 40) // self.consumers // 8 * 8)

    @property
    def epilogue_memory(self) -> str:
        """Whether the epilogue has shared memory beside the main loop's, so that it loads while that runs."""
        return f"evt::convolution::EpilogueMemory::{'own' if self.consumers == 2 else 'shared'}"


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
    """The sm90 configurations for an operand type; a kernel is built in the first :func:`default_count`.

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


def configs_conv_3x(operand: DType) -> tuple[Config, ...]:
    """The sm90 configurations of convolutions for an operand type.

    Measured on an H200 (f16, batch 256, ResNet-50's 3x3 convolutions with bias, relu and residual): two blocks of one
    consumer on each SM are best, three with narrow tiles where there are 64 filters, and one of two consumers where
    the tiles are few.
    """
    k = 1024 // operand.bits
    return (
        ConfigConvolution((128, 128, k), "implicit", (1, 1, 1), (64, 64), 4, 1, True, min_blocks=2),
        ConfigConvolution((128, 64, k), "implicit", (1, 1, 1), (64, 64), 2, 1, True, min_blocks=3, cost=1.35),
        ConfigConvolution((128, 128, k), "implicit_own", (1, 1, 1), (128, 64), 2, 1, True, consumers=2, cost=1.12),
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


def default_count(family: Family | None, of_convolutions: bool) -> int:
    """How many of the configurations are built for a light epilogue, to choose from by the problem's size."""
    if of_convolutions:
        return {"3x": 3, "2x": 2}.get(family or "", 1)
    return 2 if family == "3x" else 1


def best_config(configs: tuple[Config, ...], m: int, n: int, l: int, multiprocessors: int) -> int:  # noqa: E741
    """Which of several compiled configurations serves an (m, n, l) problem, as an index.

    The cost of a kernel is its waves of tiles times the elements of a tile, and of the tiles that share a
    multiprocessor. A later configuration has to win by 3 % where nothing is known of it: its epilogue is less
    overlapped.
    """

    def cost(index: int) -> float:
        config = configs[index]
        tile_rows, tile_columns, _ = config.tile
        blocks = config.min_blocks if isinstance(config, ConfigConvolution) else 1
        width = config.cluster[1] * tile_columns
        tiles = ceil_div(m, tile_rows) * ceil_div(n, width) * config.cluster[1] * l
        work = ceil_div(tiles, multiprocessors * blocks) * blocks * tile_rows * tile_columns
        known = config.cost if isinstance(config, ConfigConvolution) else 1.0
        return work * known * (1.03 if index and known == 1.0 else 1.0)

    return min(range(len(configs)), key=cost)


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


def config_mainloop(operand: DType, alignment: int, of_a: bool) -> Config:
    """The configuration of a 2.x kernel with work on an operand, A or B.

    The warps are twice as many, and each has a tile that is half as long along the operand's rows or columns: what the
    formula reads and makes needs registers, and more warps hide its instructions behind each other's multiplications.
    """
    config = config_2x(operand, alignment)
    m, n, k = config.warp
    if config.stages == 2 or (m, n) != (64, 64):
        return config
    return replace(config, warp=(32, 64, k) if of_a else (64, 32, k))


def configs_conv_2x(operand: DType, alignment: int, group_filters: int, few_channels: bool) -> tuple[Config, ...]:
    """The 2.x configurations of a convolution.

    Measured on an H200 as those of sm90: longer steps along k than a GEMM's are best, and a tall tile where there are
    64 filters. Of several groups a tile's columns lie in one, or it has several whole ones. The iterators for few
    channels need more registers: their tile is smaller where accesses are narrow, so that nothing spills.
    """
    known = config_2x(operand, alignment)
    wide = alignment * operand.bits >= 32
    if few_channels and wide:
        narrow = alignment < 4
        tile, warp = ((64, 64, 32), (32, 32, 32)) if narrow else ((128, 128, 32), (64, 64, 32))
        return (replace(known, tile=tile, warp=warp, stages=3),)
    if group_filters % 128 and known.tile[1] == 128:
        return (replace(known, tile=(128, 64, known.tile[2]), warp=(64, 32, known.tile[2])),)
    if operand.bits != 16 or not wide or group_filters:
        return (known,)
    return (
        replace(known, tile=(128, 128, 64), warp=(64, 64, 64), stages=3),
        replace(known, tile=(256, 64, 32), warp=(64, 64, 32), stages=4),
    )
