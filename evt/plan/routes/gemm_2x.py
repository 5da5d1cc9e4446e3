"""Matrix products with CUTLASS 2.x: the routes ``stock-2x``, ``evt-2x`` and ``mainloop-2x``."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from evt.ir.dtype import DType
from evt.plan.configurations.config import Config, Speed
from evt.plan.configurations.space import Space, interpolated
from evt.plan.kernels import gemm as kernels
from evt.plan.problem import Problem
from evt.plan.routes.route import Kernel, Route
from evt.plan.rules import gemm, mainloop, stock

#: The most filters of a 1x1 convolution with small tiles; bits of the accesses of cp.async, and of TMA.
_MOST_FILTERS, _NARROWEST, _WHOLE = 64, 32, 128


def general_config(operand: DType, alignment: int) -> Config:
    """Return the general configuration for operands of an alignment, in elements; it fits the 99 KiB of sm86 and sm89.

    Accesses of at least 4 bytes use cp.async in four stages. Narrower accesses go through registers in two stages, with
    a smaller tile so that nothing spills. (f32 always has four stages: CUTLASS's two-stage f32 main loop multiplies in
    f16.) 8-bit floats have two sets of sums and need half the accumulators per warp.
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


def configs_gemm(problem: Problem) -> tuple[Config, ...]:
    """Return the one configuration of matrix products.

    On sm90 a 1x1 convolution of few filters, which is here because TMA cannot load its pixels, has small tiles: its
    pixels are many and its sums short, so that a tile waits for memory, and several tiles of an SM wait together. Eight
    layers of 10 to 36 channels took 0.41 to 0.80 of the time of the general tile on an H100, 2026-11-28.
    """
    operand, convolution = problem.dag.operands[0].dtype, problem.sizes.convolution
    known = general_config(operand, problem.operand_alignment)
    if convolution is None or convolution.columns > _MOST_FILTERS or problem.target.family("3x") != "3x":
        return (known,)
    if operand.bits != 16 or not _NARROWEST <= problem.operand_alignment * operand.bits < _WHOLE:
        return (known,)
    columns = 32 if convolution.columns <= 32 else 64
    return (replace(known, tile=(64, columns, 32), warp=(32, 32, 32), stages=3),)


#: Time of an element of a tile relative to 128x128, by the elements of the tile; not measured.
_COSTS = ((4096, 1.6), (8192, 1.25), (16384, 1.0))


def space(problem: Problem) -> Iterator[Config]:
    """Yield the search space of CUTLASS 2.x: tiles of four or eight warps, and pipeline stages."""
    (general,) = configs_gemm(problem)
    operand = problem.dag.operands[0].dtype
    if general.stages < 3 or operand.bits == 64:
        return

    def multistage(m: int, n: int, cluster: tuple[int, int], stages: int) -> Config | None:
        if n == 32:
            rows, columns = max(32, m // 4), n
        else:
            rows, columns = (m // 2, n // 2) if m * n <= 16384 else (64, 64) if m % 64 == n % 64 == 0 else (0, 0)
        limit = 32 * 64 if operand.bits == 8 and operand.is_float else 64 * 64
        if min(rows, columns) < 32 or rows * columns > limit or (m, n, stages) == (*general.tile[:2], general.stages):
            return None
        tile, k = (m, n, general.tile[2]), general.tile[2]
        speed = Speed(interpolated(_COSTS, m * n))
        return replace(
            general, tile=tile, warp=(rows, columns, k), stages=stages, speed=speed, variant=f"{stages}stages"
        )

    sides = (64, 128, 256)
    yield from Space(multistage, sides, (32, *sides), 256, 128, stages=(3, 4, 5)).configs()


def configs_mainloop(problem: Problem) -> tuple[Config, ...]:
    """Return the configuration of a kernel with a mainloop fusion on A or B.

    It has twice the warps, each with half the tile along the operand's rows or columns. The formula's inputs and
    results need registers, and more warps hide its instructions behind the multiplications of others.
    """
    config = general_config(problem.dag.operands[0].dtype, problem.operand_alignment)
    m, n, k = config.warp
    if config.stages == 2 or (m, n) != (64, 64):
        return (config,)
    return (replace(config, warp=(32, 64, k) if "A" in problem.dag.feeds else (64, 32, k)),)


WORK = (mainloop.work, mainloop.narrow, mainloop.readable)
_RULES = (
    gemm.runs_2x,
    gemm.matrices,
    gemm.few_tensors,
    gemm.of_all_images,
    gemm.row_major_columns,
    gemm.mma,
    gemm.contiguous,
)

STOCK = Route(
    name="stock-2x",
    kind="stock",
    generation="2x",
    summary="CUTLASS output operator in a multistage tensor-op kernel (CUTLASS 2.x)",
    rules=(stock.operator, mainloop.no_work, *_RULES),
    kernels={"2x": Kernel(kernels.STOCK_2X, configs_gemm, space=space)},
    suits=stock.suits,
)

EVT = Route(
    name="evt-2x",
    kind="evt",
    generation="2x",
    summary="visitor tree in a multistage tensor-op kernel (CUTLASS 2.x)",
    rules=(mainloop.no_work, *_RULES, gemm.columns_in_row),
    kernels={"2x": Kernel(kernels.VISITORS_2X, configs_gemm, space=space)},
)

MAINLOOP = Route(
    name="mainloop-2x",
    kind="mainloop",
    generation="2x",
    summary="mainloop fusion of an operand in a multistage tensor-op kernel, visitor tree (CUTLASS 2.x)",
    rules=(*WORK, *_RULES, gemm.columns_in_row),
    kernels={"2x": Kernel(kernels.WORKED_2X, configs_mainloop)},
)
