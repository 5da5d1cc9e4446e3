"""Visitors become nodes: their inputs, outputs, types and strides; each family chooses among its nodes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Set
from dataclasses import replace
from typing import Literal

from evt.ir import Const, Extent, Index, Input, Interleave, Load, Output, Pick, Reduce, ReduceBlocks
from evt.ir.columns import columns_of
from evt.ir.dtype import F32, F64, I32, I64, DType, accumulator
from evt.ir.node import base, divisor, index_of
from evt.ir.origin import quoted
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
    FirstColumns,
    Gather,
    HalfLoad,
    HalfStore,
    MaskLoad,
    MaskStore,
    Node,
    Number,
    PairInterleave,
    PairMember,
    PlaceKeys,
    Places,
    RandomNumbers,
    Reduction,
    ResultShape,
    RowBroadcast,
    RowOrScalarBroadcast,
    ScalarBroadcast,
    Scatter,
    Single,
    SourceFetch,
    Stride,
    Varies,
    VectorStore,
)
from evt.plan.epilogue.regions import identity, make_region, single_function
from evt.plan.epilogue.visitors import WRITES, Graph, Visitor
from evt.plan.fields import Field, GroupFields
from evt.plan.kernels.draft import Draft
from evt.plan.kernels.memory import Budget
from evt.plan.kernels.results import Results
from evt.plan.plan import Visitors
from evt.plan.signature import LayoutClass


class Nodes(ABC):
    """Makes the nodes of a kernel."""

    def __init__(self, draft: Draft) -> None:
        self.draft = draft
        self.results = Results(draft)

    @abstractmethod
    def vector(self, kind: str, value: Input) -> Node:
        """Return the broadcast of a ``row`` or a ``column``."""

    @abstractmethod
    def flexible(self, kind: str, value: Input) -> Node:
        """Return the broadcast of a vector or a single value, as the call's stride of 1 or 0 decides."""

    @abstractmethod
    def access(self, kind: str, name: str, layout: LayoutClass) -> Access:
        """Return how a ``tile`` is loaded, or ``store``d."""

    def output(self, visitor: Visitor, graph: Graph) -> DType | Destination:
        """Return the type that a compute node hands on."""
        return self.draft.dag.types[visitor.value].dtype.compute

    def is_stock(self, output: DType | Destination) -> bool:
        """Return whether nodes of CUTLASS may compute a type: they convert to integers by wrapping."""
        return output == F32 or (output is Destination.D and self.draft.dtype(self.draft.primary).is_float)

    def make(self, graph: Graph) -> Visitors:
        """Return the nodes of a graph, in its order, and what is made of its reductions."""
        nodes: list[Node] = []
        built: dict[tuple[str, int], Node] = {}
        for index, visitor in enumerate(graph.visitors):
            key = (visitor.kind, visitor.value)
            if visitor.kind in ("acc", "scalar", "source", "size") and key in built:
                node = built[key]  # a tree may hold it several times; its arguments exist once
            else:
                node = built[key] = self.node(visitor, index, graph)
            nodes.append(replace(node, operands=visitor.operands, origin=self.origin(visitor)))
        return Visitors(tuple(nodes), graph.tree, tuple(self.results.stored))

    def origin(self, visitor: Visitor) -> str:
        """Return where the value of a visitor comes from: for a store, the statement that it is of."""
        dag = self.draft.dag
        value = visitor.value if visitor.reduction is None else visitor.reduction
        written = dag.stores[visitor.name] if visitor.kind in WRITES and visitor.reduction is None else value
        return quoted(dag.origins[written], dag.source)

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
                if value.flexible:
                    return self.flexible(visitor.kind, value)
                strided = draft.signature[value.name].contiguous is None
                return self.strided(visitor.kind, value) if strided else self.vector(visitor.kind, value)
            case "tile" | "store":
                return self.tile(draft.value(visitor.name))
            case "gather" | "scatter":
                return self.indexed(draft.value(visitor.name))
            case "compute":
                return self.compute(visitor, graph, f"compute_{index}")
            case "index":
                assert isinstance(op, Index)
                axis: Literal["row", "column", "batch"] = "row" if op.mode == draft.rows else "column"
                return Coordinate("batch" if op.mode == "l" else axis, name=f"index_{op.mode}")
            case "random":
                seed, offset = (self.random_argument(operand) for operand in draft.dag.arguments(visitor.value))
                wide = I64 in (seed.dtype, offset.dtype)
                return RandomNumbers(seed, offset, draft.transposed, wide, name=f"random_{index}")
            case "size":
                assert isinstance(op, Extent)
                return ScalarBroadcast(draft.size(op.mode), (0, 0, 0), name=f"size_{op.mode}")
            case "once":
                mode = columns_of(draft.dag.types[visitor.value])
                apart = draft.pair_distance(visitor.value)
                return FirstColumns(divisor(mode) * apart, apart, name=f"first_{index}")
            case "keys":
                assert visitor.reduction is not None
                reduce = draft.dag[visitor.reduction]
                assert isinstance(reduce, Reduce)
                along: Literal["row", "column"] = "row" if reduce.modes == (draft.rows,) else "column"
                return PlaceKeys(along, reduce.kind == "argmin", name=f"keys_{index}")
            case "pick":
                assert isinstance(op, Pick)
                return PairMember(op.member, op.block, name=f"pair_{index}")
            case "interleave":
                assert isinstance(op, Interleave)
                dtype = draft.dag.types[visitor.value].dtype.compute
                return PairInterleave(op.block, dtype, name=f"interleave_{index}")
            case "fold":
                assert isinstance(op, ReduceBlocks)
                width = divisor(columns_of(draft.dag.types[visitor.value]))
                return BlockReduce(op.kind, width, name=f"block_{index}")
            case "mask" | "half" | "store_mask" | "store_half" | "store_block":
                return self.packed(visitor)
            case "store_vector":
                return self.vector_store(draft.dag.output[visitor.name])
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

    def strided(self, kind: str, value: Input) -> Node:
        """Return the load of a vector whose stride is not 1, which no broadcast steps by: that of a tile."""
        draft, name = self.draft, value.name
        stride = draft.fields.stride(name, draft.columns if kind == "row" else draft.rows)
        rows: Stride = 0 if kind == "row" else stride
        columns: Stride = stride if kind == "row" else 0
        strides = draft.with_batch(name, rows, columns, "l" in value.modes)
        access = self.access("tile", name, draft.signature[name])
        return AuxLoad(draft.dtype(name), draft.fields.pointer(name), strides, 1, access, name=draft.names[name])

    def indexed(self, value: Input | Output) -> Node:
        """Return a load whose rows or columns an index names, or such a store."""
        draft, name = self.draft, value.name
        indices = {base(mode): index_of(mode) for mode in value.modes}
        layout = draft.signature[name]

        def places(mode: str) -> Places | None:
            index = indices.get(mode)
            if not index:
                return None
            batch = draft.batch(index, "l" in draft.dag.input[index].modes)
            return Places(draft.dtype(index), draft.fields.pointer(index), batch, draft.fields.extent_of(name, mode))

        def stride(mode: str) -> Stride:
            if mode not in indices:
                return 0
            return 1 if layout.contiguous == mode else draft.fields.stride(name, mode)

        strided = layout.batch == "strided" and (value.is_tile or "l" in value.modes)
        strides = draft.with_batch(name, stride(draft.rows), stride(draft.columns), strided)
        made = Gather if isinstance(value, Input) else Scatter
        return made(
            draft.dtype(name),
            draft.fields.pointer(name),
            strides,
            places(draft.rows),
            places(draft.columns),
            name=draft.names[name],
        )

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
                width = divisor(columns_of(draft.dag.types[visitor.value]))
                return BlockStore(pointer, row, batch, dtype, width, name=name)
            case "half":
                return HalfLoad(pointer, row, batch, dtype, draft.pair_distance(visitor.value), name=name)
            case _:
                return HalfStore(pointer, row, batch, dtype, draft.pair_distance(visitor.value), name=name)

    def random_argument(self, value: int) -> Single | Number:
        """Return the seed or the offset of random numbers."""
        op = self.draft.dag[value]
        if isinstance(op, Const):
            return Number(I32, op.value)
        assert isinstance(op, Load)
        return self.draft.single(self.draft.dag.input[op.name])

    def shape(self, kept: Set[str]) -> ResultShape:
        """Return what has values along these modes only."""
        return ResultShape.SCALAR if not kept else ResultShape.COLUMN if kept == {self.draft.rows} else ResultShape.ROW

    def vector_store(self, output: Output) -> Node:
        draft, name = self.draft, output.name
        kept = set(output.modes) - {"l"}
        shape, pointer = self.shape(kept), draft.fields.pointer(name)
        stride: Field | Literal[1] = draft.fields.stride(name, kept.pop()) if kept else 1
        batch = draft.batch(name, "l" in output.memory_modes)
        return VectorStore(shape, draft.dtype(name), pointer, stride, batch, name=draft.names[name])

    def reduce(self, visitor: Visitor, index: int) -> Node:
        draft, node = self.draft, visitor.reduction
        assert node is not None
        op, dtype = draft.dag[node], draft.dag.types[node].dtype
        assert isinstance(op, Reduce)
        kept = {"m", "n"} - set(op.modes)
        shape = self.shape(kept)
        name = f"reduction_{index}"
        atomic = self.results.add(node, name)
        extent: Field | Literal[1] = draft.fields.size(kept.pop()) if kept else 1
        return Reduction(shape, op.kind, dtype, extent, "l" in op.modes, atomic, name=name)

    def compute(self, visitor: Visitor, graph: Graph, name: str) -> Node:
        draft = self.draft
        values = [graph.visitors[operand].value for operand in visitor.operands]
        output = self.output(visitor, graph)
        plain = self.is_stock(output)
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
            op = draft.dag[source.value]
            parameters[source.value] = f"size_{op.mode}" if isinstance(op, Extent) else label
        region = make_region(draft.dag, draft.next_region(), visitor.value, parameters)
        return Apply(region, output, name=name)


