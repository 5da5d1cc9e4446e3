"""Kernel configurations: tile shapes and schedules, and how fast they are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

Schedule = Literal["pingpong", "cooperative", "implicit", "implicit_own", "one_sm", "two_sm", "multistage"]


@dataclass(frozen=True, slots=True)
class Speed:
    """How fast a configuration is, relative to the general one of its kind: see evt.plan.speed.

    ``cost`` is the time for an element of a tile and an element of k, where every multiprocessor is busy; ``alone`` a
    factor for a tile that has a multiprocessor to itself. The rest of a tile's time is given in elements of k that
    take as long: ``overhead`` for each tile, ``tail`` once a kernel; ``bound`` is the least that a tile takes for each
    byte that its epilogue moves per element. Elements of k are of 16 bits.

    The numbers are fits to measurements on an H200, of f16 with a light epilogue and a residual; the tests have the
    sizes that they were made for.
    """

    cost: float = 1.0
    alone: float = 1.0
    overhead: int = 0
    tail: int = 0
    bound: int = 0


#: Built for every program, for those whose epilogue is light, or only when it is asked for by name.
Use = Literal["always", "light", "asked"]


@dataclass(frozen=True, slots=True)
class Config:
    """How one kernel is cut into tiles.

    ``tile`` is the thread block's (M, N, K) in elements.
    3.x: ``cluster`` in thread blocks; ``epilogue_tile`` (M, N), of which ``stages_c`` loads and ``stages_d``
    stores are in flight, D over C where ``reuse_c``. The main loop takes the stages that fit.
    2.x: ``warp`` and ``instruction`` tiles, ``stages`` of the main loop; ``swizzle``, how many tiles of columns are
    visited before the next tile of rows.

    ``use`` says for which programs it is built, ``speed`` how fast it is.
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

    @property
    def blocks(self) -> int:
        """How many tiles share a multiprocessor."""
        return 1

    def visits(self, columns: int) -> bool:
        """Whether the epilogue visits so many columns at a time; that of 2.x visits whole rows."""
        return self.epilogue_tile[1] % columns == 0

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
    """A configuration of sm90's convolution: ``consumers`` warp groups share a tile, ``min_blocks`` tiles an SM."""

    consumers: int = 1
    min_blocks: int = 1

    @property
    def name(self) -> str:
        """How a configuration is named: ``implicit_128x64x64_3blocks``."""
        base = super(ConfigConvolution, self).name  # slots make a new class, which super() alone does not find
        return f"{base}_{self.min_blocks}blocks" if self.min_blocks > 1 else base

    @property
    def blocks(self) -> int:
        """How many tiles share a multiprocessor."""
        return self.min_blocks

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
class ConfigGrouped(Config):
    """A configuration of a grouped kernel."""

    @property
    def kernel_schedule(self) -> str:
        """The main loop's schedule tag."""
        return f"cutlass::gemm::KernelPtrArrayTmaWarpSpecialized{self.schedule.capitalize()}"

    @property
    def epilogue_schedule(self) -> str:
        """The epilogue's schedule tag."""
        return f"cutlass::epilogue::PtrArrayTmaWarpSpecialized{self.schedule.capitalize()}"


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


def ceil_div(a: int, b: int) -> int:
    return -(-a // b)


def in_order(known: Mapping[str, Config], always: str, light: str = "") -> tuple[Config, ...]:
    """The configurations, those first that are built for every program, then those for a light epilogue."""
    uses: dict[str, Use] = {**dict.fromkeys(always.split(), "always"), **dict.fromkeys(light.split(), "light")}
    rest = [name for name in known if name not in uses]
    return tuple(replace(known[name], use=uses.get(name, "asked")) for name in (*uses, *rest))
