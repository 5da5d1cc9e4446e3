"""Visitors become nodes: the inputs, outputs, types and strides of each; a family says which of its nodes serve."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import replace
from typing import Literal

from evt.ir import Const, Fold, Index, Input, Load, Output, Pick, Reduce
from evt.ir.dtype import F32, F64, I32, DType, accumulator
from evt.ir.node import divisor
from evt.ir.origin import describe
from evt.plan.epilogue.nodes import (
    Access,
    AccFetch,
    Apply,
    AuxLoad,
    AuxStore,
    BlockReduce,
    BlockStore,
    ColumnBroadcast,
    ColumnOrScalarBroadcast,
    Compute,
    Coordinate,
    Destination,
    HalfLoad,
    HalfStore,
    MaskLoad,
    MaskStore,
    Node,
    Number,
    PairMember,
    RandomNumbers,
    Reduction,
    ResultShape,
    RowBroadcast,
    RowOrScalarBroadcast,
    ScalarBroadcast,
    Single,
    SourceFetch,
    Stride,
    Varies,
)
from evt.plan.epilogue.regions import identity, make_region, single_function
from evt.plan.epilogue.visitors import WRITES, Graph, Visitor
from evt.plan.fields import GroupFields
from evt.plan.kernels.draft import Draft
from evt.plan.kernels.memory import Budget
from evt.plan.signature import Layout


class Nodes(ABC):
    """Makes the nodes of a kernel."""

    def __init__(self, draft: Draft) -> None:
        self.draft = draft

    @abstractmethod
    def vector(self, kind: str, value: Input) -> Node:
        """Return the broadcast of a ``row`` or a ``column``."""

    @abstractmethod
    def flexible(self, kind: str, value: Input) -> Node:
        """Return the broadcast of a vector or a single value, as the call's stride of 1 or 0 decides."""

    @abstractmethod
    def access(self, kind: str, name: str, layout: Layout) -> Access:
        """Return how a ``tile`` is loaded, or ``store``d."""

    def output(self, visitor: Visitor, graph: Graph) -> DType | Destination:
        """Return the type that a compute node hands on."""
        return self.draft.dag.types[visitor.value].dtype.compute

    def make(self, graph: Graph) -> tuple[Node, ...]:
        """Return the nodes of a graph, in its order."""
        nodes: list[Node] = []
        built: dict[tuple[str, str], Node] = {}
        for index, visitor in enumerate(graph.visitors):
            key = (visitor.kind, visitor.name)
            if visitor.kind in ("acc", "scalar", "source") and key in built:
                node = built[key]  # a tree may hold it several times; its arguments exist once
            else:
                node = built[key] = self.node(visitor, index, graph)
            nodes.append(replace(node, operands=visitor.operands, origin=self.origin(visitor)))
        return tuple(nodes)

    def origin(self, visitor: Visitor) -> str:
        """Return where the value of a visitor comes from; of what is written, the statement that stores it."""
        dag = self.draft.dag
        value = dag.stores[visitor.name] if visitor.kind in WRITES else visitor.value
        return describe(dag.origins[value], dag.source)

    def node(self, visitor: Visitor, index: int, graph: Graph) -> Node:
        draft = self.draft
        op = draft.dag[visitor.value]
        match visitor.kind:
            case "acc":
                return AccFetch(name="accumulator")
            case "source":
                return SourceFetch(draft.dtype(visitor.name), name="source")
            case "scalar":
                return self.scalar(draft.dag.input[visitor.name])
            case "constant":
                assert isinstance(op, Const)
                dtype = F64 if accumulator(draft.dag.operands[0].dtype) == F64 else F32
                return ScalarBroadcast(Number(dtype, op.value), (0, 0, 0), name=f"constant_{index}")
            case "row" | "column":
                value = draft.dag.input[visitor.name]
                return self.flexible(visitor.kind, value) if value.flexible else self.vector(visitor.kind, value)
            case "tile" | "store":
                return self.tile(draft.value(visitor.name))
            case "compute":
                return self.compute(visitor, graph, f"compute_{index}")
            case "index":
                assert isinstance(op, Index)
                axis: Literal["row", "column", "batch"] = "row" if op.mode == draft.rows else "column"
                return Coordinate("batch" if op.mode == "l" else axis, name=f"index_{op.mode}")
            case "random":
                seed, offset = (self.random_argument(operand) for operand in draft.dag.arguments(visitor.value))
                return RandomNumbers(seed, offset, draft.transposed, name=f"random_{index}")
            case "pick":
                assert isinstance(op, Pick)
                return PairMember(op.member, op.block, name=f"pair_{index}")
            case "fold":
                assert isinstance(op, Fold)
                return BlockReduce(op.kind, op.width, name=f"block_{index}")
            case "mask" | "half" | "store_mask" | "store_half" | "store_block":
                return self.packed(visitor)
            case "reduce":
                return self.reduce(visitor, index)

    def scalar(self, value: Input) -> Node:
        single = self.draft.single(value)
        strides = self.draft.with_batch(value.name, 0, 0, "l" in value.modes)
        return ScalarBroadcast(single, strides, name=self.draft.names[value.name])

    def tile(self, value: Input | Output) -> Node:
        """Return a full-tile load, or the store of an output."""
        draft, name, layout = self.draft, value.name, self.draft.signature[value.name]
        pointer, strides = draft.fields.pointer(name), draft.strides(name)
        if isinstance(value, Output):
            access = self.access("store", name, layout)
            return AuxStore(draft.dtype(name), pointer, strides, layout.alignment, access, name=draft.names[name])
        access = self.access("tile", name, layout)
        return AuxLoad(draft.dtype(name), pointer, strides, layout.alignment, access, name=draft.names[name])

    def packed(self, visitor: Visitor) -> Node:
        """Return a tensor of packed bits, or of fewer columns than the accumulator: its columns are contiguous."""
        draft, dtype, name = self.draft, self.draft.dtype(visitor.name), self.draft.names[visitor.name]
        pointer = draft.fields.pointer(visitor.name)
        batch = draft.batch(visitor.name, draft.signature[visitor.name].batch == "strided")
        row = draft.fields.stride(visitor.name, "m")
        match visitor.kind:
            case "mask":
                return MaskLoad(pointer, row, batch, name=name)
            case "store_mask":
                return MaskStore(pointer, row, batch, name=name)
            case "store_block":
                return BlockStore(pointer, row, batch, dtype, divisor(self.divided_mode(visitor.value)), name=name)
            case "half":
                return HalfLoad(pointer, row, batch, dtype, self.pair_distance(visitor.value), name=name)
            case _:
                return HalfStore(pointer, row, batch, dtype, self.pair_distance(visitor.value), name=name)

    def divided_mode(self, value: int) -> str:
        """Return the mode of the columns of a value that has fewer of them."""
        return next(mode for mode in self.draft.dag.types[value].modes if "/" in mode)

    def pair_distance(self, value: int) -> int:
        """Return how far apart the columns are with which a tensor of half as many columns meets."""
        dag = self.draft.dag
        stack, seen = [value], {value}
        while stack:
            node = stack.pop()
            for mode in dag.types[node].modes:
                if "@" in mode:
                    return int(mode.partition("@")[2])
            new = [user for user in dag.users[node] if user not in seen]
            seen.update(new)
            stack.extend(new)
        return 1

    def random_argument(self, value: int) -> Single | Number:
        """Return the seed or the offset of random numbers."""
        op = self.draft.dag[value]
        if isinstance(op, Const):
            return Number(I32, op.value)
        assert isinstance(op, Load)
        return self.draft.single(self.draft.dag.input[op.name])

    def reduce(self, visitor: Visitor, index: int) -> Node:
        draft, dag = self.draft, self.draft.dag
        value = dag.arguments(dag.stores[visitor.name])[0]
        op, dtype, output = dag[value], dag.types[value].dtype, draft.dtype(visitor.name)
        assert isinstance(op, Reduce)
        kept = {"m", "n"} - set(op.modes)
        shape = ResultShape.SCALAR if not kept else ResultShape.COLUMN if kept == {draft.rows} else ResultShape.ROW
        pointer = draft.fields.pointer(visitor.name)
        over_batch = "l" in op.modes
        batch = draft.batch(visitor.name, not over_batch)
        # The blocks combine in the output itself, which needs one of the type that is reduced in.
        atomic = draft.problem.options.atomic and dtype == output and dtype in (F32, I32)
        if not atomic:
            draft.fields.workspace()
        return Reduction(
            shape,
            op.kind,
            dtype,
            output,
            pointer,
            draft.fields.size(kept.pop()) if kept else 1,
            batch,
            over_batch,
            atomic,
            name=f"reduction_{index}",
        )

    def compute(self, visitor: Visitor, graph: Graph, name: str) -> Node:
        draft = self.draft
        values = [graph.visitors[operand].value for operand in visitor.operands]
        output = self.output(visitor, graph)
        plain = output is not Destination.D or draft.dtype("D").is_float  # stock nodes convert to integers by wrapping
        plain = plain and output in (F32, Destination.D)
        if values == [visitor.value]:
            dtype = draft.dag.types[visitor.value].dtype.compute
            if plain and dtype == F32:
                return Compute("", output, name=name)
            return Apply(identity(draft.next_region(), dtype), output, name=name)
        function = single_function(draft.dag, visitor.value, values)
        if function and plain:
            return Compute(function, output, name=name)
        parameters: dict[int, str] = {}
        for position, operand in enumerate(visitor.operands):
            source = graph.visitors[operand]
            label = draft.names.get(source.name) or ("acc" if source.kind == "acc" else f"x{position}")
            parameters[source.value] = label
        region = make_region(draft.dag, draft.next_region(), visitor.value, parameters)
        return Apply(region, output, name=name)


