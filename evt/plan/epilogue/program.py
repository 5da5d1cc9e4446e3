"""The epilogue program: ``epilogue_program(scope, ...) -> EpilogueProgram``, an ordered list of typed steps.

Inputs become loads, regions become computations, outputs become stores and reductions: see evt/plan/epilogue/loads.py,
broadcasts.py, computes.py and writes.py. Everything that describes, counts or spells an epilogue reads the program.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from evt.ir import (
    Acc,
    Const,
    Extent,
    Index,
    Interleave,
    Load,
    Node,
    Output,
    Pick,
    Random,
    Reduce,
    ReduceBlocks,
    TypedDag,
)
from evt.ir.columns import columns_of
from evt.ir.dtype import B1
from evt.ir.node import PLACES, is_divided
from evt.plan.epilogue.broadcasts import (
    ColumnBroadcast,
    Coordinate,
    PairBroadcast,
    RandomNumbers,
    RowBroadcast,
    ScalarBroadcast,
)
from evt.plan.epilogue.computes import Apply, BlockReduce, FirstColumns, PairInterleave, PairMember, PairSwap, PlaceKeys
from evt.plan.epilogue.facts import in_order, reductions_of, swapped
from evt.plan.epilogue.loads import AccFetch, Auxiliary, AuxLoad, Gather, HalfLoad, MaskLoad, SourceFetch
from evt.plan.epilogue.partition import operands_of, region_operands, results
from evt.plan.epilogue.regions import Region
from evt.plan.epilogue.results import Result, Results
from evt.plan.epilogue.scope import Scope
from evt.plan.epilogue.step import Buffers, Context, Slot, Step
from evt.plan.epilogue.values import Access
from evt.plan.epilogue.writes import AuxStore, BlockStore, HalfStore, MaskStore, Reduction, Scatter, VectorStore

_Kind = TypeVar("_Kind", bound=Step)

#: The steps of values that no region computes, by the class of the graph's node.
_STEPS: dict[type[Node], type[Step]] = {
    Acc: AccFetch,
    Const: ScalarBroadcast,
    Extent: ScalarBroadcast,
    Index: Coordinate,
    Random: RandomNumbers,
    Pick: PairMember,
    Interleave: PairInterleave,
    ReduceBlocks: BlockReduce,
}
#: The largest program that is tried as a tree.
_LARGEST_TREE = 200


@dataclass(frozen=True, slots=True)
class EpilogueProgram:
    """Steps in the order in which they run, the root last; ``tree`` tells whether they nest as a tree.

    ``results`` are the outputs that the kernel stores when the parts of reductions are combined.
    """

    steps: tuple[Step, ...]
    tree: bool
    results: tuple[Result, ...] = ()

    @property
    def unique(self) -> tuple[Step, ...]:
        """The steps, each once: a tree may hold an accumulator or a scalar several times."""
        return tuple({step.name: step for step in self.steps}.values())

    def of(self, kind: type[_Kind]) -> tuple[_Kind, ...]:
        """Return the steps of a class."""
        return tuple(step for step in self.unique if isinstance(step, kind))

    @property
    def regions(self) -> Iterator[tuple[Region, str]]:
        """The regions that functors compute, each with its origin."""
        yield from ((step.region, step.origin) for step in self.of(Apply))
        yield from ((result.region, result.origin) for result in self.results if result.region is not None)

    def bytes(self, *, written: bool) -> float:
        """Return the bytes that the steps read, or write, for each element of the product."""
        return sum(step.bytes for step in self.unique if step.passes == written)

    def shared_bytes(self, buffers: Buffers) -> int:
        """Return the bytes of shared memory that the steps need, auxiliary tiles aside."""
        return sum(step.shared_bytes(buffers) for step in self.steps)

    def with_access(self, access: Callable[[Auxiliary], Access]) -> EpilogueProgram:
        """Return the program with the way in which each matrix is moved; ``access`` is asked in the order of steps."""
        steps = (replace(step, access=access(step)) if isinstance(step, Auxiliary) else step for step in self.steps)
        return replace(self, steps=tuple(steps))


def epilogue_program(
    scope: Scope,
    *,
    source: str | None = None,
    implicit_store: str | None = None,
    fused: bool = True,
    nested: bool = True,
    uses_functors: bool = True,
    any_stride: bool = False,
    kept_along: Collection[str] = (),
) -> EpilogueProgram:
    """Return the program of a graph, and add the members that its steps need to the scope.

    ``source`` is the input that the collective loads as C; ``implicit_store`` is the output that the collective itself
    stores as D (3.x). ``fused=False`` makes every operation a separate step. ``nested=False`` makes no tree, for
    kernels that compute one value after the other. ``kept_along`` is as in :func:`evt.plan.epilogue.partition.results`,
    the rest as in :class:`Context`.
    """
    slots = _slots(scope, source, implicit_store, results(scope.dag, fused, kept_along))
    tree = _as_tree(scope.dag, slots) if nested else None
    order = tuple(tree or slots)
    made = Results(scope)
    context = Context(scope, order, made, implicit_store is not None, uses_functors, any_stride)
    steps: list[Step] = []
    repeated: dict[tuple[type[Step], int], Step] = {}
    for index, slot in enumerate(order):
        key = slot.step, slot.value
        step = repeated.get(key) or slot.step.of(slot, index, context)
        if _may_repeat(scope.dag, slot):
            repeated[key] = step
        placed = replace(
            step, operands=slot.operands, result=scope.compute_type(slot.value), origin=context.origin(slot)
        )
        steps.append(placed)
    return EpilogueProgram(tuple(steps), tree is not None, tuple(made.stored))


def _slots(scope: Scope, source: str | None, implicit_store: str | None, computed: set[int]) -> list[Slot]:
    """Return the places of the steps in topological order, the root last."""
    placement = _Placement(scope, source)
    for value in sorted(computed):
        placement.compute(value, computed)
    for name, store in in_order(scope.dag):
        if scope.dag.reduced[store]:
            placement.reduce(store)
        elif name == implicit_store:
            return placement.end_with(name, store)
        else:
            placement.store(name, store)
    return placement.slots


class _Placement:
    """The slots of a program while they are made, each after its operands. ``known`` has the slots of values."""

    def __init__(self, scope: Scope, source: str | None) -> None:
        self.scope, self.source, self.dag = scope, source, scope.dag
        self.slots: list[Slot] = []
        self.known: dict[int, int] = {}
        self._once: dict[int, int] = {}  # values whose shared columns count once
        self._reduced: set[int] = set()

    def compute(self, value: int, computed: set[int]) -> None:
        """Add the step of a region's result, or of an exchange between columns. Values come in id order."""
        op = self.dag[value]
        step = _STEPS.get(type(op), Apply) if swapped(self.dag, value) is None else PairSwap
        if isinstance(op, ReduceBlocks):
            operands: tuple[int, ...] = (self._operand_of(value),)
        elif step is not Apply:
            operands = tuple(map(self.visit, operands_of(self.dag, value)))
        else:
            read = region_operands(self.dag, value, computed)
            if not read:  # constants only: a region still needs an operand
                read = [next(node for node in range(len(self.dag)) if isinstance(self.dag[node], Acc))]
            operands = tuple(map(self.visit, read))
        self.known[value] = self._add(Slot(step, value, operands))

    def reduce(self, store: int) -> None:
        """Add the reductions that a stored value depends on, each once."""
        for node in reductions_of(self.dag, store):
            if node not in self._reduced:
                self._reduced.add(node)
                operand = self._operand_of(node)
                self._add(Slot(Reduction, self.dag.arguments(node)[0], (operand,), reduction=node))

    def store(self, name: str, store: int) -> None:
        """Add the store of an output."""
        value = self.dag.arguments(store)[0]
        self._add(Slot(_store(self.dag.output[name]), value, (self.visit(value),), name))

    def end_with(self, name: str, store: int) -> list[Slot]:
        """Return all slots. The last one gives the value that the collective stores as D."""
        value = self.dag.arguments(store)[0]
        operand = self.visit(value)
        if self.slots[operand].step is Apply and not any(operand in slot.operands for slot in self.slots):
            return _move_last(self.slots, operand)
        self._add(Slot(Apply, value, (operand,), name))  # the identity: the root converts to D's type
        return self.slots

    def visit(self, value: int) -> int:
        """Return the position of a value that is a leaf or was computed."""
        if value not in self.known:
            self.known[value] = self._add(_leaf(self.scope, value, self.source))
        return self.known[value]

    def _operand_of(self, node: int) -> int:
        """Return the position of the operand of a reduction or a block: a sum counts shared columns once."""
        op, value = self.dag[node], self.dag.arguments(node)[0]
        assert isinstance(op, Reduce | ReduceBlocks)
        operand = self.visit(value)
        if op.kind in PLACES:
            return self._add(Slot(PlaceKeys, value, (operand,), reduction=node))
        along = isinstance(op, ReduceBlocks) or "n" in op.over
        if op.kind != "sum" or not along or "/" not in columns_of(self.dag.types[value]):
            return operand
        if value not in self._once:
            self._once[value] = self._add(Slot(FirstColumns, value, (operand,)))
        return self._once[value]

    def _add(self, slot: Slot) -> int:
        self.slots.append(slot)
        return len(self.slots) - 1


