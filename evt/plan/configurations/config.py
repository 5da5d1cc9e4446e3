"""Kernel configurations: tile shapes and schedules, with their cost models."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

from evt.plan.depthwise import ONE_PIXEL, Unit
from evt.plan.wgrad import ONE_TAP, WgradTile

Schedule = Literal[
    "pingpong",
    "cooperative",
    "implicit",
    "implicit_own",
    "implicit_pingpong",
    "halo",
    "halo_shared",
    "halo_group",
    "halo_groups",
    "halo_words",
    "halo_taps",
    "own_pingpong",
    "own_cooperative",
    "own_rows",
    "own_stages",
    "gemv",
    "gemv_rows",
    "depthwise",
    "wgrad",
    "one_sm",
    "two_sm",
    "multistage",
]


@dataclass(frozen=True, slots=True)
class Speed:
    """The cost model of a configuration, relative to the general configuration of its kind: see evt.plan.speed.

    ``cost`` is the time for one element of a tile and of k if every SM is busy. ``alone`` is a factor for the only tile
    of an SM. Other times are in elements of k, of 16 bits: ``overhead`` for each tile, ``tail`` once a kernel.
    ``bound`` is the least time of a tile for each byte that its epilogue moves per element.

    The numbers are fitted to measurements on an H200 with f16, a light epilogue and a residual. The tests list the
    measured sizes.
    """

    cost: float = 1.0
    alone: float = 1.0
    overhead: int = 0
    tail: int = 0
    bound: int = 0


#: The most columns that an epilogue visits together.
MOST_COLUMNS = 128
#: Whether a configuration is built for every program, for light epilogues, or only if it is requested by name.
Use = Literal["always", "light", "asked"]


@dataclass(frozen=True, slots=True)
class Config:
    """A tile shape and its schedule.

    ``tile`` is the thread block's (M, N, K) in elements.
    3.x: ``cluster`` in thread blocks, of an own product also along k; ``epilogue_tile`` (M, N), with ``stages_c`` loads
    and ``stages_d`` stores in flight. ``reuse_c``: D is staged in the memory of C. The main loop takes the stages that
    fit.
    2.x: ``warp`` and ``instruction`` tiles, ``stages`` of the main loop, ``swizzle`` tiles of columns before the next
    tile of rows.

    ``use`` says for which programs the configuration is built; ``speed`` is its cost model; ``variant`` ends its name
    if another configuration has the same tile and schedule.
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
    use: Use = "asked"
    speed: Speed = Speed()
    variant: str = ""

    @property
    def blocks(self) -> int:
        """The number of tiles that share an SM."""
        return 1

    def visits(self, columns: int) -> bool:
        """Return whether the epilogue visits a number of columns together; a 2.x epilogue visits whole rows."""
        return (self.epilogue_tile[1] or self.tile[1]) % columns == 0

    def widened(self, columns: int) -> Config | None:
        """Return the configuration with a wider epilogue tile; None if the tile is narrower.

        A thread's part of more than :data:`MOST_COLUMNS` columns does not fit in its registers.
        """
        if not self.epilogue_tile[1] or self.tile[1] % columns or columns > MOST_COLUMNS:
            return None
        return replace(self, epilogue_tile=(self.epilogue_tile[0], columns), stages_c=2, stages_d=1, reuse_c=True)

    @property
    def name(self) -> str:
        """The configuration's name on the command line: ``pingpong_128x128x64_1x2``."""
        parts = [self.schedule, "x".join(map(str, self.tile))]
        if self.cluster != (1, 1, 1):
            parts.append("x".join(map(str, self.cluster if self.cluster[2] > 1 else self.cluster[:2])))
        return "_".join([*parts, *([self.variant] if self.variant else [])])


@dataclass(frozen=True, slots=True)
class ConfigConvolution(Config):
    """A configuration of sm90's convolution: ``consumers`` warp groups share a tile, ``min_blocks`` tiles an SM."""

    consumers: int = 1
    min_blocks: int = 1

    def widened(self, columns: int) -> Config | None:
        """Return the configuration with a wider epilogue tile; None if one consumer has no registers left."""
        return super(ConfigConvolution, self).widened(columns) if self.consumers > 1 else None

    @property
    def name(self) -> str:
        """The configuration's name: ``implicit_128x64x64_3blocks``."""
        base = super(ConfigConvolution, self).name  # slots make a new class, which super() alone does not find
        return f"{base}_{self.min_blocks}blocks" if self.min_blocks > 1 else base

    @property
    def blocks(self) -> int:
        """The number of tiles that share an SM."""
        return self.min_blocks

    @property
    def takes_turns(self) -> bool:
        """Whether each of two consumers has a tile, instead of a share of one tile."""
        return self.schedule == "implicit_pingpong"

    @property
    def warp_groups(self) -> int:
        """The consumers of a thread block."""
        return 2 if self.takes_turns else self.consumers

    @property
    def registers(self) -> int:
        """The register limit of a consumer thread: see Sm90Kernel in convolution_3x.hpp."""
        shared = 65536 // (128 * (1 + self.warp_groups) * self.min_blocks) // 8 * 8
        return min(240, (shared * (1 + self.warp_groups) - 40) // self.warp_groups // 8 * 8)


@dataclass(frozen=True, slots=True)
class ConfigDepthwise(Config):
    """A configuration of the depthwise kernel: a thread's ``unit``; ``tile`` is the largest tile of a thread block."""

    unit: Unit = ONE_PIXEL

    @property
    def name(self) -> str:
        """The configuration's name: ``depthwise_4x7``."""
        return f"{self.schedule}_{self.unit.rows}x{self.unit.columns}"


@dataclass(frozen=True, slots=True)
class ConfigWgrad(Config):
    """A configuration of the kernel of filter gradients; ``tile`` has the filters and channels of a thread block."""

    part: WgradTile = ONE_TAP

    @property
    def name(self) -> str:
        """The configuration's name: ``wgrad_64x64_3x3``."""
        taps = f"_{self.part.tap_rows}x{self.part.tap_columns}"
        return f"{self.schedule}_{self.tile[0]}x{self.tile[1]}{taps if taps != '_1x1' else ''}"


@dataclass(frozen=True, slots=True)
class ConfigSm100(Config):
    """A configuration of sm100: with ``two_sm``, a pair of thread blocks multiplies a tile of twice the rows."""

    @property
    def multiprocessors(self) -> int:
        """The number of SMs that multiply a tile together."""
        return 2 if self.schedule == "two_sm" else 1

    @property
    def mma_tile(self) -> tuple[int, int, int]:
        """The tile of the multiplication, in elements."""
        m, n, k = self.tile
        return self.multiprocessors * m, n, k


def ceil_div(a: int, b: int) -> int:
    return -(-a // b)


def in_order(known: Mapping[str, Config], always: str, light: str = "") -> tuple[Config, ...]:
    """Return the configurations: those built for every program, then those for a light epilogue, then the others."""
    uses: dict[str, Use] = {**dict.fromkeys(always.split(), "always"), **dict.fromkeys(light.split(), "light")}
    rest = [name for name in known if name not in uses]
    return tuple(replace(known[name], use=uses.get(name, "asked")) for name in (*uses, *rest))
