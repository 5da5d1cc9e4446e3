"""The text of templates: the parts of a plan as C++ types and expressions. Templates decide nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from evt.launch.members import Struct
from evt.plan import Field, Plan

#: (member, expression) each.
Assignments: TypeAlias = tuple[tuple[str, str], ...]


def namespace(name: str) -> str:
    """Return the namespace of a kernel. No other emitted file has it, and C, C++ and CUDA do not reserve it."""
    return f"{name}_impl"


@dataclass(frozen=True, slots=True)
class OperandText:
    """A or B: its element, its layout (a tag or a stride type), and the values of the kernel's arguments."""

    element: str
    layout: str
    alignment: int
    pointer: str
    stride: str = ""
    batch_stride: str = ""
    leading: str = ""


@dataclass(frozen=True, slots=True)
class TensorText:
    """C or D of a collective; ``element`` is ``void`` for an absent one."""

    element: str
    layout: str
    alignment: int
    arguments: Assignments = ()


@dataclass(frozen=True, slots=True)
class NodeText:
    """A step of the epilogue as a C++ object: its ``type``, and the assignments to its arguments.

    ``aliases`` are (name, type) declarations that the type uses. ``origin`` is a comment: the part of the formula.
    Own kernels: ``fetched`` elements are loaded ahead of their use; ``finished`` objects act at the end of a tile,
    and also at the end of a step if they have a result for each row (``keeps_rows``); blocks of columns share the rows'
    values of objects that ``follows`` marks. Objects that ``ends_parts`` marks act at the end of a part of the rows.
    Objects that ``begins_tiles`` marks load values before a consumer multiplies. An object that ``masks_words`` marks
    masks the words of D.
    """

    name: str
    type: str
    arguments: Assignments = ()
    origin: str = ""
    aliases: Assignments = ()
    fetched: bool = False
    finished: bool = False
    keeps_rows: bool = False
    ends_parts: bool = False
    follows: bool = False
    begins_tiles: bool = False
    masks_words: bool = False


@dataclass(frozen=True, slots=True)
class VisitorText:
    """A composite visitor: a tree of one node over its operands, or the whole topological visitor."""

    name: str
    type: str
    arguments: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class NestText:
    """The visitor's types in the order of C++ declarations. ``wrapper`` is the class template around the root."""

    unique: tuple[NodeText, ...] = ()
    visitors: tuple[VisitorText, ...] = ()
    wrapper: str = ""

    @property
    def root(self) -> str:
        """The visitor of the kernel: wrapped if the visitor, not the collective, stores every output."""
        return f"{self.wrapper}<{self.last}, ElementAux>" if self.wrapper else self.last

    @property
    def last(self) -> str:
        """The visitor that holds all others."""
        return self.visitors[-1].name if self.visitors else self.unique[-1].name


@dataclass(frozen=True, slots=True)
class StepText:
    """A statement of a fragment's epilogue; ``origin`` is a comment, as that of a node."""

    lines: tuple[str, ...]
    origin: str


@dataclass(frozen=True, slots=True)
class MultiplicationText:
    """A WGMMA instruction of 64 rows: its types, and its parts as asm wants them, the sums in lines of several.

    ``columns`` and ``depth`` describe operand B and k. ``transposed``: whether operand A is, the filters. ``a`` is
    operand A: its descriptor, or registers. The function has a ``remark`` and ``parameters``, and passes ``inputs`` to
    the asm statement. ``declared`` and ``moves`` make the descriptors.
    """

    element_bytes: int
    accumulator: str
    map_type: str
    transposed: bool
    pixels: int
    columns: str
    depth: str
    instruction: str
    registers: tuple[str, ...]
    operands: tuple[str, ...]
    a: str
    remark: tuple[str, ...]
    parameters: str
    inputs: str
    declared: str
    moves: str
    adds: str
    flags: str


@dataclass(frozen=True, slots=True)
class PassText:
    """A loop over the elements of a step: its statements, and the exchanges between lanes before it.

    ``kept`` are the arrays of values that later passes read: the name and the element type of each.
    """

    exchanges: tuple[StepText, ...]
    steps: tuple[StepText, ...]
    kept: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class ColumnText:
    """An array of the values of a thread's columns, and the statement that computes the value of element i's column."""

    type: str
    name: str
    step: StepText


