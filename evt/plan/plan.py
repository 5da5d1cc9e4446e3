"""The plan of a kernel: every decision about it. evt.emission spells the plan in C++.

::

    Plan      = mainloop, epilogue, C and D of the collective, fields, and facts for reports

    Mainloop  = MatrixProduct(a, b, work)           two matrices
              | Convolution2x(operator, ..., work)  an implicit GEMM of CUTLASS 2.x
              | Convolution3x(operator, ...)        one of CUTLASS 3.x
              | OwnProduct(a, b, ...) | Gemv(a, b)  two matrices, by evt's kernels: Gemv is in evt.plan.gemv
              | HaloConvolution(operator, ...)      a convolution by the halo kernel
              | DepthwiseConvolution(operator, ...) a convolution without a matrix product
              | FilterGradient(operator, ..., part) the gradient of filters, over pixels
    Epilogue  = EpilogueProgram(steps, tree, results)   a visitor tree, a topological visitor, or straight-line code
              | StockOperator(fused, ...)           an output operator of CUTLASS 2.x
              | StockFusion(fused, ...)             a fusion operation of CUTLASS 3.x

A plan holds no graph and no C++, except the user's own functions and the classes of stock epilogues.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Literal, TypeAlias

from evt.ir.convolution import SPATIAL, Operator
from evt.ir.dtype import PACKED_OPERANDS, DType
from evt.plan.configurations.config import Config
from evt.plan.depthwise import Filter
from evt.plan.epilogue.program import EpilogueProgram
from evt.plan.epilogue.regions import Region
from evt.plan.epilogue.registers import BESIDE_WIDENERS, register_limit
from evt.plan.epilogue.results import Result
from evt.plan.epilogue.step import Step
from evt.plan.epilogue.values import Strides
from evt.plan.epilogue.writes import Reduction
from evt.plan.fields import ABI, Field
from evt.plan.fusions import Factor, Work
from evt.plan.halo_cost import Groups
from evt.plan.options import Options
from evt.plan.signature import LayoutClass
from evt.plan.stock_epilogue import StockFusion, StockOperator
from evt.plan.target import Family, Target
from evt.plan.wgrad import WgradTile

# The main loop.


@dataclass(frozen=True, slots=True)
class Matrix:
    """The operand ``name`` of a matrix product; ``leading`` is its stride along the mode that is not contiguous."""

    name: str
    dtype: DType
    contiguous: str | None
    alignment: int
    pointer: Field
    leading: Field
    batch: Field | Literal[0]


@dataclass(frozen=True, slots=True)
class Image:
    """The operand ``name`` of a convolution, channels last; ``strides`` has the other dimensions', outermost first."""

    name: str
    dtype: DType
    alignment: int
    pointer: Field
    strides: tuple[Field, ...]


@dataclass(frozen=True, slots=True)
class RowPadding:
    """How the rows of a padded copy are made: zeros around each, up to a multiple of ``pixels``."""

    pixels: int
    padding: tuple[Field, Field] | None


@dataclass(frozen=True, slots=True)
class PaddedCopy:
    """A packed copy of ``original`` in the workspace, with zeros after the channels of its pixels.

    ``extents`` are the extents of the original without the ``channels``, outermost first. ``vector`` elements are moved
    together and divide the copy's channels: ``padded_channels``, or if that is 0, the fewest vectors that hold them.
    """

    original: Image
    extents: tuple[Field, ...]
    channels: Field
    vector: int
    padded_channels: int = 0
    row: RowPadding | None = None

    @property
    def name(self) -> str:
        return self.original.name

    @property
    def dtype(self) -> DType:
        return self.original.dtype


@dataclass(frozen=True, slots=True)
class MatrixProduct:
    """A matrix product: ``a`` and ``b`` as the kernel has them, exchanged in a transposed problem."""

    a: Matrix
    b: Matrix
    work: tuple[Work, ...] = ()


