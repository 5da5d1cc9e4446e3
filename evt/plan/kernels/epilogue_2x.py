"""Epilogues of CUTLASS 2.x: visitors that load and store everything, or an output operator."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, TypeAlias

from evt.ir.dtype import F16, F32, I32, DType, accumulator
from evt.plan.epilogue.facts import is_collective
from evt.plan.epilogue.loads import Auxiliary
from evt.plan.epilogue.program import epilogue_program
from evt.plan.epilogue.step import Buffers
from evt.plan.epilogue.values import Access
from evt.plan.fields import Field
from evt.plan.kernels.draft import Collective, Draft
from evt.plan.kernels.implicit_gemm import is_strided_dgrad
from evt.plan.signature import LayoutClass, bytes_of
from evt.plan.stock.match import Factor
from evt.plan.stock.operators import FusionOperation
from evt.plan.stock_epilogue import Scale, StockOperator, StockTensor

Tensors: TypeAlias = tuple[tuple[str, StockTensor | None], ...]


def visitors(draft: Draft) -> Collective:
    """Return a visitor epilogue, the general case."""
    width = access_width(draft)

    def access(step: Auxiliary) -> Access:
        layout = draft.signature[step.tensor]
        whole = layout.contiguous == draft.columns and _is_aligned(draft, step.tensor, layout, width)
        return Access.TILE if whole else Access.STRIDED

    program = epilogue_program(draft, fused=draft.selection.fused).with_access(access)
    m, n, k = draft.config.tile
    mainloop = draft.config.stages * (m + n) * k * draft.problem.operand_bytes
    warps = m // draft.config.warp[0] * (n // draft.config.warp[1])
    shared = max(mainloop, program.shared_bytes(Buffers(n, warps, stages_rows=False)))  # they share memory
    return Collective(program, program, None, None, _tile_dtype(draft), shared, width)


def _tile_dtype(draft: Draft) -> DType:
    """Return the type that cuts the epilogue's tiles: visitors store in any type."""
    if accumulator(draft.dag.operands[0].dtype) == I32:
        return I32  # CUTLASS has no thread map that stages i32 for narrower types
    if not draft.stores_tile:
        return F16
    primary = draft.primary
    preferred = F32 if draft.problem.tensor_bytes(primary) == 1 else draft.dtype(primary)
    return next(dtype for dtype in (preferred, F32, F16) if together_of_rows(dtype) >= draft.problem.columns_together)


def together_of_rows(dtype: DType) -> int:
    """Return the columns of a row that a warp stores: CUTLASS's thread map gives 256 bytes of a row to one warp."""
    return 256 * 8 // dtype.bits


def access_width(draft: Draft) -> int:
    """Return the elements per access of the epilogue, which the alignment of every row-contiguous tensor allows.

    A warp covers a row with 32 accesses. Pairs and blocks of columns lie in them, so wide blocks need wide accesses.
    """
    least = max(1, draft.problem.columns_together // 32)
    width = max(least, min(8, 16 // draft.problem.tensor_bytes(draft.primary))) if draft.stores_tile else 8
    for name, layout in draft.signature.tensors:
        if layout.contiguous == draft.columns and is_collective(draft.value(name)):
            while width > least and not _is_aligned(draft, name, layout, width):
                width //= 2
            if name == draft.primary:
                width = min(width, max(least, layout.alignment))
    return width


def _is_aligned(draft: Draft, name: str, layout: LayoutClass, width: int) -> bool:
    """Return whether accesses of ``width`` elements are aligned; an access wider than 16 bytes is several."""
    size = draft.problem.tensor_bytes(name)
    return min(16, width * size) <= layout.alignment * size


# An output operator of CUTLASS's own.


def stock_of_matrices(draft: Draft) -> Collective:
    """Plan CUTLASS's own epilogue of a matrix product."""
    return _stock(draft, _matrix_tensors, 16, permuted=False)


def stock_of_images(draft: Draft) -> Collective:
    """Plan CUTLASS's own epilogue of a convolution."""
    shape = draft.problem.convolution
    # Accesses of a weight's gradient divide the channels of one tap.
    most = draft.signature.b.alignment if shape.operator == "wgrad" else 16
    return _stock(draft, _image_tensors, most, permuted=is_strided_dgrad(draft) and shape.rank == 2)


def _stock(
    draft: Draft, make_tensors: Callable[[Draft, FusionOperation], Tensors], most: int, *, permuted: bool
) -> Collective:
    """Plan an output operator; ``most`` is the limit of elements per access."""
    found = draft.selection.matches[FusionOperation]
    program = epilogue_program(draft.fork(), fused=draft.selection.fused)
    tensors = make_tensors(draft, found)
    alpha, beta = _scale(draft, found.alpha), _scale(draft, found.beta)
    m, n, k = draft.config.tile
    shared = draft.config.stages * (m + n) * k * draft.problem.operand_bytes
    dtype, width = draft.dtype(draft.primary), min(_stock_width(draft), most)
    return Collective(StockOperator(found, alpha, beta, tensors, permuted), program, None, None, dtype, shared, width)


def _stock_width(draft: Draft) -> int:
    """Return the elements per access; the vector is read like a row."""
    width = access_width(draft)
    for value in draft.dag.inputs:
        if draft.columns in value.modes and not value.is_tile:
            # Accesses of more than 16 bytes are several instructions, before sm100.
            widest = 16 // bytes_of(draft.dtype(value.name)) if draft.problem.target.number < 100 else width
            while width > 1 and min(width, widest) > draft.signature[value.name].alignment:
                width //= 2
    return width


def _scale(draft: Draft, factor: Factor) -> Scale:
    """Return a factor, by value or by device pointer."""
    return draft.single(draft.dag.input[factor.name]) if factor.name else factor.value


def _matrix_tensors(draft: Draft, operator: FusionOperation) -> Tensors:
    """Return the tensors of the kernel's epilogue for a matrix product."""
    names = {"D": draft.primary}
    names |= dict(zip(("C1", "C2"), operator.sources, strict=True)) if len(operator.sources) > 1 else {}
    names |= {} if "C1" in names else {"C": "".join(operator.sources)}
    names |= {} if operator.reads_source_only else {"Vector": operator.vector, "Tensor": operator.stored}
    return tuple((role, _matrix_tensor(draft, name) if name else None) for role, name in names.items())


def _matrix_tensor(draft: Draft, name: str) -> StockTensor:
    value, pointer = draft.value(name), draft.fields.pointer(name)
    pitch: Field | Literal[0] = draft.fields.stride(name, draft.rows) if value.is_tile else 0
    strided = draft.signature[name].batch == "strided" and (value.is_tile or "l" in value.modes)
    return StockTensor(draft.dtype(name), pointer, pitch, draft.batch(name, strided))


def _image_tensors(draft: Draft, operator: FusionOperation) -> Tensors:
    """Return the tensors of the kernel's epilogue for a convolution; the kernel needs all of them."""
    names = [("D", draft.primary), *(("C", source) for source in operator.sources)]
    if not operator.reads_source_only:
        names += [("Vector", operator.vector), ("Tensor", operator.stored)]
    return tuple((role, _image_tensor(draft, name) if name else None) for role, name in names)


def _image_tensor(draft: Draft, name: str) -> StockTensor:
    """Return a tensor by the pitch of its rows."""
    pitch: Field | Literal[0] = draft.fields.stride(name, "m") if draft.value(name).is_tile else 0
    return StockTensor(draft.dtype(name), draft.fields.pointer(name), pitch, 0)
