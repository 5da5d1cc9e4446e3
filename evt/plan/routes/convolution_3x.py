"""Convolutions by CUTLASS 3.x: the routes ``conv-padded-3x`` and ``conv-evt-3x``."""

from __future__ import annotations

from evt.plan.configurations.config import Config, ConfigConvolution, Speed, in_order
from evt.plan.kernels import convolution as kernels
from evt.plan.problem import Problem
from evt.plan.routes.route import Kernel, Route
from evt.plan.rules import convolution, gemm, mainloop

#: By the tile width that the output channels fill best: the configurations for every program, and the configurations
#: for a light epilogue, which leaves registers for larger tiles.
_CONVOLUTIONS = {
    64: ("narrow single", "triple"),
    96: ("tall_96 own_96", ""),
    128: ("turns", "few"),
    160: ("own_160", "pair_160 few own"),
    192: ("own_192", "turns_192 few"),
    256: ("turns", "few"),
}


def configs_sm90(problem: Problem) -> tuple[Config, ...]:
    """Return the configurations of sm90.

    Many tiles: two consumers alternate with a tile each, and one tile is stored while another is multiplied. Few
    columns: two or three tiles of one consumer share an SM for the same overlap. Two consumers that share a larger tile
    keep the tensor cores busy alone. Few tiles: small tiles, in clusters that load a tile of the activation once.
    """
    k = problem.sizes.tile_bytes(problem.convolution.row_channels, problem.operand_bytes) // problem.operand_bytes

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

    def turns(n: int, speed: Speed) -> Config:
        return ConfigConvolution((128, n, k), "implicit_pingpong", (1, 1, 1), (64, 64), 2, 1, True, speed=speed)

    known = {
        "turns": turns(128, Speed(cost=0.95, overhead=250, tail=1200, bound=200)),
        "turns_192": turns(192, Speed(cost=0.9, overhead=250, tail=1200, bound=200)),
        "pair": shared(128, 128, 2, Speed(overhead=660)),
        "pair_160": shared(128, 160, 2, Speed(cost=1.02, overhead=660)),
        "triple": shared(128, 64, 3, Speed(cost=0.83, overhead=1120)),
        "narrow": shared(128, 64, 2, Speed(cost=0.94, overhead=1120)),
        "own": own(128, 128, Speed(cost=1.03, overhead=880)),
        "wide": own(128, 256, Speed(cost=0.94, overhead=910)),
        "own_160": own(128, 160, Speed(cost=1.01, overhead=880)),
        "own_192": own(128, 192, Speed(cost=1.0, overhead=880)),
        "tall_96": own(256, 96, Speed(cost=1.15, overhead=880)),
        "own_96": own(128, 96, Speed(cost=1.35, overhead=880)),
        "single": own(128, 64, Speed(cost=1.76, overhead=690)),
        "few": own(128, 64, Speed(cost=1.45, overhead=880), columns=2),
    }
    return in_order(known, *_CONVOLUTIONS[problem.sizes.tile_columns])


_RULES = (
    convolution.on_sm90,
    convolution.adjacent_columns,
    mainloop.no_work,
    gemm.few_tensors,
    gemm.of_all_images,
    gemm.row_major_columns,
    gemm.masked_columns,
)

PADDED = Route(
    name="conv-padded-3x",
    kind="evt",
    generation="3x",
    summary="visitor tree in the implicit-GEMM collectives of sm90, over copies with padded channels (CUTLASS 3.x)",
    rules=(*_RULES, convolution.padded, convolution.collective_types, convolution.tma_of_d),
    kernels={"3x": Kernel(kernels.PADDED_3X, configs_sm90)},
    shapes=("convolution",),
)

EVT = Route(
    name="conv-evt-3x",
    kind="evt",
    generation="3x",
    summary="visitor tree in the implicit-GEMM collectives of sm90 (CUTLASS 3.x: TMA im2col, WGMMA)",
    rules=(
        *_RULES,
        convolution.collective_operator,
        convolution.collective_types,
        convolution.im2col,
        convolution.tma,
    ),
    kernels={"3x": Kernel(kernels.VISITORS_3X, configs_sm90)},
    shapes=("convolution",),
)
