"""Which configurations there are: those of every family, the general one first.

The times in ``Speed`` are fits to measurements on an H200, of f16 with a light epilogue and a residual; the tests have
the sizes that they were made for.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from evt.ir.dtype import DType
from evt.plan.configurations.config import Config, ConfigConvolution, ConfigSm100, Schedule, Speed, Use
from evt.plan.signature import ConvolutionClass

#: CUTLASS's persistent kernels of sm90. Two consumers that take turns hide the epilogue behind the main loop, but for
#: what memory takes; two that share a tile do not.
_PINGPONG = Speed(alone=1.2, overhead=130, tail=500, bound=150)
_SMALL = Speed(cost=1.8, alone=1.86, overhead=130, tail=500, bound=150)
_WIDE = Speed(cost=0.96, alone=1.2, overhead=60, tail=900, bound=130)
_COOPERATIVE = Speed(alone=1.2, overhead=320, tail=500)


def _pingpong(
    m: int, n: int, k: int, cluster: tuple[int, int, int] = (1, 1, 1), stages_d: int = 1, speed: Speed = _PINGPONG
) -> Config:
    reuse = stages_d == 1
    return Config((m, n, k), "pingpong", cluster, (64, 64), stages_c=2, stages_d=stages_d, reuse_c=reuse, speed=speed)


def _cooperative(m: int, n: int, k: int, cluster: tuple[int, int, int] = (1, 1, 1)) -> Config:
    return Config(
        (m, n, k), "cooperative", cluster, (128, 32), stages_c=4, stages_d=2, reuse_c=True, speed=_COOPERATIVE
    )


def _in_order(known: Mapping[str, Config], always: str, light: str = "") -> tuple[Config, ...]:
    """The configurations, those first that are built for every program, then those for a light epilogue."""
    uses: dict[str, Use] = {**dict.fromkeys(always.split(), "always"), **dict.fromkeys(light.split(), "light")}
    rest = [name for name in known if name not in uses]
    return tuple(replace(known[name], use=uses.get(name, "asked")) for name in (*uses, *rest))


def configs_3x(operand: DType, convolution: ConvolutionClass | None = None) -> tuple[Config, ...]:
    """The sm90 configurations of matrix products for an operand type, and of convolutions that are products.

    Without a cluster no block of one is idle where the columns are few. Wide tiles are faster where there are many and
    leave few registers; small ones where tiles are fewer than multiprocessors, or a convolution has 64 filters. A
    contraction that is shorter than its epilogue is done best by two consumers of one tile.
    Products of 8-bit floats are summed in two sets of accumulators, which leaves registers for 96 elements of the
    tile per thread: nothing spills, and the general configuration is the one with the larger tile.
    """
    k = 1024 // operand.bits
    small = _pingpong(64, 64, k, speed=_SMALL)
    if operand.is_float and operand.bits == 8:
        known = {
            "cooperative": _cooperative(128, 128, k),
            "half": _pingpong(64, 128, k),
            "small": small,
            "wide": _pingpong(64, 192, k),
            "cluster": _cooperative(128, 128, k, (1, 2, 1)),
            "wider": _cooperative(128, 192, k),
        }
        return _in_order(known, "cooperative", "half small")
    known = {
        "general": _pingpong(128, 128, k),
        "small": small,
        "wide": _pingpong(192, 128, k, (1, 2, 1), stages_d=2, speed=_WIDE),
        "cooperative": _cooperative(128, 128, k),
        "columns": _pingpong(128, 128, k, (1, 2, 1)),
        "rows": _pingpong(128, 128, k, (2, 1, 1)),
        "half": _pingpong(64, 128, k),
        "larger": _cooperative(128, 256, k, (2, 1, 1)),
        "taller": _cooperative(256, 128, k, (1, 2, 1)),
    }
    if convolution is not None and convolution.tile_columns == 64:
        return _in_order(known, "small")
    if convolution is not None and convolution.shallow:
        return _in_order(known, "cooperative small")
    return _in_order(known, "general small", "wide")


#: By the width of tiles that the filters fill best: what is built for every program, and for those with a light
#: epilogue, which leaves registers for larger tiles.
_CONVOLUTIONS = {
    64: ("narrow single", "triple"),
    96: ("tall_96 own_96", ""),
    128: ("pair", "own few"),
    160: ("own", "pair_160"),
    192: ("own_192", "few"),
    256: ("own", "wide few"),
}


def configs_conv_3x(operand: DType, convolution: ConvolutionClass) -> tuple[Config, ...]:
    """The sm90 configurations of convolutions for an operand type and a class of channels.

    Tiles of one consumer share a multiprocessor, by twos or threes, and one is stored while another is multiplied: best
    where they are many and have few columns. Two consumers share a larger tile and keep the tensor cores busy alone.
    Where tiles are few, small ones do that, in clusters that load a tile of the activation once.
    """
    k = convolution.tile_bytes * 8 // operand.bits

    def shared(m: int, n: int, blocks: int, speed: Speed) -> Config:
        epilogue_tile, stages_c = ((64, 64), 2 if n == 64 else 4) if n % 64 == 0 else ((64, 32), 4)
        return ConfigConvolution(
            (m, n, k), "implicit", (1, 1, 1), epilogue_tile, stages_c, 1, True, min_blocks=blocks, speed=speed
        )

    def own(m: int, n: int, speed: Speed, columns: int = 1) -> Config:
        epilogue_tile = (128, 64 if n % 64 == 0 else 32)
        return ConfigConvolution(
            (m, n, k), "implicit_own", (1, columns, 1), epilogue_tile, 2, 1, True, consumers=2, speed=speed
        )

    known = {
        "pair": shared(128, 128, 2, Speed(overhead=660)),
        "pair_160": shared(128, 160, 2, Speed(cost=1.02, overhead=660)),
        "triple": shared(128, 64, 3, Speed(cost=0.83, overhead=1120)),
        "narrow": shared(128, 64, 2, Speed(cost=0.94, overhead=1120)),
        "own": own(128, 128, Speed(cost=1.03, overhead=880)),
        "wide": own(128, 256, Speed(cost=0.94, overhead=910)),
        "own_192": own(128, 192, Speed(cost=1.0, overhead=880)),
        "tall_96": own(256, 96, Speed(cost=1.15, overhead=880)),
        "own_96": own(128, 96, Speed(cost=1.35, overhead=880)),
        "single": own(128, 64, Speed(cost=1.76, overhead=690)),
        "few": own(128, 64, Speed(cost=1.34, overhead=880), columns=2),
    }
    return _in_order(known, *_CONVOLUTIONS[convolution.tile_columns])


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


def configs_conv_2x(
    operand: DType, alignment: int, convolution: ConvolutionClass, few_channels: bool
) -> tuple[Config, ...]:
    """The 2.x configurations of a convolution.

    Measured on an H200 as those of sm90: longer steps along k than a GEMM's are best, and a tall tile where filters
    fill tiles of 64 columns. Of several groups a tile's columns lie in one, or it has several whole ones. The iterators
    for few channels need more registers: their tiles are small where filters fill them.
    """
    known = config_2x(operand, alignment)
    wide = alignment * operand.bits >= 32
    if few_channels and wide:
        small = replace(known, tile=(64, 64, 32), warp=(32, 32, 32))
        large = replace(known, tile=(128, 128, 32), warp=(64, 64, 32), stages=3)
        return (small, large) if convolution.tile_columns == 64 else (large, small)
    if convolution.group_filters % 128 and known.tile[1] == 128:
        return (replace(known, tile=(128, 64, known.tile[2]), warp=(64, 32, known.tile[2])),)
    if operand.bits != 16 or not wide or convolution.group_filters:
        return (known,)
    square = replace(known, tile=(128, 128, 64), warp=(64, 64, 64), stages=3)
    tall = replace(known, tile=(256, 64, 32), warp=(64, 64, 32), stages=4)
    return (tall, square) if convolution.tile_columns in (64, 96) else (square, tall)
