"""Epilogues of CUTLASS's own: output operators of 2.x and fusion operations of 3.x, with their operands."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from evt.ir.dtype import DType
from evt.plan.epilogue.values import Single, Strides
from evt.plan.fields import Field
from evt.plan.stock.operators import FusionOperation


@dataclass(frozen=True, slots=True)
class StockVector:
    """A vector of a stock epilogue, and its strides of (rows, columns, batch)."""

    dtype: DType
    pointer: Field
    strides: Strides


#: The factor of acc or C.
Scale: TypeAlias = float | Single | StockVector


@dataclass(frozen=True, slots=True)
class StockTensor:
    """A tensor of a stock epilogue of CUTLASS 2.x, or a vector: one whose rows are all the same."""

    dtype: DType
    pointer: Field
    pitch: Field | Literal[0]
    batch: Field | Literal[0]


@dataclass(frozen=True, slots=True)
class StockOperator:
    """An output operator of CUTLASS 2.x, and its tensors by the kernel's names: None for one that the formula lacks.

    ``permuted``: the tiles are in the order of a strided dgrad.
    """

    fused: FusionOperation
    alpha: Scale
    beta: Scale
    tensors: tuple[tuple[str, StockTensor | None], ...]
    permuted: bool = False


@dataclass(frozen=True, slots=True)
class StockFusion:
    """A fusion operation of CUTLASS 3.x, with its ``beta``, if any, and the tensor ``stored`` besides D, if any."""

    fused: FusionOperation
    alpha: Scale
    beta: Scale | None
    bias: StockVector | None
    stored: StockVector | None