@dataclass(frozen=True, slots=True)
class FragmentText:
    """The epilogue of an own kernel, and the instruction that makes its accumulator, if one does.

    ``source`` and ``destination`` are the elements of C and D, or ``void``; ``result`` is that of the last output.
    ``further`` are the elements of the other matrices that the kernel loads, and that it stores. ``places``: whether
    the ``passes`` ask for the rows of elements. ``transposed``: the columns of the operations are the matrix's rows.
    ``keeps_zeros``: D is the one output, and 0 wherever the product is 0. ``unaligned``: rows of the matrices that the
    kernel moves begin at any address. ``of_columns``: the values that a thread computes once for each of its columns.
    ``lanes`` says which columns a thread has.
    """

    source: str
    destination: str
    further: tuple[tuple[str, tuple[str, ...]], ...]
    parts: tuple[NodeText, ...]
    passes: tuple[PassText, ...]
    result: tuple[str, str]  # the type, the value
    places: bool
    transposed: bool
    keeps_zeros: bool
    unaligned: bool
    multiplication: MultiplicationText | None
    lanes: str
    of_columns: tuple[ColumnText, ...]


@dataclass(frozen=True, slots=True)
class StatementText:
    """A statement of a functor."""

    type: str
    name: str
    expression: str


@dataclass(frozen=True, slots=True)
class FunctorText:
    """A functor of evt over ``parameters``, (type, name) each; the last statement is the result.

    ``origin`` is a comment: its part of the formula. ``of_result``: whether it computes a result when the parts of
    reductions are combined.
    """

    name: str
    parameters: tuple[tuple[str, str], ...]
    statements: tuple[StatementText, ...]
    origin: str
    of_result: bool = False


@dataclass(frozen=True, slots=True)
class Parts:
    """An array in the workspace, called ``node``: ``element`` of [``batches``][``count``][``kept``].

    It holds the partial results of a reduction's node, or a copy of an operand. ``shape`` describes it in words.
    """

    node: str
    element: str
    count: str
    kept: str
    shape: tuple[str, ...]
    batches: str = "arguments.l"


@dataclass(frozen=True, slots=True)
class Job:
    """One job of a small kernel, in finish.hpp."""

    name: str
    type: str
    members: Assignments


@dataclass(frozen=True, slots=True)
class Jobs:
    """A small kernel and its jobs: the work before the kernel, or after it."""

    kernel: str
    type: str
    summary: str
    jobs: tuple[Job, ...]


@dataclass(frozen=True, slots=True)
class ConvolutionText:
    """A convolution: the ``kernel`` template, the ``headers`` that have it, its last arguments, and its ``extents``.

    For CUTLASS 3.x, ``kernel`` is a template around the configuration's kernel, or "".
    """

    operator: str
    kernel: str
    headers: tuple[str, ...]
    problem: str
    extents: Assignments
    options: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class FactorText:
    """A factor or the zero point of an operand (``role``): the functor ``region`` of ``inputs``, as (name, type) each.

    ``name`` is its type, and ``origin`` a comment: its part of the formula.
    """

    name: str
    role: str
    region: str
    inputs: tuple[tuple[str, str], ...]
    origin: str


@dataclass(frozen=True, slots=True)
class OwnText:
    """An own kernel: its types, and the members of its arguments for the problem and for the operands.

    ``mainloop`` is "" for a kernel without one, and ``factors`` multiply the sums of a stage. ``remark`` describes the
    problem. A call that meets ``refused`` fails. ``structs`` are the members of each kernel's parameters that a
    launcher outside of the text fills.
    """

    mainloop: str
    kernel: str
    remark: str
    problem: Assignments
    operands: Assignments
    structs: tuple[Struct, ...]
    refused: str = ""
    factors: tuple[FactorText, ...] = ()


