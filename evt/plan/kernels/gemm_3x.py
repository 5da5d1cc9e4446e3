"""Planning for CUTLASS 3.x: TMA, a warp-specialised kernel; on sm90 WGMMA, and persistent."""

from __future__ import annotations

from typing import ClassVar

from evt.ir import Input
from evt.plan.epilogue.functor import scalar_type
from evt.plan.epilogue.visitors import Graph, Visitor, build_visitors, is_collective, is_reduced
from evt.plan.kernels.family import Planner, own_headers
from evt.plan.plan import Node, Plan, Tensor
from evt.plan.signature import Layout
from evt.plan.target import Family

#: Fewest main-loop stages that a kernel with auxiliary tensors in shared memory keeps.
_MIN_STAGES = 3
#: Shared memory that pipelines' barriers and the tile scheduler take, generously.
_BARRIERS = 2048
#: Our nodes that know the tiles in which the kernel visits its output.
_OF_TILES = frozenset({"RowReduction", "ColReduction", "ScalarReduction"})


class Planner3x(Planner):
    family: ClassVar[Family] = "3x"
    template = "gemm_3x"

    def plan(self) -> Plan:
        self.transposed = self.is_transposed()
        a, b = self.operands()
        self.stored = is_collective(self.dag.output["D"]) and not is_reduced(self.dag, "D")
        source_name, graph = self.place_source()
        source = destination = Tensor("void", "cutlass::layout::RowMajor", 8)
        if source_name is not None:
            source = self.collective_tensor(source_name, "C", "const*")
        epilogue_element = "cutlass::half_t"  # cuts the tiles of an epilogue whose D is stored by a visitor
        if self.stored:
            destination = self.collective_tensor("D", "D", "*")
            epilogue_element = destination.element
        nodes = self.nodes(graph)
        self.add_field("swizzle", "size", "", "swizzle")
        self.add_field("raster", "size", "", "raster")
        used = self.block_memory() - self.budget
        return self.finish((a, b), source, destination, graph, nodes, epilogue_element, used, 0)

    def is_transposed(self) -> bool:
        """Whether D' = B' A' is computed."""
        return self.problem.swaps_operands

    def place_source(self) -> tuple[str | None, Graph]:
        """The tile input that the collective loads as C, and the visitors beside it; sets what memory is left.

        It is the first of :meth:`sources` whose tiles fit in shared memory; without one, visitors load every input.
        """
        implicit = "D" if self.stored else None
        for source in (*(self.sources() if self.stored else ()), None):
            graph = build_visitors(self.dag, source=source, implicit_store=implicit, rows=self.rows, fused=self.fused)
            self.budget = self.auxiliary_budget(source, graph)
            if self.budget >= 0:
                break
        return source, graph

    def sources(self) -> list[str]:
        """The tile inputs that the collective can load as C, the cheapest first: C shares shared memory with D.

        Best is one with D's width and major order; then D's width; then the first. It must be fit for TMA and
        have its own data in every batch.
        """
        destination = self.dag.output["D"]
        layout = self.signature["D"]
        candidates = [
            value
            for value in self.dag.inputs
            if is_collective(value)
            and self.may_be_source(value)
            and self.is_tma(value.name, self.signature[value.name])
        ]
        assert destination.dtype is not None
        bits = destination.dtype.bits

        def cost(value: Input) -> tuple[bool, bool, int]:
            assert value.dtype is not None
            same_order = self.signature[value.name].contiguous == layout.contiguous
            return value.dtype.bits != bits, not same_order, self.dag.inputs.index(value)

        return [value.name for value in sorted(candidates, key=cost)]

    def may_be_source(self, value: Input) -> bool:
        """Whether it has its own data in every batch, as C has."""
        return self.signature[value.name].batch == "strided"

    def is_tma(self, name: str, layout: Layout) -> bool:
        return layout.contiguous is not None and layout.alignment * self.problem.tensor_bytes(name) >= 16

    def collective_tensor(self, name: str, role: str, pointer_type: str) -> Tensor:
        """The tensor that the collective itself loads as C or stores as D."""
        layout, element = self.signature[name], self.element(name)
        pointer = self.add_field(self.names[name], "pointer", name, "pointer")
        _, stride = self.tensor_stride(name, layout)
        row_major = layout.contiguous == self.columns
        tag = "cutlass::layout::RowMajor" if row_major else "cutlass::layout::ColumnMajor"
        arguments = (
            (f"ptr_{role}", f"static_cast<{element} {pointer_type}>(const_cast<void*>({pointer}))"),
            (f"d{role}", stride),
        )
        return Tensor(element, tag, layout.alignment, arguments)

    # Shared memory: auxiliary tiles go through TMA while the main loop keeps its stages, then directly.

    def subtile_bytes(self, name: str) -> int:
        m, n = self.config.epilogue_tile
        return m * n * self.problem.tensor_bytes(name)

    def mainloop_stage(self) -> int:
        m, n, k = self.config.tile
        return (m + n) * k * self.problem.operand_bytes

    def mainloop_memory(self) -> int:
        """What of a thread block's memory the epilogue leaves to the main loop, at least."""
        return self.mainloop_stage() * _MIN_STAGES

    def auxiliary_budget(self, source: str | None, graph: Graph) -> int:
        """Bytes that are left for auxiliary tiles."""
        config = self.config
        used = _BARRIERS + self.mainloop_memory()
        m, n = config.epilogue_tile
        stored = config.stages_d * (self.subtile_bytes("D") if self.stored else 2 * m * n)
        loaded = config.stages_c * self.subtile_bytes(source) if source else 0
        shares = config.reuse_c and source and self.problem.tensor_bytes(source) == self.problem.tensor_bytes("D")
        used += max(stored, loaded) if shares else stored + loaded
        used += self.reduction_memory(graph, warps=8)  # at most
        for visitor in graph.visitors:
            if visitor.kind == "row":
                used += config.tile[1] * self.problem.tensor_bytes(visitor.name) + 128
        return self.block_memory() - used

    def tile_kind(self, kind: str, name: str, layout: Layout) -> str:
        stages = self.config.stages_c if kind == "tile" else self.config.stages_d
        needed = stages * self.subtile_bytes(name)
        if not self.is_tma(name, layout) or needed > self.budget:
            return f"{kind}_direct"
        self.budget -= needed
        return kind

    def own(self, name: str, template: str, *parameters: str, arguments: tuple[tuple[str, str], ...] = ()) -> Node:
        if template in _OF_TILES:
            parameters = (*parameters, "TileShape", "EpilogueTile")
        return Node("own", name, functor=f"evt::fusion::{template}", parameters=parameters, arguments=arguments)

    def flexible(self, kind: str, value: Input) -> Node:
        name, element = self.names[value.name], self.element(value.name)
        number, pointer = self.scalar_arguments(value, element)
        mode = self.columns if kind == "row" else self.rows
        varies = self.add_field(f"stride_{mode}_of_{name}", "size", value.name, mode)
        types, values = ["cute::_0", "bool"], ["cute::_0{}", f"{varies} != 0"]
        if kind == "column":
            types, values = types[::-1], values[::-1]
        stride_type, stride = self.with_batch(value.name, "l" in value.modes, types, values)
        member = "row" if kind == "row" else "col"
        arguments = ((f"ptr_{member}", pointer), ("null_default", number), (f"d{member.capitalize()}", stride))
        return Node(kind, name, element, stride_type, output=self.computed(value), arguments=arguments)

    def scalar_stride_type(self, stride_type: str) -> str:
        return stride_type

    def scalar_stride(self, stride: str) -> tuple[str, str]:
        return "dScalar[0]", stride

    def compute_output(self, visitor: Visitor, graph: Graph) -> str:
        root = self.stored and visitor is graph.visitors[-1]
        return "ElementD" if root else scalar_type(self.dag, visitor.value)

    def saturates(self, visitor: Visitor, graph: Graph) -> bool:
        dtype = self.dag.output["D"].dtype
        assert dtype is not None
        return self.stored and visitor is graph.visitors[-1] and not dtype.is_float

    def part_count(self, node: str) -> str:
        return f"{node}::parts(problem_shape(arguments))"

    def arch_tag(self) -> str:
        return "cutlass::arch::Sm90"

    def headers(self, nodes: tuple[Node, ...]) -> list[str]:
        return ["restage.hpp", *own_headers("3x", nodes)]