@dataclass(frozen=True, slots=True)
class RowCopy:
    """A copy of ``matrix`` in the workspace whose ``rows`` begin at lines of L2, which have ``line`` elements.

    A row has the elements along the contiguous mode, ``columns``. ``batches`` is None if there is one matrix.
    """

    matrix: Matrix
    rows: Field
    columns: Field
    batches: Field | None
    line: int

    @property
    def name(self) -> str:
        """The name of the copy in the workspace."""
        return f"copy_{self.matrix.name}"


@dataclass(frozen=True, slots=True)
class OwnProduct(MatrixProduct):
    """A matrix product by the kernel of codegen/include/evt/kit/gemm.hpp. The columns of D are called filters.

    ``row_copies`` are made of operands that TMA cannot load. ``ends`` are the ends of the groups of rows, if each group
    has its own B. ``factors`` of its operands multiply the sums of a stage; a zero point of B is among them. ``bias``
    is the code of zero of a packed B. ``pairs``: the distance of a pair's columns, for which D has one column, or 0.
    ``partner`` has the second columns, if not B. ``unaligned``: rows of matrices that it loads begin at any address.
    """

    row_copies: tuple[RowCopy, ...] = ()
    ends: Field | None = None
    factors: tuple[Factor, ...] = ()
    bias: int = 0
    pairs: int = 0
    partner: Matrix | None = None
    batched: bool = False
    unaligned: bool = False

    @property
    def is_packed(self) -> bool:
        """Whether B is packed, in the layout of :func:`evt.prepare`."""
        return self.b.dtype in PACKED_OPERANDS

    def copy_of(self, matrix: Matrix) -> RowCopy | None:
        """Return the copy that the kernel reads in place of A or B."""
        return next((each for each in self.row_copies if each.matrix == matrix), None)

    @property
    def has_many(self) -> bool:
        """Whether inputs have a value for each group or batch."""
        return self.batched or self.ends is not None

    @property
    def transposes_filters(self) -> bool:
        """Whether filters are rows of columns for each channel: see FilterRows in kit/taps.hpp."""
        return self.b.contiguous == "n"

    @property
    def converts(self) -> bool:
        """Whether B is converted to the type of A, in registers."""
        return self.b.dtype.bits < self.a.dtype.bits


@dataclass(frozen=True, slots=True)
class Convolution:
    """An implicit GEMM; its sizes are members of the call by the names of ConvolutionProblem."""

    operator: Operator
    rank: int
    a: Image | PaddedCopy
    b: Image | PaddedCopy

    @property
    def spatial(self) -> tuple[str, ...]:
        """The spatial dimensions, innermost last."""
        return SPATIAL[-self.rank :]

    @property
    def copies(self) -> tuple[PaddedCopy, ...]:
        """The copies that are made before the kernel."""
        return tuple(each for each in (self.a, self.b) if isinstance(each, PaddedCopy))


#: How taps are found: in tables made on the host, by division, or as contiguous channels.
Iterators = Literal["optimized", "analytic", "fixed channels"]


@dataclass(frozen=True, slots=True)
class Convolution2x(Convolution):
    """One of CUTLASS 2.x. ``strided`` iterators take any stride, where CUTLASS has other ones that do not.

    ``alignments``: elements of an access of A and B, if the kernel must know. ``padded``: ``work`` meets the padding.
    """

    groups: Groups
    iterators: Iterators
    strided: bool
    alignments: tuple[int, ...]
    padded: bool
    work: tuple[Work, ...] = ()


@dataclass(frozen=True, slots=True)
class Convolution3x(Convolution):
    """One of CUTLASS 3.x; ``window_channels`` are the channels of a copy in which a row of taps is one tap, or 0."""

    window_channels: int = 0


