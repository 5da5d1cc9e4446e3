"""Configurations as CUTLASS's tags: tiles, schedules and swizzles."""

from __future__ import annotations

from dataclasses import replace

from evt.emission.text import ConfigText
from evt.plan import Config, Plan
from evt.plan.configurations.config import ConfigConvolution, ConfigSm100
from evt.plan.plan import GroupedPlan

#: The widths of WGMMA that CUTLASS has without CUTE_SM90_EXTENDED_MMA_SHAPES_ENABLED. A tile of another width would be
#: multiplied by the widest of them that divides it: 160 by 32, which takes 1.5 times as long, as measured on an H200.
_SHAPES = (8, 16, 32, 64, 96, 128, 192, 256)


def configuration(plan: Plan) -> ConfigText:
    """Return the types of a plan's configuration."""
    config = plan.config
    swizzle = f"cutlass::gemm::threadblock::GemmIdentityThreadblockSwizzle<{config.swizzle}>"
    if plan.family == "2x":
        return ConfigText(threadblock_swizzle=swizzle)
    if plan.family == "own":
        return ConfigText()
    mainloop, epilogue = _schedules(plan)
    extended = plan.instructions == 90 and config.tile[1] not in _SHAPES
    text = ConfigText(
        _tile_shape(config), f"cutlass::{mainloop}", f"cutlass::epilogue::{epilogue}", extended_shapes=extended
    )
    return _of_convolution(text, config) if isinstance(config, ConfigConvolution) else text


def _of_convolution(text: ConfigText, config: ConfigConvolution) -> ConfigText:
    """Return a configuration with its kernel. With two consumers, the epilogue loads C while the main loop runs."""
    memory = f"evt::convolution::EpilogueMemory::{'own' if config.warp_groups == 2 else 'shared'}"
    if config.takes_turns:
        return replace(text, kernel="evt::convolution::Sm90Pingpong", epilogue_memory=memory)
    options = str(config.min_blocks), memory
    return replace(text, kernel="evt::convolution::Sm90Kernel", kernel_options=options, epilogue_memory=memory)


def _tile_shape(config: Config) -> str:
    """Return the tile as collectives take it; collectives of convolutions nest the modes of k."""
    m, n, k = (f"cute::Int<{extent}>" for extent in config.tile)
    return f"cute::Shape<{m}, {n}, {f'cute::Shape<{k}>' if isinstance(config, ConfigConvolution) else k}>"


def _schedules(plan: Plan) -> tuple[str, str]:
    """Return the tags of the main loop's and the epilogue's schedules."""
    config, schedule = plan.config, plan.config.schedule.capitalize()
    match config:
        case ConfigConvolution():
            cooperative = "Cooperative" if config.consumers == 2 else ""
            return "conv::KernelImplicitTmaWarpSpecializedSm90", f"TmaWarpSpecialized{cooperative}"
        case ConfigSm100():
            sms = f"{config.multiprocessors}Sm"
            return f"gemm::KernelTmaWarpSpecialized{sms}Sm100", f"TmaWarpSpecialized{sms}"
    if isinstance(plan, GroupedPlan):
        return f"gemm::KernelPtrArrayTmaWarpSpecialized{schedule}", f"PtrArrayTmaWarpSpecialized{schedule}"
    cooperative = "Cooperative" if config.schedule == "cooperative" else ""
    return f"gemm::KernelTmaWarpSpecialized{schedule}", f"TmaWarpSpecialized{cooperative}"
