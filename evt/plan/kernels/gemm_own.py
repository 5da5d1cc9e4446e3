"""The GEMM kernel of evt for sm90: codegen/include/evt/kit/gemm.hpp."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from evt.ir import Input, Output
from evt.ir.node import base
from evt.plan.fields import Field
from evt.plan.gemm import MAX_ROW_BYTES
from evt.plan.geometry.halo import SHARED_BYTES
from evt.plan.kernels.draft import Draft, KernelTemplate, Selection
from evt.plan.kernels.fragment import fragment_epilogue
from evt.plan.kernels.matrices import matrix_product, other_matrix
from evt.plan.kernels.work import plan_bias, plan_factors, plan_zeros
from evt.plan.plan import Matrix, MatrixProduct, OwnProduct, Plan, RowCopy
from evt.plan.signature import bytes_of
from evt.plan.staged import ALIGNED_BYTES, distance_of_pairs, unaligned_by_product


@dataclass(frozen=True, slots=True)
class OwnProductKernel:
    """The planner of a matrix product, or of a product for each batch."""

    batched: bool = False
    template: str = "own_sm90"

    def __call__(self, selection: Selection) -> Plan:
        draft = Draft(selection, batched=self.batched)
        product = matrix_product(draft)
        frame = KernelTemplate("own", self.template, 90, SHARED_BYTES)
        loop = replace(_loop(draft, product), batched=self.batched)
        return draft.finish(frame, loop, fragment_epilogue(draft, paired=loop.pairs > 0, moves_all=True))


@dataclass(frozen=True, slots=True)
class RaggedProductKernel:
    """The planner of a product whose groups of rows have a B each: tensors without rows have one for each group."""

    template: str = "own_sm90"

    def __call__(self, selection: Selection) -> Plan:
        draft = Draft(selection)
        values: tuple[Input | Output, ...] = (*draft.dag.inputs, *draft.dag.outputs)
        having_rows = {value.name for value in values if "m" in map(base, value.modes)}
        signature = draft.signature
        tensors = tuple(
            (name, replace(layout, batch="shared") if name in having_rows else layout)
            for name, layout in signature.tensors
        )
        draft.signature = replace(signature, a=replace(signature.a, batch="shared"), tensors=tensors)
        product = matrix_product(draft)
        frame = KernelTemplate("own", self.template, 90, SHARED_BYTES)
        loop = replace(_loop(draft, product), ends=draft.fields.ends())
        return draft.finish(frame, loop, fragment_epilogue(draft, paired=loop.pairs > 0))


def _loop(draft: Draft, product: MatrixProduct) -> OwnProduct:
    """Return the main loop of a product: its operands, their factors and zero points."""
    factors = (*plan_factors(draft), *plan_zeros(draft))
    partner = None if draft.problem.partner is None else other_matrix(draft, draft.problem.partner)
    filters = [product.b] if partner is None else [product.b, partner]
    return OwnProduct(
        product.a,
        product.b,
        row_copies=_row_copies(draft, product.a, filters),
        factors=factors,
        bias=plan_bias(draft),
        pairs=distance_of_pairs(draft.problem),
        partner=partner,
        unaligned=draft.config.schedule != "own_rows" and bool(unaligned_by_product(draft.problem)),
    )


def _row_copies(draft: Draft, a: Matrix, filters: Sequence[Matrix]) -> tuple[RowCopy, ...]:
    """Return the copies of operands that TMA cannot load."""
    fields, found = draft.fields, []
    for matrix, outer in ((a, "m"), *((each, "n") for each in filters)):
        element_bytes = bytes_of(matrix.dtype)
        if matrix.alignment * element_bytes < ALIGNED_BYTES:
            fields.workspace()
            rows, columns = map(fields.extent, (outer, "k") if matrix.contiguous == "k" else ("k", outer))
            batches = fields.extent("l") if isinstance(matrix.batch, Field) else None
            found.append(RowCopy(matrix, rows, columns, batches, MAX_ROW_BYTES // element_bytes))
    return tuple(found)


PRODUCT = OwnProductKernel()
BATCHES = OwnProductKernel(batched=True)
RAGGED = RaggedProductKernel()
