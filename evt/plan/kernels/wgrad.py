"""The kernel of filter gradients for sm90: codegen/include/evt/kit/wgrad.hpp."""

from __future__ import annotations

from dataclasses import dataclass

from evt.plan.configurations.config import ConfigWgrad
from evt.plan.geometry.wgrad import SHARED_BYTES
from evt.plan.kernels.draft import Draft, KernelTemplate, Selection
from evt.plan.kernels.fragment import add_sizes, fragment_epilogue
from evt.plan.kernels.implicit_gemm import image
from evt.plan.plan import FilterGradient, Plan


@dataclass(frozen=True, slots=True)
class WgradKernel:
    """The planner of the kernels of a filter gradient: partial sums, which a second kernel adds."""

    template: str = "own_wgrad"

    def __call__(self, selection: Selection) -> Plan:
        draft = Draft(selection, batched=False)
        shape, config = draft.problem.convolution, selection.config
        assert isinstance(config, ConfigWgrad)
        add_sizes(draft)
        a, b = (image(draft, operand) for operand in draft.problem.dag.operands)
        draft.fields.workspace()
        mainloop = FilterGradient(shape.operator, shape.rank, a, b, config.part)
        frame = KernelTemplate("own", self.template, 90, SHARED_BYTES)
        return draft.finish(frame, mainloop, fragment_epilogue(draft))


WGRAD = WgradKernel()