@dataclass(frozen=True, slots=True)
class HaloConvolution(Convolution):
    """A convolution that loads each pixel once a tile (:mod:`evt.plan.geometry.halo`). ``shared``: by clusters.

    ``windows``: the channels and the pixels of a chunk, if a row of taps is one tap. ``residues``: dgrad with a stride.
    ``by_images``: a tile has pixels of one image, for reductions. ``taps``: of a stage, if known. ``stored``: elements
    a thread stores at a time without TMA, else 0; ``planar``: to planes. ``keeps_zeros``: D is 0 where the product is.
    """

    windows: tuple[int, int] | None = None
    shared: bool = False
    residues: bool = False
    groups: Groups = "one"
    by_images: bool = False
    taps: int = 0
    stored: int = 0
    keeps_zeros: bool = False
    planar: bool = False

    @property
    def transposes_filters(self) -> bool:
        """Whether filters are rows of columns for each channel: see FilterRows in kit/taps.hpp."""
        return self.operator == "dgrad" and self.groups != "multiple"


@dataclass(frozen=True, slots=True)
class DepthwiseConvolution(Convolution):
    """A convolution with a ``filter`` for each channel, whose sizes are constants: see evt.plan.depthwise."""

    filter: Filter


@dataclass(frozen=True, slots=True)
class FilterGradient(Convolution):
    """The gradient of a filter by the kernels of codegen/include/evt/kit/wgrad.hpp: a CTA computes a ``part``."""

    part: WgradTile


Mainloop: TypeAlias = (
    MatrixProduct | Convolution2x | Convolution3x | HaloConvolution | DepthwiseConvolution | FilterGradient
)

# The epilogue.


@dataclass(frozen=True, slots=True)
class Tensor:
    """The tensor of a tile that the collective itself loads as C or stores as D."""

    dtype: DType
    row_major: bool
    alignment: int
    pointer: Field
    strides: Strides


Epilogue: TypeAlias = EpilogueProgram | StockOperator | StockFusion

# The call.


