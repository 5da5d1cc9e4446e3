"""The GEMM kernel of evt for sm90: codegen/include/evt/kit/gemm.hpp."""

from __future__ import annotations

from dataclasses import dataclass

from evt.plan.geometry.halo import SHARED_BYTES
from evt.plan.kernels.draft import Draft, KernelTemplate, Selection
from evt.plan.kernels.fragment import fragment_epilogue
from evt.plan.kernels.matrices import matrix_product
from evt.plan.plan import OwnProduct, Plan


@dataclass(frozen=True, slots=True)
class OwnProductKernel:
    """The planner of a matrix product."""

    template: str = "own_sm90"

    def __call__(self, selection: Selection) -> Plan:
        draft = Draft(selection, batched=False)
        product = matrix_product(draft)
        frame = KernelTemplate("own", self.template, 90, SHARED_BYTES)
        return draft.finish(frame, OwnProduct(product.a, product.b), fragment_epilogue(draft))


PRODUCT = OwnProductKernel()
