"""Planning for CUTLASS 2.x: a multistage tensor-op kernel whose visitors load and store everything."""

from __future__ import annotations

from typing import ClassVar, Literal

from evt.plan.family import Planner
from evt.plan.plan import Node, Plan, Tensor
from evt.plan.signature import Layout
from evt.plan.visitors import Graph, Visitor, build_visitors


class Planner2x(Planner):
    family: ClassVar[Literal["2x", "3x"]] = "2x"

    def plan(self) -> Plan:
        # Visitors store along rows only, so a column-major D is computed as the transposed problem D' = B' A'.
        self.transposed = self.signature["D"].contiguous == "m"
        operands = self.operands()
        graph = build_visitors(self.dag, source=None, implicit_store=None, rows=self.rows, fused=self.fused)
        nodes = self.nodes(graph)
        nothing = Tensor("void", "cutlass::layout::RowMajor", 1)
        destination = Tensor(self.element("D"), "cutlass::layout::RowMajor", self.access())
        m, n, k = self.config.tile
        shared = self.config.stages * (m + n) * k * self.problem.operand_bytes
        return self.finish(operands, nothing, destination, graph, nodes, shared, self.access())

    def access(self) -> int:
        """Elements per access of the epilogue: what every row-contiguous tensor's alignment allows."""
        width = 16 // self.problem.tensor_bytes("D")
        for name, layout in self.signature.tensors:
            if layout.contiguous == self.columns:
                size = self.problem.tensor_bytes(name)
                while width > 1 and min(16, width * size) > layout.alignment * size:
                    width //= 2
                if name == "D":
                    width = min(width, layout.alignment)
        return width

    def tile_kind(self, kind: str, name: str, layout: Layout) -> str:
        return kind if layout.contiguous == self.columns else f"{kind}_strided"

    def scalar_stride_type(self, stride_type: str) -> str:
        return stride_type.replace("int64_t", "int")  # VisitorScalarBroadcast knows only this

    def scalar_stride(self, stride: str) -> tuple[str, str]:
        return "dScalar", stride.replace("arguments.", "(int)arguments.")

    def compute_output(self, visitor: Visitor, graph: Graph) -> str:
        return "float"

    def headers(self, nodes: tuple[Node, ...]) -> list[str]:
        return ["visitor_strided.hpp"] if any(node.kind.endswith("_strided") for node in nodes) else []
