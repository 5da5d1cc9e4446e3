"""The plan: everything that a template prints, decided. Frozen; templates decide nothing.

A plan names C++ types and expressions; it holds no graph and no target logic.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from evt.plan.configurations.config import Config
from evt.plan.epilogue.functor import Functor
from evt.plan.target import Family, Target

#: Version of ``evt_arguments`` and ``evt_run``; a library of another version is rebuilt, never called.
ABI = 2

FieldKind = Literal["size", "pointer", "number"]


@dataclass(frozen=True, slots=True)
class Field:
    """One 8-byte member of ``evt_arguments``: a size or stride (int64), a pointer, or a number (double).

    ``tensor`` and ``role`` say what the runtime puts there: ("C", "pointer"), ("C", "m") for the stride of
    mode m in elements, ("alpha", "value"), ("", "k") for an extent, ("", "workspace") for memory to work in,
    ("", "swizzle") for a scheduler setting.
    """

    name: str
    kind: FieldKind
    tensor: str
    role: str

    @property
    def type(self) -> str:
        """The member's C++ type."""
        return {"size": "std::int64_t", "pointer": "void const*", "number": "double"}[self.kind]


@dataclass(frozen=True, slots=True)
class OperandPlan:
    """A or B as the kernel sees it: C++ element, layout (tag or stride type), alignment in elements."""

    element: str
    layout: str
    alignment: int
    pointer: str
    stride: str
    batch_stride: str
    leading: str


@dataclass(frozen=True, slots=True)
class Node:
    """One visitor node as text: ``kind`` names the macro that prints its type from the other fields.

    ``functor`` and ``parameters`` are the class template and its arguments of a node of ours. ``arguments`` are
    (member of the node's CUTLASS Arguments, expression that fills it); a node without any has none to fill.
    ``operands`` index earlier nodes.
    """

    kind: str
    name: str
    element: str = ""
    stride: str = ""
    alignment: int = 1
    functor: str = ""
    output: str = ""
    parameters: tuple[str, ...] = ()
    arguments: tuple[tuple[str, str], ...] = ()
    operands: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Tensor:
    """C or D of a collective; ``element`` is ``void`` for a C that is not there."""

    element: str
    layout: str
    alignment: int
    arguments: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Parts:
    """An array in the workspace, called ``node``: ``element`` of [l][``count``][``kept``], as C++ expressions.

    The partial results of a reduction's node, or a copy of an operand. ``shape`` says in words what it is of.
    """

    node: str
    element: str
    count: str
    kept: str
    shape: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Job:
    """One job of a small kernel, in finish.hpp: its C++ type and (member, expression) that fill it."""

    name: str
    type: str
    members: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Jobs:
    """A small kernel and its jobs: what atomic reductions need before the kernel, or partial ones after it."""

    kernel: str
    type: str
    summary: str
    jobs: tuple[Job, ...]


@dataclass(frozen=True, slots=True)
class ConvolutionPlan:
    """A convolution as CUTLASS names it: the ``operator``, the ``kernel`` template and the ``headers`` that have it.

    ``options`` are the last template arguments of that kernel; (name, expression) ``extents`` make a ``problem``.
    """

    operator: str
    kernel: str
    headers: tuple[str, ...]
    problem: str
    extents: tuple[tuple[str, str], ...]
    options: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class OutputPlan:
    """A stock epilogue of CUTLASS 2.x: the ``kernel`` template that takes its output operator, the ``headers`` of both.

    ``swizzle`` is the order of its tiles; ``arguments`` fill the kernel's own, (member, expression): the tensors that
    the epilogue reads and stores.
    """

    kernel: str
    headers: tuple[str, ...]
    swizzle: str
    arguments: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Work:
    """Work on one of the kernel's operands: the ``functor`` of its element, its inputs as (C++ type, what makes it)."""

    operand: str
    functor: str
    inputs: tuple[tuple[str, str], ...]

    @property
    def types(self) -> tuple[str, ...]:
        """The template arguments of evt::mainloop::Work."""
        return (self.functor, *(type_ for type_, _ in self.inputs))


@dataclass(frozen=True, slots=True)
class Mainloop:
    """The ``work`` in a main loop, and the template ``parameters`` of evt::mainloop::Worked after the stock one."""

    work: tuple[Work, ...]
    parameters: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A kernel, ready to print.

    ``route`` is the name of the route that it takes; ``template`` is that of ``codegen/templates`` which prints it;
    ``headers`` are those of ours (in ``codegen/include/evt``) that it needs, ``functions`` C++ definitions of the
    user's functions; ``program`` and ``description`` are comment lines and ``remark`` ends one; ``rows`` and
    ``columns`` are the modes along the kernel's own rows and columns. ``accumulator`` is the C++ type of sums,
    ``epilogue_element`` the one for which the epilogue's tiles are cut; ``wrapper`` and ``epilogue_wrapper`` are the
    class templates around the root visitor and around the collective epilogue, if any. ``parts`` lie in the workspace.
    ``elements_per_access`` is the width of the 2.x epilogue's accesses; ``shared_memory`` is estimated, in bytes.
    ``operand_bits`` is the width of A's elements; ``read_bytes`` and ``written_bytes`` are those of the epilogue's
    tiles, for each element of the product.
    """

    route: str
    family: Family
    template: str
    arch_tag: str
    math_operator: str
    target: Target
    config: Config
    program: tuple[str, ...]
    description: str
    remark: str
    rows: str
    columns: str
    headers: tuple[str, ...]
    functions: tuple[str, ...]
    accumulator: str
    epilogue_element: str
    wrapper: str
    epilogue_wrapper: str
    a: OperandPlan
    b: OperandPlan
    source: Tensor
    destination: Tensor
    functors: tuple[Functor, ...]
    nodes: tuple[Node, ...]
    parts: tuple[Parts, ...]
    before: tuple[Jobs, ...]
    after: tuple[Jobs, ...]
    tree: bool
    fields: tuple[Field, ...]
    shared_memory: int
    registers: int
    elements_per_access: int
    checked_columns: str
    operand_bits: int
    read_bytes: float
    written_bytes: float
    schema: str
    convolution: ConvolutionPlan | None = None
    output: OutputPlan | None = None
    mainloop: Mainloop | None = None

    @property
    def generation(self) -> str:
        """CUTLASS's generation, ``2.x`` or ``3.x``."""
        return "2.x" if self.family == "2x" else "3.x"

    @property
    def jobs(self) -> tuple[Jobs, ...]:
        """The small kernels, in the order in which they run."""
        return (*self.before, *self.after)
