"""How an epilogue's values are bound to a kernel: names, members of the call, types, strides, regions."""

from __future__ import annotations

from copy import copy
from functools import cached_property
from typing import Literal, TypeVar

from evt.ir import Input, Output, TypedDag
from evt.ir.columns import pair_distances
from evt.ir.dtype import I32, I64, DType
from evt.plan.epilogue.values import Number, ResultShape, Single, Size, Stride, Strides
from evt.plan.fields import Field, Fields
from evt.plan.signature import Signature

_Scope = TypeVar("_Scope", bound="Scope")


class Scope:
    """The names, members and strides that an epilogue's steps refer to; ``fields`` and ``regions`` grow.

    ``dag`` and ``signature`` are the epilogue's. ``transposed``: D' = B' A' is computed. ``batched``: strides have a
    batch mode. ``atomic``: a reduction may be combined by atomics. ``in_pairs``: pairs of columns stand for two
    products, and vectors have a value for each pair.
    """

    def __init__(
        self,
        dag: TypedDag,
        signature: Signature,
        names: dict[str, str],
        fields: Fields,
        *,
        transposed: bool = False,
        batched: bool = True,
        atomic: bool = False,
        in_pairs: bool = False,
    ) -> None:
        self.dag = dag
        self.signature = signature
        self.names = names
        self.fields = fields
        self.transposed = transposed
        self.batched = batched
        self.atomic = atomic
        self.in_pairs = in_pairs
        self.regions = 0

    def fork(self: _Scope) -> _Scope:
        """Return a copy whose members and regions grow separately, to try one of several plans."""
        made = copy(self)
        made.fields = self.fields.copy()
        return made

    def take(self, other: Scope) -> None:
        """Keep the members and regions of a fork."""
        self.fields, self.regions = other.fields, other.regions

    @property
    def rows(self) -> str:
        """The mode along the kernel's own rows."""
        return "n" if self.transposed else "m"

    @property
    def columns(self) -> str:
        """The mode along the kernel's own columns."""
        return "m" if self.transposed else "n"

    def next_region(self) -> int:
        """Return the number of a new region."""
        self.regions += 1
        return self.regions - 1

    def value(self, name: str) -> Input | Output:
        """Return an input or output."""
        return self.dag.input.get(name) or self.dag.output[name]

    def dtype(self, name: str) -> DType:
        """Return the type of an input or output."""
        dtype = self.value(name).dtype
        assert dtype is not None
        return dtype

    def compute_type(self, value: int) -> DType:
        """Return the type of a value in registers."""
        return self.dag.types[value].dtype.compute

    def strides(self, name: str) -> Strides:
        """Return the strides of a matrix."""
        layout = self.signature[name]
        rows: Stride = 1 if layout.contiguous == self.rows else self.fields.stride(name, self.rows)
        columns: Stride = 1 if layout.contiguous == self.columns else self.fields.stride(name, self.columns)
        return self.with_batch(name, rows, columns, layout.batch == "strided")

    def with_batch(self, name: str, rows: Stride, columns: Stride, strided: bool) -> Strides:
        """Return strides that end with the batch's, if the kernel has batches."""
        return rows, columns, self.fields.stride(name, "l") if strided and self.batched else 0

    def batch(self, name: str, strided: bool) -> Field | Literal[0]:
        """Return the stride along the batch, or 0; every kernel must have a batch for the tensor."""
        return self.fields.stride(name, "l") if strided else 0

    def single(self, value: Input) -> Single:
        """Return the number and the pointer of a scalar, or of a flexible vector's single value."""
        assert value.dtype is not None
        number = self.fields.number(value.name, "integer" if value.dtype == I64 else "number")
        return Single(value.dtype, number, self.fields.pointer(value.name))

    def size(self, mode: str) -> Size | Number:
        """Return the extent of a mode; the extent of k is the length of the sum."""
        if mode == "l" and not self.batched:
            return Number(I32, 1)
        over_taps = mode == "k" and self.signature.convolution is not None
        return Size(self.fields.size("contraction") if over_taps else self.fields.extent(mode))

    def shape(self, kept: set[str]) -> ResultShape:
        """Return the shape of a value that varies along these modes only."""
        return ResultShape.SCALAR if not kept else ResultShape.COLUMN if kept == {self.rows} else ResultShape.ROW

    def pair_distance(self, value: int) -> int:
        """Return the distance of the columns that hold a value with fewer columns than the accumulator."""
        return min(self._distances[value], default=1)

    @cached_property
    def _distances(self) -> list[frozenset[int]]:
        return pair_distances(self.dag, self.dag.types)