@dataclass(frozen=True, slots=True)
class Parameter:
    """An operand, input or output, by the program's name for it.

    ``layout`` is None without rows and columns. ``flexible``: the call gives a vector or a single value.
    """

    kind: Literal["operand", "input", "output"]
    name: str
    dtype: DType
    modes: tuple[str, ...]
    layout: LayoutClass | None
    flexible: bool = False
    default: float | None = None


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A kernel, ready to be spelled.

    ``route`` is the name of its route; ``template`` is its file in ``codegen/templates``; ``instructions`` is the
    architecture whose instructions it uses; ``accumulator`` is the type of sums. ``program`` is the user's text,
    ``interface`` its inputs and outputs in words, ``signature`` the layouts of A and B in words, ``functions`` the
    definitions of the user's own functions. ``transposed``: the kernel's rows are the program's columns.

    ``source`` and ``destination`` are C and D of the collective, if any; ``epilogue_dtype`` is the type that the
    epilogue's tiles are cut for. 2.x: ``elements_per_access`` is the width of the epilogue's accesses, and
    ``whole_accesses`` tells whether the kernel refuses rows that are no multiple of this width.

    ``fields`` are the members of the kernel's arguments; a call fills them from the ``parameters``.
    ``shared_memory`` is an estimate in bytes; ``memory_limit`` is the limit of a thread block. ``operand_bits`` is the
    width of A's elements; ``read_bytes`` and ``written_bytes`` are the epilogue's traffic for each element of the
    product, and ``epilogue_instructions`` are the instructions of its functions.
    """

    route: str
    family: Family
    template: str
    instructions: int
    target: Target
    config: Config
    options: Options
    program: str
    interface: tuple[str, ...]
    signature: str
    functions: tuple[str, ...]
    transposed: bool
    accumulator: DType
    mainloop: Mainloop
    epilogue: Epilogue
    source: Tensor | None
    destination: Tensor | None
    epilogue_dtype: DType
    elements_per_access: int
    whole_accesses: bool
    parameters: tuple[Parameter, ...]
    fields: tuple[Field, ...]
    shared_memory: int
    memory_limit: int
    registers: int
    operand_bits: int
    read_bytes: float
    written_bytes: float
    epilogue_instructions: int

    @property
    def generation(self) -> str:
        """CUTLASS's generation, ``2.x`` or ``3.x``."""
        return "2.x" if self.family == "2x" else "3.x"

    @property
    def with_pdl(self) -> bool:
        """Whether the kernel is set up while the previous one ends, by programmatic dependent launch (PDL).

        So are its copies and its end. In CUDA graphs on an H200, each kernel of a sequence takes 0.7 to 1.7 us less.
        Convolutions of CUTLASS put several thread blocks on an SM. The next kernel's would crowd them: 1.2 of the time.
        """
        return self.family == "own" and not isinstance(self.mainloop, DepthwiseConvolution)

    @property
    def rows(self) -> str:
        """The mode along the kernel's own rows."""
        return "n" if self.transposed else "m"

    @property
    def columns(self) -> str:
        """The mode along the kernel's own columns."""
        return "m" if self.transposed else "n"

    @property
    def steps(self) -> tuple[Step, ...]:
        """The steps of the epilogue, the root last; a stock epilogue has none."""
        return self.epilogue.steps if isinstance(self.epilogue, EpilogueProgram) else ()

    @property
    def tree(self) -> bool:
        """Whether the epilogue nests as a tree."""
        return not isinstance(self.epilogue, EpilogueProgram) or self.epilogue.tree

    @property
    def origins(self) -> tuple[str, ...]:
        """The origins of the epilogue's steps and results, and of the mainloop fusions; equal plans may differ here."""
        found: tuple[Step | Result | Work | Factor, ...] = (*self.steps, *self.results, *self.work, *self.factors)
        return tuple(each.origin for each in found)

    @property
    def reductions(self) -> tuple[Reduction, ...]:
        """The steps that reduce."""
        return self.epilogue.of(Reduction) if isinstance(self.epilogue, EpilogueProgram) else ()

    @property
    def results(self) -> tuple[Result, ...]:
        """The outputs that the kernel stores at its end."""
        return self.epilogue.results if isinstance(self.epilogue, EpilogueProgram) else ()

    @property
    def copies(self) -> tuple[PaddedCopy, ...]:
        """The copies of operands that are made before the kernel."""
        return () if isinstance(self.mainloop, MatrixProduct) else self.mainloop.copies

    @property
    def row_copies(self) -> tuple[RowCopy, ...]:
        """The copies of matrices that are made before the kernel."""
        return self.mainloop.row_copies if isinstance(self.mainloop, OwnProduct) else ()

    @property
    def register_limit(self) -> int:
        """The registers that a thread of the epilogue may have."""
        widens = isinstance(self.mainloop, HaloConvolution) and self.mainloop.windows is not None
        return BESIDE_WIDENERS if widens else register_limit(self.config)

    @property
    def work(self) -> tuple[Work, ...]:
        """The mainloop fusions of the operands."""
        return self.mainloop.work if isinstance(self.mainloop, MatrixProduct | Convolution2x) else ()

    @property
    def factors(self) -> tuple[Factor, ...]:
        """The factors of the operands that multiply the sums of a stage, and zero points."""
        return self.mainloop.factors if isinstance(self.mainloop, OwnProduct) else ()

    @property
    def regions(self) -> tuple[Region, ...]:
        """The regions that functors of evt compute, by their numbers."""
        found = [*(each.region for each in self.work), *(each.region for each in self.factors)]
        if isinstance(self.epilogue, EpilogueProgram):
            found += [region for region, _ in self.epilogue.regions]
        return tuple(sorted(found, key=lambda region: region.number))

    @property
    def schema(self) -> str:
        """The members of the kernel's arguments, as JSON."""
        return json.dumps({"abi": ABI, "fields": [[each.name, each.kind] for each in self.fields]})


@dataclass(frozen=True, kw_only=True)
class GroupedPlan(Plan):
    """A grouped kernel; ``group_fields`` are the rows of its table, in order: a field for each group."""

    group_fields: tuple[Field, ...]

    @property
    def schema(self) -> str:
        listed = (("fields", self.fields), ("rows", self.group_fields))
        return json.dumps({"abi": ABI, **{key: [[each.name, each.kind] for each in group] for key, group in listed}})
