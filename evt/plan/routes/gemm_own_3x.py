"""The GEMM kernel of evt for sm90: the routes ``gemm-own-3x``, for batches ``gemm-own-batches``, and for groups of rows
``gemm-own-ragged``.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

from evt.ir import Load, TypedDag
from evt.ir.node import ELEMENT_MODES, base, divisor
from evt.ir.operand import factor_of
from evt.plan.configurations.config import Config, Schedule, Use
from evt.plan.gemm import PACKED_DEPTH, ProductClass, Tile, tiles_of
from evt.plan.geometry.halo import FILTERS, STEP_PIXELS
from evt.plan.kernels import gemm_own
from evt.plan.problem import Problem
from evt.plan.routes.route import Kernel, Route
from evt.plan.rules import gemm, grouped, mainloop, own
from evt.plan.rules import gemm_own as gemm_own_rules
from evt.plan.staged import bytes_of_staged, is_paired, staged_by_product, unaligned_by_product


def configs_sm90(problem: Problem) -> tuple[Config, ...]:
    """Return the configurations that are built."""
    return tuple(_config(each, problem.operand_bytes, "always") for each in _tiles(problem)[0])


def configs_ragged(problem: Problem) -> tuple[Config, ...]:
    """Return the configurations that are built for groups of rows, which have no splits of k."""
    return tuple(each for each in configs_sm90(problem) if each.cluster[2] == 1)


def space_ragged(problem: Problem) -> Iterator[Config]:
    """Yield the configurations of all other tiles that fit, without splits of k."""
    return (each for each in space_sm90(problem) if each.cluster[2] == 1)


def space_sm90(problem: Problem) -> Iterator[Config]:
    """Yield the configurations of all other tiles that fit."""
    for each in _tiles(problem)[1]:
        yield _config(each, problem.operand_bytes, "asked")


def _tiles(problem: Problem) -> tuple[tuple[Tile, ...], tuple[Tile, ...]]:
    dag, scaled, paired = problem.dag, bool(problem.dag.scales), is_paired(problem)
    moved = staged_by_product(problem) or unaligned_by_product(problem)
    along_k = [block for name in dag.scales for block in _blocks(dag, name, 1)]
    product = ProductClass(
        dag.operands[0].dtype,
        scaled=scaled,
        by_rows=scaled and problem.operand_bytes == 1 and _by_rows(dag, 2 * FILTERS if paired else FILTERS),
        converted=problem.converts,
        packed=problem.packs,
        deep=problem.converts and all(block % PACKED_DEPTH == 0 for block in along_k),
        paired=paired,
        fast_sums=problem.options.fast_sums,
        staged=2 if paired or problem.ragged else max(bytes_of_staged(moved), 2),
    )
    return tiles_of(product)


def _by_rows(dag: TypedDag, together: int) -> bool:
    """Return whether rows of a tile have factors of A, and a number of columns together share a factor of B."""
    of_rows, of_columns = (_blocks(dag, name, 0) for name in ("A", "B"))
    return any(block % (2 * FILTERS) for block in of_rows) and not any(block % together for block in of_columns)


def _blocks(dag: TypedDag, name: str, which: int) -> list[int]:
    """Return the blocks along a mode of an operand that share a value of an input of its factor."""
    loads = [dag[node] for node in factor_of(dag, name)] if name in dag.scales else []
    modes = [mode for op in loads if isinstance(op, Load) for mode in dag.input[op.name].modes]
    return [divisor(mode) for mode in modes if base(mode) == ELEMENT_MODES[name][which]]


@lru_cache(maxsize=4096)
def _config(tile: Tile, operand_bytes: int, use: Use) -> Config:
    """Return the configuration of a tile; equal problems share it."""
    shape = (tile.rows, tile.columns, tile.row_bytes // operand_bytes)
    return Config(shape, _schedule(tile), tile.cluster, (STEP_PIXELS, FILTERS), use=use)


def _schedule(tile: Tile) -> Schedule:
    if tile.pingpong:
        return "own_pingpong"
    return "own_rows" if tile.by_rows else "own_stages" if tile.by_stages else "own_cooperative"


PRODUCT = Route(
    name="gemm-own-3x",
    kind="own",
    generation="3x",
    summary="straight-line epilogue in a matrix product of evt, which is built in seconds (TMA, WGMMA, no CuTe)",
    rules=(
        own.on_sm90,
        gemm_own_rules.dual,
        mainloop.factors,
        gemm.matrices,
        gemm.few_tensors,
        gemm.of_all_images,
        own.operands_along_k,
        own.one_batch,
        gemm_own_rules.tma,
        gemm.row_major_columns,
        own.epilogue,
        gemm_own_rules.columns,
    ),
    suits=gemm_own_rules.suits,
    beside=gemm_own_rules.beside,
    kernels={"3x": Kernel(gemm_own.PRODUCT, configs_sm90, max_batches=1, space=space_sm90)},
    shapes=("gemm", "dual", "convolution"),
    alone=lambda problem: bool(problem.dag.scales) or problem.converts,
    printed=False,
)

BATCHES = Route(
    name="gemm-own-batches",
    kind="own",
    generation="3x",
    summary="straight-line epilogue in a matrix product of evt, for batches of any strides in one launch",
    rules=(
        own.on_sm90,
        gemm_own_rules.batches,
        mainloop.factors,
        gemm.matrices,
        gemm.few_tensors,
        own.operands_along_k,
        gemm_own_rules.tma,
        gemm.row_major_columns,
        own.epilogue,
        gemm_own_rules.columns,
        gemm_own_rules.of_batches,
    ),
    suits=gemm_own_rules.suits_batches,
    kernels={"3x": Kernel(gemm_own.BATCHES, configs_sm90, max_batches=None, space=space_sm90)},
    alone=lambda problem: bool(problem.dag.scales) or problem.converts,
    printed=False,
)

RAGGED = Route(
    name="gemm-own-ragged",
    kind="own",
    generation="3x",
    summary="straight-line epilogue in a matrix product of evt, for groups of rows whose ends are in device memory",
    rules=(
        own.on_sm90,
        mainloop.factors,
        gemm.few_tensors,
        own.operands_along_k,
        own.tma,
        gemm.row_major_columns,
        own.epilogue,
        gemm_own_rules.columns,
        grouped.of_rows,
    ),
    kernels={"3x": Kernel(gemm_own.RAGGED, configs_ragged, max_batches=None, space=space_ragged)},
    shapes=("ragged",),
)
