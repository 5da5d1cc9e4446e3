"""The outputs that a kernel stores at its end: it combines the parts of reductions, and computes from the results.

::

    Result  = Result(name, dtype, pointer, extent, ..., operands, region)    an output
    Operand = Combined(reduction, ...)          a complete reduction
            | Given(dtype, values, ...)         an input
            | Size(extent) | Number(...)        an extent, a constant
            | ResultIndex(batch)                the result's own row, column or batch
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from evt.ir import Extent, Index, Input, Load, Output, Reduce
from evt.ir.columns import columns_of
from evt.ir.dtype import F32, I32, DType
from evt.ir.node import MOMENTS, PLACES, base, divisor, is_divided
from evt.ir.origin import quoted
from evt.plan.epilogue.facts import in_order, is_leaf, reductions_of, shared_parts
from evt.plan.epilogue.regions import Region, identity, make_region
from evt.plan.epilogue.scope import Scope
from evt.plan.epilogue.values import Number, Single, Size
from evt.plan.fields import Field


@dataclass(frozen=True, slots=True)
class Combined:
    """A complete reduction, by the name of its step.

    For a result with fewer columns, each ``width`` columns of the kernel hold ``distance`` values, in the first ones; a
    ``merged`` result combines all ``width`` columns. ``moment`` is "mean" or "var" if the parts are moments.
    """

    reduction: str
    width: int = 1
    distance: int = 1
    moment: str = ""
    merged: bool = False


@dataclass(frozen=True, slots=True)
class Given:
    """An input: a vector with a ``stride``, or a single value."""

    dtype: DType
    values: Field | Single
    stride: Field | Literal[0, 1]
    batch: Field | Literal[0]


@dataclass(frozen=True, slots=True)
class ResultIndex:
    """The index of a result: its row or column, or its ``batch``."""

    batch: bool


Operand: TypeAlias = Combined | Given | Size | Number | ResultIndex


@dataclass(frozen=True, slots=True)
class Result:
    """An output that the kernel stores at its end: a reduction, or the value of ``region`` on ``operands``.

    ``extent`` is the extent of the mode that is kept; each ``divisor`` of its indices share a result. ``batch`` is the
    batch stride of results, or the stride ``of_images``, ``origin`` the statement that stores them.
    """

    name: str
    dtype: DType
    pointer: Field
    extent: Field | Literal[1]
    divisor: int
    batch: Field | Literal[0]
    over_batch: bool
    operands: tuple[Operand, ...]
    region: Region | None = None
    of_images: bool = False
    origin: str = field(default="", compare=False)

    @property
    def merges(self) -> bool:
        """Whether a result combines all columns of a group, as ``kMerges`` of finish_compute.hpp says."""
        return any(isinstance(each, Combined) and each.merged for each in self.operands)

    @property
    def description(self) -> str:
        """The final reduction in words."""
        read = ", ".join(dict.fromkeys(each.reduction for each in self.operands if isinstance(each, Combined)))
        return f"final reduction, {self.region} of {read}"


def kept_modes(op: Reduce) -> set[str]:
    """Return the modes along which a reduction has parts: rows, columns or none; all columns for groups of columns."""
    columns = {base(mode) for mode in op.modes if is_divided(mode)} - {"m"}
    return {"m", "n"} - op.over | columns


class Results:
    """The results of a kernel, each planned once all of its reductions have a step. ``stored`` are not atomic."""

    def __init__(self, scope: Scope) -> None:
        self.scope = scope
        self.stored: list[Result] = []
        self._reductions: dict[int, str] = {}
        #: Outputs that are not planned yet, with the reductions that they read.
        self._waiting = {
            name: reductions_of(scope.dag, store) for name, store in in_order(scope.dag) if scope.dag.reduced[store]
        }
        self._read = [node for nodes in self._waiting.values() for node in nodes]

    def add(self, node: int, name: str) -> Result | None:
        """Plan the results that a reduction completes; ``name`` is the name of its step.

        Return the result if the reduction may be combined by atomics in its output: its only result, of its type and
        without further arithmetic.
        """
        scope = self.scope
        self._reductions[node] = name
        complete = [output for output, nodes in self._waiting.items() if self._reductions.keys() >= set(nodes)]
        for output in complete:
            del self._waiting[output]
            result, dtype = self._make(scope.dag.output[output]), scope.dag.types[node].dtype
            alone = scope.atomic and self._read.count(node) == 1
            if alone and result.region is None and dtype == result.dtype and dtype in (F32, I32):
                return result
            self.stored.append(result)
        scope.fields.workspace()
        return None

    def _make(self, output: Output) -> Result:
        scope, dag = self.scope, self.scope.dag
        value = dag.arguments(dag.stores[output.name])[0]
        pointer, over = scope.fields.pointer(output.name), dag.reduced[value]
        batch = scope.fields.stride(output.name, "m") if output.of_images else scope.batch(output.name, "l" not in over)
        kept = kept_modes(Reduce("", over))
        extent: Field | Literal[1] = scope.fields.size(kept.pop()) if kept else 1
        columns = columns_of(dag.types[value])
        op = dag[value]
        plain = isinstance(op, Reduce) and divisor(columns) == 1 and op.kind not in (*PLACES, *MOMENTS)
        # If several outputs store a reduction unchanged, the first takes its name.
        name = self._reductions.get(value, "") if plain else ""
        name = scope.names[output.name] if not name or any(each.name == name for each in self.stored) else name
        leaves = [value] if isinstance(op, Reduce) else self._leaves(value)
        operands = tuple(self._operand(leaf, output) for leaf in leaves)
        region = None
        if isinstance(op, Reduce):
            region = None if plain else identity(scope.next_region(), dag.types[value].dtype.compute)
        else:
            region = make_region(dag, scope.next_region(), value, {leaf: self._label(leaf) for leaf in leaves})
        dtype = scope.dtype(output.name)
        origin = quoted(dag.origins[dag.stores[output.name]], dag.source)
        each, images = divisor(columns), output.of_images
        return Result(name, dtype, pointer, extent, each, batch, "l" in over, operands, region, images, origin)

    def _leaves(self, value: int) -> list[int]:
        """Return the leaves of a value: reductions, inputs, sizes and indices."""
        dag, found, stack, seen = self.scope.dag, set[int](), [value], {value}
        while stack:
            node = stack.pop()
            if isinstance(dag[node], Reduce) or is_leaf(dag[node]):
                found.add(node)
                continue
            new = [operand for operand in dag.arguments(node) if operand not in seen]
            seen.update(new)
            stack.extend(new)
        return sorted(found)

    def _label(self, leaf: int) -> str:
        moment = self._moment(leaf)
        match self.scope.dag[leaf]:
            case Load(name):
                return self.scope.names[name]
            case Extent(mode):
                return f"size_{mode}"
            case Index(mode):
                return f"index_{mode}"
        return self._reductions[shared_parts(self.scope.dag, leaf)] + (moment and f"_{moment}")

    def _operand(self, leaf: int, output: Output) -> Operand:
        scope = self.scope
        match scope.dag[leaf]:
            case Load(name):
                return self._given(scope.dag.input[name])
            case Extent(mode):
                return scope.size(mode)
            case Index(mode):
                return ResultIndex(mode == "l")
        op, columns = scope.dag[leaf], columns_of(scope.dag.types[leaf])
        reduction = self._reductions[shared_parts(scope.dag, leaf)]
        if isinstance(op, Reduce) and any(base(mode) == "n" and is_divided(mode) for mode in op.modes):
            return Combined(reduction, divisor(columns), 1, self._moment(leaf), merged=True)
        apart = scope.pair_distance(leaf) if divisor(columns) > 1 else 1
        return Combined(reduction, divisor(columns) * apart, apart, self._moment(leaf))

    def _moment(self, leaf: int) -> str:
        """Return the kind of a leaf whose parts are moments, or ""."""
        op = self.scope.dag[leaf]
        return op.kind if isinstance(op, Reduce) and op.kind in MOMENTS else ""

    def _given(self, value: Input) -> Given:
        scope, mode = self.scope, next((mode for mode in value.modes if mode != "l"), None)
        assert value.dtype is not None
        batch = scope.batch(value.name, "l" in value.modes)
        if mode is None:
            return Given(value.dtype, scope.single(value), 0, batch)
        if value.flexible:
            return Given(value.dtype, scope.single(value), scope.fields.stride(value.name, mode), batch)
        return Given(value.dtype, scope.fields.pointer(value.name), 1, batch)