@dataclass(frozen=True, slots=True)
class StockText:
    """A stock epilogue of CUTLASS 2.x: the ``kernel`` template that takes its operator, and the ``headers`` of both.

    ``parameters`` fill the operator's own, ``arguments`` the kernel's.
    """

    operator: str
    kernel: str
    headers: tuple[str, ...]
    swizzle: str
    parameters: Assignments
    arguments: Assignments


@dataclass(frozen=True, slots=True)
class WorkText:
    """The mainloop fusion of an operand: the arguments of evt::mainloop::Work, and its inputs as (type, expression).

    ``origin`` is a comment: the part of the formula that it is.
    """

    operand: str
    types: tuple[str, ...]
    inputs: tuple[tuple[str, str], ...]
    origin: str


@dataclass(frozen=True, slots=True)
class ConfigText:
    """A configuration's types.

    For a convolution, the ``kernel`` template with its last arguments, and the place of its epilogue's shared memory.
    ``extended_shapes``: a macro adds the WGMMA instruction that is as wide as the tile.
    """

    tile_shape: str = ""
    kernel_schedule: str = ""
    epilogue_schedule: str = ""
    kernel: str = ""
    kernel_options: tuple[str, ...] = ()
    epilogue_memory: str = ""
    threadblock_swizzle: str = ""
    extended_shapes: bool = False


@dataclass(frozen=True, slots=True)
class GroupValueText:
    """A value per group: the row of numbers, the row of addresses, and the type that both are of."""

    number: str
    pointer: str
    element: str


@dataclass(frozen=True, slots=True)
class MemberText:
    """A member of a kernel's arguments in C, or a row of a grouped kernel's table; ``comment`` describes it."""

    declaration: str
    comment: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ChecksText:
    """Conditions that refuse a null pointer of an operand or of another tensor, and sizes that are kept in ints.

    ``extents`` must not be negative, ``integers`` may be.
    """

    operands: tuple[str, ...]
    tensors: tuple[str, ...]
    extents: tuple[str, ...]
    integers: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelText:
    """Everything that a plan's template prints: the ``plan``, for its numbers and names, and the rest as text.

    ``name`` begins the names that callers see. ``members`` are the members of its arguments, ``rows`` the rows of its
    table, and ``functions`` the user's functions. ``program`` and ``interface`` are comment lines, and ``remark`` ends
    one. ``before`` and ``after`` are the small kernels around the kernel, and ``parts`` the parts of the workspace.
    ``worked`` are the arguments of evt::mainloop::Worked after the stock main loop. An epilogue is a ``nest`` or a
    ``fragment``.
    ``aligned`` are the addresses, and the strides in bytes, of the operands and tiles that TMA moves. ``checks`` and
    ``row_checks`` say which members, and which words of a group, are refused. ``flags`` are nvcc's.
    """

    name: str
    plan: Plan
    members: tuple[MemberText, ...]
    rows: tuple[MemberText, ...]
    functions: tuple[str, ...]
    program: tuple[str, ...]
    interface: tuple[str, ...]
    remark: str
    config: ConfigText
    arch_tag: str
    math_operator: str
    accumulator: str
    epilogue_element: str
    epilogue_wrapper: str
    checked_columns: str
    a: OperandText
    b: OperandText
    source: TensorText
    destination: TensorText
    aligned: tuple[str, ...]
    checks: ChecksText
    row_checks: ChecksText | None
    flags: tuple[str, ...]
    functors: tuple[FunctorText, ...]
    nest: NestText
    parts: tuple[Parts, ...]
    before: tuple[Jobs, ...]
    after: tuple[Jobs, ...]
    convolution: ConvolutionText | None
    own: OwnText | None
    stock: StockText | None
    work: tuple[WorkText, ...]
    worked: tuple[str, ...]
    group_fields: tuple[Field, ...]
    group_values: tuple[GroupValueText, ...]
    fragment: FragmentText | None

    @property
    def namespace(self) -> str:
        """Return the namespace of everything in the file that callers do not see."""
        return namespace(self.name)

    @property
    def jobs(self) -> tuple[Jobs, ...]:
        """The small kernels, in the order in which they run."""
        return (*self.before, *self.after)
