"""The halo kernel for sm90. TMA moves C and D through one shared buffer."""

from __future__ import annotations

from dataclasses import dataclass, replace

from evt.plan.geometry.halo import SHARED_BYTES
from evt.plan.kernels.draft import Draft, KernelTemplate, Selection
from evt.plan.kernels.fragment import add_sizes, fragment_epilogue
from evt.plan.kernels.implicit_gemm import image
from evt.plan.plan import HaloConvolution, Plan


@dataclass(frozen=True, slots=True)
class HaloKernel:
    """The planner of the halo kernel. ``windows``: of few channels, a row of taps is one tap."""

    windows: bool = False
    template: str = "own_sm90"

    def __call__(self, selection: Selection) -> Plan:
        draft = Draft(selection, batched=False)
        mainloop, epilogue = _mainloop(draft, self.windows), fragment_epilogue(draft)
        for setting in ("tile_rows", "tile_columns"):
            draft.fields.size(setting)
        return draft.finish(_frame(self.template), mainloop, epilogue)


def _frame(template: str) -> KernelTemplate:
    return KernelTemplate("own", template, 90, SHARED_BYTES)


def _mainloop(draft: Draft, over_windows: bool) -> HaloConvolution:
    shape, shared = draft.problem.convolution, draft.selection.config.schedule == "halo_shared"
    add_sizes(draft)
    a, b = (image(draft, operand) for operand in draft.problem.dag.operands)
    if over_windows:  # threads load them element by element
        a, b = replace(a, alignment=1), replace(b, alignment=1)
        return HaloConvolution(shape.operator, shape.rank, a, b, (shape.few_channels, shape.geometry.stride[-1]))
    residues = shape.operator == "dgrad" and not shape.unit_stride
    return HaloConvolution(shape.operator, shape.rank, a, b, shared=shared, residues=residues)


HALO = HaloKernel()
WINDOWS = HaloKernel(windows=True)
