"""The main loop of a matrix product: A and B as the kernel sees them."""

from __future__ import annotations

from evt.ir import Input, Operand
from evt.ir.dtype import F64
from evt.plan.fusions import Work
from evt.plan.kernels.draft import Draft
from evt.plan.kernels.work import plan_work
from evt.plan.plan import Matrix, MatrixProduct
from evt.plan.signature import LayoutClass


def matrix_product(draft: Draft) -> MatrixProduct:
    """Return the product of A and B."""
    return _product(draft, ())


def worked_product(draft: Draft) -> MatrixProduct:
    """Return the product of A and B after their mainloop fusions."""
    return _product(draft, plan_work(draft))


def _product(draft: Draft, work: tuple[Work, ...]) -> MatrixProduct:
    """Return the product, with its operands exchanged in a transposed problem."""
    a, b = draft.problem.dag.operands
    matrices = _matrix(draft, a, draft.signature.a, "m"), _matrix(draft, b, draft.signature.b, "n")
    return MatrixProduct(*(matrices[::-1] if draft.transposed else matrices), work)


def other_matrix(draft: Draft, value: Input) -> Matrix:
    """Return an input that A is multiplied with."""
    assert value.dtype is not None
    return _matrix(draft, Operand(value.name, value.dtype, value.modes), draft.problem.signature[value.name], "n")


def _matrix(draft: Draft, operand: Operand, layout: LayoutClass, outer: str) -> Matrix:
    """Return A or B; ``outer`` is the mode other than k."""
    fields, name = draft.fields, operand.name
    return Matrix(
        name,
        operand.dtype,
        layout.contiguous,
        1 if operand.dtype == F64 else layout.alignment,  # CUTLASS has f64 operands of alignment 1 only
        fields.pointer(name),
        fields.stride(name, outer if layout.contiguous == "k" else "k"),
        fields.stride(name, "l") if layout.batch == "strided" and draft.batched else 0,
    )
