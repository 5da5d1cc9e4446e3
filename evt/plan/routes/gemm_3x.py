"""Matrix products with CUTLASS 3.x: the routes ``stock-3x`` and ``evt-3x``."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from evt.plan.configurations.config import Config, ConfigSm100, Schedule, Speed, in_order
from evt.plan.configurations.space import Space, interpolated
from evt.plan.kernels import gemm as kernels
from evt.plan.problem import Problem
from evt.plan.routes.route import Kernel, Route
from evt.plan.rules import gemm, mainloop, stock

#: CUTLASS's persistent kernels of sm90. Two consumers that alternate hide the epilogue behind the main loop, except
#: for its memory traffic; two consumers that share a tile do not.
_PINGPONG = Speed(alone=1.2, overhead=130, tail=500, bound=150)
_SMALL = Speed(cost=1.8, alone=1.68, overhead=130, tail=500, bound=150)
_HALF = Speed(cost=1.35, alone=1.2, overhead=130, tail=500, bound=150)
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


def configs_sm90(problem: Problem) -> tuple[Config, ...]:
    """Return the configurations of sm90, of products and of convolutions that are products.

    Without a cluster, no thread block is idle if columns are few. Wide tiles are faster if tiles are many, and leave
    few registers. Small tiles are faster if tiles are fewer than SMs, or for a convolution with 64 output channels;
    half tiles lie between, for few pixels of many channels.
    Two consumers of one tile are best if the contraction takes less time than its epilogue. Products of 8-bit floats
    have two sets of accumulators, which leaves registers for 96 elements of the tile per thread. Nothing spills then,
    so the general configuration has the larger tile.
    """
    operand, convolution = problem.dag.operands[0].dtype, problem.signature.convolution
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
        return in_order(known, "cooperative", "half small")
    known = {
        "general": _pingpong(128, 128, k),
        "small": small,
        "wide": _pingpong(192, 128, k, (1, 2, 1), stages_d=2, speed=_WIDE),
        "cooperative": _cooperative(128, 128, k),
        "columns": _pingpong(128, 128, k, (1, 2, 1)),
        "rows": _pingpong(128, 128, k, (2, 1, 1)),
        "half": _pingpong(64, 128, k, speed=_HALF),
        "larger": _cooperative(128, 256, k, (2, 1, 1)),
        "taller": _cooperative(256, 128, k, (1, 2, 1)),
    }
    if convolution is not None and problem.sizes.tile_columns == 64:
        return in_order(known, "small")
    if convolution is not None and problem.sizes.is_shallow(problem.operand_bytes):
        return in_order(known, "cooperative small")
    if convolution is not None:
        return in_order(known, "general small half", "wide")
    return in_order(known, "general small", "wide")


#: Time of an element of a tile relative to 128x128, by the elements of the tile.
_COSTS = ((4096, 1.8), (8192, 1.35), (16384, 1.0), (24576, 0.96))


def space_sm90(problem: Problem) -> Iterator[Config]:
    """Yield the search space of sm90: tiles, clusters and both schedules of warp-specialised kernels.

    A consumer warpgroup has at most 192 accumulators for each thread. CUTLASS fills the shared memory with stages.
    """
    if problem.signature.convolution is not None:
        return
    k = 1024 // problem.dag.operands[0].dtype.bits

    def pingpong(m: int, n: int, cluster: tuple[int, int], stages: int) -> Config:
        speed = replace(_PINGPONG, cost=interpolated(_COSTS, m * n), alone=_SMALL.alone if m * n <= 4096 else 1.2)
        made = _pingpong(m, n, k, (*cluster, 1), 1 if m * n <= 16384 else 2, speed)
        return made if n % 64 == 0 else replace(made, epilogue_tile=(64, 32))

    def cooperative(m: int, n: int, cluster: tuple[int, int], stages: int) -> Config:
        speed = replace(_COOPERATIVE, cost=interpolated(_COSTS, m * n))
        return replace(_cooperative(m, n, k, (*cluster, 1)), speed=speed)

    clusters = ((1, 1), (2, 1), (1, 2), (2, 2))
    for space in (
        Space(pingpong, (64, 128, 192), (32, 64, 96, 128, 160, 192, 256), 128, 192, clusters),
        Space(cooperative, (128, 256), (32, 64, 96, 128, 160, 192, 224, 256), 256, 192, clusters),
    ):
        yield from space.configs()


def configs_sm100(problem: Problem) -> tuple[Config, ...]:
    """Return the configurations of sm100 and sm103. Nothing is measured yet: the general one comes first."""
    k = 1024 // problem.dag.operands[0].dtype.bits
    narrow = problem.columns_together <= 32

    def config(schedule: Schedule, n: int, cluster: tuple[int, int, int]) -> Config:
        epilogue_tile = (128, 32 if narrow else 64)
        stages_c, stages_d = (4, 2) if narrow else (2, 1)
        return ConfigSm100((128, n, k), schedule, cluster, epilogue_tile, stages_c, stages_d, reuse_c=True)

    return config("one_sm", 128, (1, 1, 1)), config("two_sm", 128, (2, 1, 1)), config("two_sm", 256, (2, 1, 1))


def configs_sm120(problem: Problem) -> tuple[Config, ...]:
    """Return the configurations of sm120: the one without spills that fits its shared memory with enough stages."""
    return (
        Config(
            (128, 128, 512 // problem.dag.operands[0].dtype.bits),
            "cooperative",
            (1, 1, 1),
            (64, 32),
            2,
            1,
            reuse_c=True,
        ),
    )


RULES = (
    gemm.runs_3x,
    mainloop.no_work,
    gemm.matrices,
    gemm.few_tensors,
    gemm.of_all_images,
    gemm.row_major_columns,
    gemm.masked_columns,
    gemm.tensor_cores,
    gemm.transposition,
    gemm.places,
    gemm.tma,
)

STOCK = Route(
    name="stock-3x",
    kind="stock",
    generation="3x",
    summary="CUTLASS fusion operation in a TMA warp-specialised kernel (CUTLASS 3.x)",
    rules=(stock.fusion, *RULES),
    kernels={
        "3x": Kernel(kernels.STOCK_SM90, configs_sm90, max_batches=None, space=space_sm90),
        "sm100": Kernel(kernels.STOCK_SM100, configs_sm100),
        "sm120": Kernel(kernels.STOCK_SM120, configs_sm120),
    },
    suits=stock.suits,
)

EVT = Route(
    name="evt-3x",
    kind="evt",
    generation="3x",
    summary="visitor tree in a TMA warp-specialised kernel (CUTLASS 3.x)",
    rules=RULES,
    kernels={
        "3x": Kernel(kernels.VISITORS_SM90, configs_sm90, max_batches=None, space=space_sm90),
        "sm100": Kernel(kernels.VISITORS_SM100, configs_sm100),
        "sm120": Kernel(kernels.VISITORS_SM120, configs_sm120),
    },
)