class Nodes2x(Nodes):
    """Nodes of CUTLASS 2.x, whose accesses cover a given number of elements of a row."""

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
        # The stock node reads whole accesses: past the end of a vector, and never unaligned ones.
        return RowOrScalarBroadcast(dtype, pointer, 1, draft.batch(value.name, "l" in value.modes), name=name)

    def access(self, kind: str, name: str, layout: LayoutClass) -> Access:
        whole = layout.contiguous == self.draft.columns and is_aligned(self.draft, name, layout, self.width)
        return Access.TILE if whole else Access.STRIDED


class Nodes3x(Nodes):
    """Nodes of CUTLASS 3.x, some of whose tiles use the remaining shared memory.

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

    def access(self, kind: str, name: str, layout: LayoutClass) -> Access:
        if kind == "store" and not self.tile_stores:
            return Access.DIRECT
        return Access.TILE if self.budget.takes(kind, name, layout) else Access.DIRECT

    def output(self, visitor: Visitor, graph: Graph) -> DType | Destination:
        root = self.draft.stores_tile and visitor is graph.visitors[-1]
        return Destination.D if root else super().output(visitor, graph)


class NodesGrouped(Nodes3x):
    """Nodes of a grouped kernel: tiles are moved directly; a flexible vector is a single value in all groups or
    none.
    """

    def varies(self, kind: str, value: Input) -> Stride:
        assert isinstance(self.draft.fields, GroupFields)
        return Varies(self.draft.fields.varies(value.name))

    def access(self, kind: str, name: str, layout: LayoutClass) -> Access:
        return Access.DIRECT


def is_aligned(draft: Draft, name: str, layout: LayoutClass, width: int) -> bool:
    """Return whether accesses of ``width`` elements are aligned; one wider than 16 bytes is several."""
    size = draft.problem.tensor_bytes(name)
    return min(16, width * size) <= layout.alignment * size
