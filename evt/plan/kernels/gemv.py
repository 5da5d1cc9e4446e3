"""The kernel of products of few rows or few columns: codegen/include/evt/kit/gemv.hpp. Threads move all tensors of its
epilogue.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from evt.plan.gemv import Gemv
from evt.plan.geometry.gemv import GemvTile
from evt.plan.geometry.halo import SHARED_BYTES
from evt.plan.kernels.draft import Draft, KernelTemplate, Selection
from evt.plan.kernels.fragment import fragment_epilogue
from evt.plan.kernels.matrices import matrix_product
from evt.plan.plan import Plan


@dataclass(frozen=True, slots=True)
class GemvKernel:
    """The planner of a product of few rows or few columns."""

    template: str = "own_gemv"

    def __call__(self, selection: Selection) -> Plan:
        draft = Draft(selection, batched=False)
        product = matrix_product(draft)
        rows, columns, _ = selection.config.tile
        tile = GemvTile(rows, columns, selection.config.schedule == "gemv_rows")
        frame = KernelTemplate("own", self.template, 90, SHARED_BYTES)
        epilogue = replace(fragment_epilogue(draft), shared_memory=tile.shared_bytes)
        return draft.finish(frame, Gemv(product.a, product.b, tile=tile), epilogue)


GEMV = GemvKernel()
