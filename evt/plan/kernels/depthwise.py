"""The depthwise kernel, evt's own convolution for sm90: a thread moves its two channels of C and D as one word."""

from __future__ import annotations

from dataclasses import dataclass, replace

from evt.plan.configurations.config import ConfigDepthwise
from evt.plan.geometry.halo import SHARED_BYTES
from evt.plan.kernels.draft import Draft, KernelTemplate, Selection
from evt.plan.kernels.fragment import add_sizes, fragment_epilogue
from evt.plan.kernels.implicit_gemm import image
from evt.plan.plan import DepthwiseConvolution, Plan
from evt.plan.signature import bytes_of


@dataclass(frozen=True, slots=True)
class DepthwiseKernel:
    """The planner of the depthwise kernel."""

    template: str = "own_depthwise"

    def __call__(self, selection: Selection) -> Plan:
        draft = Draft(selection, batched=False)
        shape, config = draft.problem.convolution, selection.config
        assert isinstance(config, ConfigDepthwise)
        add_sizes(draft)
        a, b = (image(draft, operand) for operand in draft.problem.dag.operands)
        b = replace(b, alignment=1)  # threads load it element by element where TMA cannot
        filter_, epilogue = shape.filter, fragment_epilogue(draft)
        assert filter_ is not None
        source_bytes = bytes_of(epilogue.source.dtype) if epilogue.source else 0
        memory = filter_.least_bytes(config.unit, draft.problem.operand_bytes, source_bytes)
        mainloop = DepthwiseConvolution(shape.operator, shape.rank, a, b, filter_)
        frame = KernelTemplate("own", self.template, 90, SHARED_BYTES)
        return draft.finish(frame, mainloop, replace(epilogue, shared_memory=memory))


DEPTHWISE = DepthwiseKernel()