class Nodes2x(Nodes):
    """Nodes of CUTLASS 2.x, whose accesses cover so many elements of a row."""

    def __init__(self, draft: Draft, width: int) -> None:
        super().__init__(draft)
        self.width = width

    def flexible(self, kind: str, value: Input) -> Node:
        draft, dtype, name = self.draft, self.draft.dtype(value.name), self.draft.names[value.name]
        single = draft.single(value)
        stride = draft.fields.stride(value.name, draft.columns if kind == "row" else draft.rows)
        batch = draft.batch(value.name, "l" in value.modes)
        if kind == "row":
            return RowOrScalarBroadcast(dtype, single, stride, batch, name=name)
        return ColumnOrScalarBroadcast(dtype, single, stride, batch, name=name)

    def vector(self, kind: str, value: Input) -> Node:
        draft, dtype, name = self.draft, self.draft.dtype(value.name), self.draft.names[value.name]
        pointer = draft.fields.pointer(value.name)
        if kind == "column":
            return ColumnBroadcast(dtype, pointer, draft.with_batch(value.name, 1, 0, "l" in value.modes), name=name)
        # The stock node reads whole accesses: beyond the end of a vector, and none that is not aligned.
        return RowOrScalarBroadcast(dtype, pointer, 1, draft.batch(value.name, "l" in value.modes), name=name)

    def access(self, kind: str, name: str, layout: Layout) -> Access:
        whole = layout.contiguous == self.draft.columns and is_aligned(self.draft, name, layout, self.width)
        return Access.TILE if whole else Access.STRIDED


