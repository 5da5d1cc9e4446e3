"""The planner's input: ``Problem(dag, signature, target)``, and the facts about it that decide about kernels."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from evt.ir import Input, Output, TypedDag
from evt.ir.columns import columns_together
from evt.ir.dag import factors
from evt.ir.dtype import B1, PACKED_OPERANDS, converts
from evt.plan.depthwise import NO_DEPTHWISE, Depthwise, depthwise_of
from evt.plan.halo import Halo, groups_of, halo_of, words_of
from evt.plan.halo_few import taps_of, windows_of
from evt.plan.options import PLAIN, Options
from evt.plan.signature import ConvolutionClass, Signature, bytes_of
from evt.plan.sizes import UNKNOWN, Sizes
from evt.plan.stock.match import Stock, match_stock
from evt.plan.target import Target
from evt.plan.verdict import Refusal

#: The kinds of problems: a matrix product, batched or not; many products of one layout, each with its own extents;
#: two products of one A; groups of consecutive rows with a B each; or a convolution.
Shape = Literal["gemm", "grouped", "dual", "ragged", "convolution"]


@dataclass(frozen=True)
class Problem:
    """A program, the layouts and the target that a kernel is planned for.

    ``grouped``: the kernel computes many products in one launch, and ``signature`` has their common layouts.
    ``ragged``: the groups are consecutive rows of A and D, and each has its own B. Their ends are in device memory. The
    mode l counts the groups. ``sizes`` choose among the kernels: no text of a kernel depends on them. ``written`` is
    the program as the user wrote it, if ``dag`` has pairs in the place of two products: see :mod:`evt.plan.pairs`.
    """

    dag: TypedDag
    signature: Signature
    target: Target
    options: Options = PLAIN
    grouped: bool = False
    ragged: bool = False
    sizes: Sizes = UNKNOWN
    written: TypedDag | None = None

    @property
    def program(self) -> TypedDag:
        """The program as the user wrote it."""
        return self.dag if self.written is None else self.written

    @property
    def partner(self) -> Input | None:
        """The matrix of the second columns of pairs, if it is not B."""
        return None if self.written is None else self.written.input[factors(self.written)[0]]

    @property
    def shape(self) -> Shape:
        if self.signature.convolution is not None:
            return "convolution"
        if factors(self.program):
            return "dual"
        return "ragged" if self.ragged else "grouped" if self.grouped else "gemm"

    @property
    def convolution(self) -> ConvolutionClass:
        """The class of a problem that is a convolution."""
        assert self.signature.convolution is not None
        return self.signature.convolution

    @cached_property
    def halo(self) -> Halo:
        """The halo kernels that run a convolution of these sizes."""
        return halo_of(self.convolution.geometry, self.sizes.convolution, self.dag.operands[0].dtype)

    @cached_property
    def tap_rows(self) -> Halo:
        """The halo kernels for few filters, whose taps are rows of a tile."""
        return taps_of(self.sizes.convolution, self.dag.operands[0].dtype)

    @cached_property
    def windows(self) -> Halo:
        """The halo kernels that run it after they have widened its channels."""
        return windows_of(self.sizes.convolution, self.dag.operands[0].dtype)

    @cached_property
    def grouped_halo(self) -> Halo:
        """The halo kernels that run a convolution with groups."""
        return groups_of(self.sizes.convolution, self.dag.operands[0].dtype, by_strips=self._takes_strips)

    @cached_property
    def words(self) -> Halo:
        """The halo kernels that run a convolution whose input TMA cannot load."""
        return words_of(self.sizes.convolution, self.dag.operands[0].dtype, by_strips=self._takes_strips)

    @property
    def _takes_strips(self) -> bool:
        """Whether the epilogue has packed bits, or exchanges values between columns."""
        values: tuple[Input | Output, ...] = (*self.dag.inputs, *self.dag.outputs)
        return self.columns_together > 1 or any(value.dtype == B1 for value in values)

    @cached_property
    def depthwise(self) -> Depthwise:
        """The depthwise kernels that run it."""
        sizes = self.sizes.convolution
        return NO_DEPTHWISE if sizes is None else depthwise_of(sizes, self.operand_bytes)

    @property
    def converts(self) -> bool:
        """Whether B is converted to the type of A."""
        return converts(*(operand.dtype for operand in self.dag.operands))

    @property
    def packs(self) -> bool:
        """Whether B is packed two elements to a byte."""
        return self.dag.operands[1].dtype in PACKED_OPERANDS

    @property
    def operand_bytes(self) -> int:
        return bytes_of(self.dag.operands[0].dtype)

    @property
    def operand_alignment(self) -> int:
        """The elements that every access to A and B may cover."""
        return min(self.signature.a.alignment, self.signature.b.alignment)

    def tensor_bytes(self, name: str) -> int:
        value = self.dag.input.get(name) or self.dag.output[name]
        assert value.dtype is not None
        return bytes_of(value.dtype)

    @property
    def swaps_operands(self) -> bool:
        """Whether sm90's kernels compute D' = B' A'.

        WGMMA takes 32-bit operands K-major only. CUTLASS transposes one of them on the way. For a K-major A with an
        N-major B it swaps A and B without telling the epilogue. The transposed problem needs no swap.
        """
        layouts = (self.signature.a.contiguous, self.signature.b.contiguous)
        return self.target.family("3x") == "3x" and self.operand_bytes == 4 and layouts == ("k", "n")

    @property
    def has_few_channels(self) -> bool:
        """Whether the iterators of CUTLASS 2.x for few channels pack taps together.

        The others pad the channels of each tap to a tile's depth.
        """
        shape = self.convolution
        first = shape.operator == "fprop" and shape.rank == 2 and not shape.group_filters and not shape.large_filter
        return first and shape.few_channels > 0 and self.operand_bytes == 2

    @property
    def padded_vector(self) -> int:
        """The vectors of the copies that kernels of CUTLASS 2.x read instead of the operands; 0 without copies.

        With few channels they are the channels themselves, 4 or 8. Other operands are copied if an access would be
        narrower than cp.async's 4 bytes. In volumes the limit is 16 bytes, the only width of their iterators. An
        operand with a mainloop fusion is read in place.
        """
        shape, size = self.convolution, self.operand_bytes
        if shape.operator != "fprop" or shape.group_filters or self.dag.feeds:
            return 0
        if self.has_few_channels:
            channels = 4 if shape.few_channels <= 4 else 8
            alignments = {self.signature.a.alignment, self.signature.b.alignment}
            return 0 if alignments == {channels} else channels
        least = 16 if shape.rank == 3 else 4
        return 16 // size if self.operand_alignment * size < least else 0

    @cached_property
    def columns_together(self) -> int:
        """The columns that an epilogue of 3.x must visit at a time, and that a row of a warp of 2.x must have."""
        return columns_together(self.dag)

    @cached_property
    def stock(self) -> Stock | Refusal:
        """The formula in the form of stock epilogues, or why it has none."""
        return match_stock(self.dag)