def _leaf(scope: Scope, value: int, source: str | None) -> Slot:
    op = scope.dag[value]
    if not isinstance(op, Load):
        return Slot(_STEPS[type(op)], value)
    load = scope.dag.input[op.name]
    modes = set(load.modes) - {"l"}
    step: type[Step]
    if op.name == source:
        step = SourceFetch
    elif load.is_indexed:
        step = Gather
    elif not modes:
        step = ScalarBroadcast
    elif load.dtype == B1:
        step = MaskLoad
    elif len(modes) == 2:
        step = AuxLoad if modes == {"m", "n"} else HalfLoad
    else:
        along_columns = PairBroadcast if scope.in_pairs else RowBroadcast
        step = ColumnBroadcast if modes == {scope.rows} else along_columns
    return Slot(step, value, name=op.name)


def _store(output: Output) -> type[Step]:
    """Return the class of an output's store."""
    if output.is_indexed:
        return Scatter
    if not output.is_tile:
        return VectorStore
    if output.dtype == B1:
        return MaskStore
    divided = next((mode for mode in output.modes if is_divided(mode)), "")
    if not divided:
        return AuxStore
    return HalfStore if divided == "n/2" else BlockStore


def _may_repeat(dag: TypedDag, slot: Slot) -> bool:
    """Return whether a tree may hold a step several times: it only returns registers or a kernel parameter."""
    if slot.step is ScalarBroadcast:
        return not isinstance(dag[slot.value], Const)
    return slot.step in (AccFetch, SourceFetch)


