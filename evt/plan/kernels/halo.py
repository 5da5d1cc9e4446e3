"""The halo kernel for sm90. TMA moves C and D through one shared buffer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from evt.plan.configurations.config import Schedule
from evt.plan.epilogue.facts import keeps_zeros
from evt.plan.geometry.halo import SHARED_BYTES
from evt.plan.halo_cost import Groups
from evt.plan.halo_few import pixels_of_chunk
from evt.plan.kernels.draft import Draft, KernelTemplate, Selection
from evt.plan.kernels.fragment import add_sizes, fragment_epilogue, stored_by_threads
from evt.plan.kernels.implicit_gemm import image, padded_images
from evt.plan.plan import HaloConvolution, Plan
from evt.plan.planar import is_planar
from evt.plan.signature import bytes_of


@dataclass(frozen=True, slots=True)
class HaloKernel:
    """The planner of the halo kernel.

    ``windows``: of few channels, a row of taps is one tap. ``grouped``: of convolutions with groups. ``words``: of
    inputs that TMA cannot load, with groups or without. ``padded``: of copies of the operands that TMA cannot load.
    ``tap_rows``: of few filters, each tap is a row of a tile; their products take the place of C.
    """

    windows: bool = False
    grouped: bool = False
    words: bool = False
    padded: bool = False
    tap_rows: bool = False
    template: str = "own_sm90"

    def __call__(self, selection: Selection) -> Plan:
        draft = Draft(selection, batched=False)
        by_images = any(output.of_images for output in draft.problem.dag.outputs)
        convolution = draft.problem.signature.convolution
        taps = convolution.stage_taps[self.windows] if convolution is not None else 0
        if self.tap_rows:
            taps = 1
        mainloop, planar = self._mainloop(draft), self.windows and is_planar(draft.problem)
        stored = 1 if planar else stored_by_threads(draft)
        if mainloop.windows and mainloop.windows[1] < draft.problem.convolution.geometry.stride[-1]:
            taps = 0  # a row of the filter is several taps
        mainloop = replace(mainloop, by_images=by_images, taps=taps, stored=stored, planar=planar)
        has_source = not self.tap_rows
        epilogue = fragment_epilogue(draft, is_stored=stored > 0, is_planar=planar, has_source=has_source)
        for setting in ("tile_rows", "tile_columns"):
            draft.fields.size(setting)
        return draft.finish(_frame(self.template), mainloop, epilogue)

    def _mainloop(self, draft: Draft) -> HaloConvolution:
        shape, schedule = draft.problem.convolution, draft.selection.config.schedule
        add_sizes(draft)
        if self.grouped or self.words:
            draft.fields.size("groups")
        if self.padded:
            a, b = padded_images(draft)
            return HaloConvolution(shape.operator, shape.rank, a, b, shared=schedule == "halo_shared")
        a, b = (image(draft, operand) for operand in draft.problem.dag.operands)
        if self.windows:  # threads load them
            channels, size = shape.few_channels, bytes_of(a.dtype)
            chunk = pixels_of_chunk(channels, size, shape.geometry.stride[-1])
            a = replace(a, alignment=_loaded_together(min(a.alignment, channels & -channels), size))
            b = replace(b, alignment=1)
            return HaloConvolution(shape.operator, shape.rank, a, b, (channels, chunk))
        if self.words:
            inner = shape.group_channels  # 0 without groups
            a = replace(a, alignment=min(a.alignment, inner & -inner or _MOST_COPIED, _MOST_COPIED))
            return HaloConvolution(shape.operator, shape.rank, a, b, groups="words")
        if self.tap_rows:
            return HaloConvolution(shape.operator, shape.rank, a, b, groups="taps")
        groups: Groups = next((groups for groups, of_groups in SCHEDULES.items() if schedule == of_groups), "one")
        if groups == "multiple" and shape.operator == "dgrad":  # each filter is a column of B
            b = replace(b, alignment=1)
        residues, shared = shape.operator == "dgrad" and not shape.unit_stride, schedule == "halo_shared"
        loop = HaloConvolution(shape.operator, shape.rank, a, b, shared=shared, residues=residues, groups=groups)
        return replace(loop, keeps_zeros=residues and not shared and keeps_zeros(draft.dag))


def _loaded_together(alignment: int, element_bytes: int) -> int:
    """Return the elements of windows that a thread loads at a time: 4 or 8 bytes, or one element, which f32 rounds."""
    together = min(alignment, 8 // element_bytes)
    return together if element_bytes < 4 <= together * element_bytes else 1


#: The elements of 16 bits that a thread copies at a time, at most.
_MOST_COPIED = 4
#: The schedule by the groups of a tile's filters.
SCHEDULES: Mapping[Groups, Schedule] = {
    "one": "halo",
    "single": "halo_group",
    "multiple": "halo_groups",
    "words": "halo_words",
    "taps": "halo_taps",
}


def _frame(template: str) -> KernelTemplate:
    return KernelTemplate("own", template, 90, SHARED_BYTES)


HALO = HaloKernel()
WINDOWS = HaloKernel(windows=True)
GROUPED = HaloKernel(grouped=True)
WORDS = HaloKernel(words=True)
PADDED = HaloKernel(padded=True)
TAPS = HaloKernel(tap_rows=True)