class Nodes3x(Nodes):
    """Nodes of CUTLASS 3.x, some of whose tiles go through what is left of shared memory.

    ``tile_stores`` False stores them directly.
    """

    def __init__(self, draft: Draft, budget: Budget, tile_stores: bool = True) -> None:
        super().__init__(draft)
        self.budget = budget
        self.tile_stores = tile_stores

    def vector(self, kind: str, value: Input) -> Node:
        draft, dtype, name = self.draft, self.draft.dtype(value.name), self.draft.names[value.name]
        pointer, strided = draft.fields.pointer(value.name), "l" in value.modes
        if kind == "row":
            return RowBroadcast(dtype, pointer, draft.with_batch(value.name, 0, 1, strided), name=name)
        return ColumnBroadcast(dtype, pointer, draft.with_batch(value.name, 1, 0, strided), name=name)

    def flexible(self, kind: str, value: Input) -> Node:
        draft, dtype, name = self.draft, self.draft.dtype(value.name), self.draft.names[value.name]
        single, varies, strided = draft.single(value), self.varies(kind, value), "l" in value.modes
        if kind == "row":
            return RowBroadcast(dtype, single, draft.with_batch(value.name, 0, varies, strided), name=name)
        return ColumnBroadcast(dtype, single, draft.with_batch(value.name, varies, 0, strided), name=name)

    def varies(self, kind: str, value: Input) -> Stride:
        """Return the stride of a vector or a single value."""
        return Varies(self.draft.fields.stride(value.name, self.draft.columns if kind == "row" else self.draft.rows))

    def access(self, kind: str, name: str, layout: Layout) -> Access:
        if kind == "store" and not self.tile_stores:
            return Access.DIRECT
        return Access.TILE if self.budget.takes(kind, name, layout) else Access.DIRECT

    def output(self, visitor: Visitor, graph: Graph) -> DType | Destination:
        root = self.draft.stores_tile and visitor is graph.visitors[-1]
        return Destination.D if root else super().output(visitor, graph)


class NodesGrouped(Nodes3x):
    """Nodes of a grouped kernel: tiles are moved directly, and vectors of single values are so in all groups alike."""

    def varies(self, kind: str, value: Input) -> Stride:
        assert isinstance(self.draft.fields, GroupFields)
        return Varies(self.draft.fields.varies(value.name))

    def access(self, kind: str, name: str, layout: Layout) -> Access:
        return Access.DIRECT


def is_aligned(draft: Draft, name: str, layout: Layout, width: int) -> bool:
    """Return whether accesses of so many elements are aligned; one that is wider than 16 bytes takes several."""
    size = draft.problem.tensor_bytes(name)
    return min(16, width * size) <= layout.alignment * size