def _move_last(slots: list[Slot], index: int) -> list[Slot]:
    """Move an unused slot to the end."""
    renumber = {old: old - (old > index) for old in range(len(slots))}
    rest = [slot for position, slot in enumerate(slots) if position != index]
    return [
        replace(slot, operands=tuple(renumber[operand] for operand in slot.operands)) for slot in (*rest, slots[index])
    ]


def _as_tree(dag: TypedDag, slots: Sequence[Slot]) -> list[Slot] | None:
    """Return the slots as a tree under the last one, or None.

    A store returns its operand, so a value that is stored and read once more flows through its store.
    """
    through = {slot.operands[0]: index for index, slot in enumerate(slots[:-1]) if slot.step.passes}
    if len(through) != sum(slot.step.passes for slot in slots[:-1]):
        return None  # one value stored twice
    tree: list[Slot] = []
    position: dict[int, int] = {}

    def place(index: int, via_store: bool = True) -> int | None:
        """Place a slot under its user; None if it is already under another and must not repeat."""
        if via_store and index in through:
            index = through[index]
        slot = slots[index]
        if index in position and not _may_repeat(dag, slot):
            return None
        operands = []
        for operand in slot.operands:
            placed = place(operand, via_store=through.get(operand) != index)
            if placed is None:
                return None
            operands.append(placed)
        tree.append(replace(slot, operands=tuple(operands)))
        position[index] = len(tree) - 1
        return position[index]

    if len(slots) > _LARGEST_TREE or place(len(slots) - 1) is None:
        return None
    # Stores and regions that do not lead to the root make it a graph.
    return tree if len(position) == len(slots) else None
