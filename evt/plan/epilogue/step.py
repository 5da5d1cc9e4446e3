"""The base of an epilogue's steps: a place in the program, and the metadata that every step has.

Every step class says

- ``of``: how it is made from the graph's value,
- ``operation``, ``header``, ``constants``, ``members``: its C++ operation in codegen/include/evt/epilogue, and the
  operation's arguments at compile time and at run time,
- ``description``: its words in ``evt explain``,
- ``registers``, ``shared_bytes``, ``bytes``: its costs.

Emission spells a step from these alone: see evt/emission/operations.py.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, TypeVar

from evt.ir.dtype import F32, DType
from evt.ir.origin import quoted
from evt.plan.epilogue.results import Results
from evt.plan.epilogue.scope import Scope
from evt.plan.epilogue.values import Constant, Member

#: Registers for the pointers and strides that a step keeps between its accesses.
ADDRESS = 3
_Step = TypeVar("_Step", bound="Step")


@dataclass(frozen=True, slots=True)
class Share:
    """A thread's part of a tile: ``elements`` in one step of the epilogue, and ``steps`` for the whole tile."""

    elements: int
    steps: int

    @staticmethod
    def registers(dtype: DType, elements: int) -> int:
        """Return the 32-bit registers that hold values of a type."""
        return -(-elements * dtype.bits // 32)


@dataclass(frozen=True, slots=True)
class Buffers:
    """The shared memory that an epilogue may use: for row vectors and for partial reductions of whole columns.

    ``columns`` is the width of the tile; ``warps`` is the number of warps that combine their reductions there, or 0.
    """

    columns: int
    warps: int
    stages_rows: bool


@dataclass(frozen=True, slots=True)
class Slot:
    """A step's place before the step is made: its class, the graph's ``value``, and the positions of its operands.

    ``name`` is an input's or output's name. ``reduction`` is the graph's node of a reduction and its keys.
    """

    step: type[Step]
    value: int
    operands: tuple[int, ...] = ()
    name: str = ""
    reduction: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A step: ``name`` is unique in the kernel, ``operands`` are positions of earlier steps.

    ``result`` is the type of the step's value in registers; ``origin`` is the part of the user's text, in words.
    """

    name: str
    operands: tuple[int, ...] = ()
    result: DType = F32
    origin: str = field(default="", compare=False)

    #: Whether the step returns its operand, after it has written or reduced it.
    passes: ClassVar[bool] = False
    #: Whether the operation loads elements ahead of their use.
    fetches: ClassVar[bool] = False
    #: Whether the operation needs all elements of a thread at once, because lanes exchange them.
    exchanges: ClassVar[bool] = False

    @classmethod
    def of(cls: type[_Step], slot: Slot, index: int, program: Context) -> Step:
        """Return the step of a slot, which is at a position of the program."""
        raise NotImplementedError

    @property
    def operation(self) -> str:
        """The name of the step's C++ operation."""
        return type(self).__name__

    @property
    def header(self) -> str:
        """The header of the operation, in codegen/include/evt/epilogue; "" for steps without an operation of evt."""
        return ""

    @property
    def constants(self) -> tuple[Constant, ...]:
        """The compile-time arguments of the operation, in order."""
        return ()

    @property
    def members(self) -> tuple[tuple[str, Member], ...]:
        """The run-time arguments of the operation, by name."""
        return ()

    @property
    def reads_rows(self) -> bool:
        """Whether the operation asks for the rows of its elements."""
        return False

    @property
    def description(self) -> str:
        """The step in words."""
        raise NotImplementedError

    @property
    def is_prefetched(self) -> bool:
        """Whether a whole fragment is loaded before the first operation, and waits in registers."""
        return False

    @property
    def bytes(self) -> float:
        """The bytes that the step moves for each element of the product; 0 for tensors smaller than a matrix."""
        return 0

    def registers(self, share: Share) -> int:
        """Return the registers that the step keeps from one step of the epilogue to the next, or during one."""
        return 0

    def shared_bytes(self, buffers: Buffers) -> int:
        """Return the bytes of shared memory, auxiliary tiles aside."""
        return 0


@dataclass(frozen=True)
class Context:
    """The context of a step that is being made: the scope, all slots in order, and the choices of the kernel's family.

    ``converts_root``: the last step converts its value to D's type. ``uses_functors``: CUTLASS's functors may compute.
    ``any_stride``: vector broadcasts take any stride.
    """

    scope: Scope
    slots: tuple[Slot, ...]
    results: Results
    converts_root: bool
    uses_functors: bool
    any_stride: bool

    def origin(self, slot: Slot) -> str:
        """Return the part of the text that a slot's value comes from; for a store, its statement."""
        dag = self.scope.dag
        value = slot.value if slot.reduction is None else slot.reduction
        written = dag.stores[slot.name] if slot.step.passes and slot.reduction is None else value
        return quoted(dag.origins[written], dag.source)
