"""Planning for CUTLASS 2.x: a multistage tensor-op kernel whose visitors load and store everything."""

from __future__ import annotations

from typing import ClassVar, Literal

from evt.ir import Input, Pick
from evt.ir.dtype import I32, accumulator
from evt.plan.epilogue.functor import scalar_type
from evt.plan.epilogue.visitors import Graph, Visitor, build_visitors, has_fixed_columns, is_collective, is_reduced
from evt.plan.kernels.family import Planner, own_headers
from evt.plan.plan import Node, Plan, Tensor
from evt.plan.signature import Layout


class Planner2x(Planner):
    family: ClassVar[Literal["2x", "3x"]] = "2x"
    template = "gemm_2x"

    def plan(self) -> Plan:
        tiled = is_collective(self.dag.output["D"]) and not is_reduced(self.dag, "D")
        self.transposed = tiled and self.is_transposed()
        operands = self.operands()
        graph = build_visitors(self.dag, source=None, implicit_store=None, rows=self.rows, fused=self.fused)
        nodes = self.nodes(graph)
        nothing = Tensor("void", "cutlass::layout::RowMajor", 1)
        # Cuts the tiles only: visitors store in any type. CUTLASS has no thread map that stages i32 for narrower ones.
        epilogue_element = self.element("D") if tiled else "cutlass::half_t"
        if accumulator(self.dag.operands[0].dtype) == I32:
            epilogue_element = "int32_t"
        elif tiled and (self.problem.tensor_bytes("D") == 1 or not self.pairs_meet()):
            epilogue_element = "float"
        destination = Tensor(epilogue_element, "cutlass::layout::RowMajor", self.access())
        m, n, k = self.config.tile
        mainloop = self.config.stages * (m + n) * k * self.problem.operand_bytes
        warps = m // self.config.warp[0] * (n // self.config.warp[1])
        shared = max(mainloop, self.reduction_memory(graph, warps))  # which share it
        return self.finish(operands, nothing, destination, graph, nodes, epilogue_element, shared, self.access())

    def is_transposed(self) -> bool:
        """Whether D' = B' A' is computed: visitors store along rows only, and D is column-major."""
        return self.signature["D"].contiguous == "m" and not has_fixed_columns(self.dag)

    def access(self) -> int:
        """Elements per access of the epilogue: what every row-contiguous tensor's alignment allows.

        A warp covers a row with 32 accesses, and members of a pair meet within them: pairs far apart need wide ones.
        """
        least = max(1, 2 * self.pair_block // 32)
        width = min(8, 16 // self.problem.tensor_bytes("D")) if is_collective(self.dag.output["D"]) else 8
        for name, layout in self.signature.tensors:
            value = self.dag.input.get(name) or self.dag.output[name]
            if layout.contiguous == self.columns and is_collective(value):
                while width > least and not self.is_aligned(name, layout, width):
                    width //= 2
                if name == "D":
                    width = min(width, max(least, layout.alignment))
        return width

    def is_aligned(self, name: str, layout: Layout, width: int) -> bool:
        """Whether accesses of so many elements of a tensor are aligned; what is wider than 16 bytes takes several."""
        size = self.problem.tensor_bytes(name)
        return min(16, width * size) <= layout.alignment * size

    @property
    def pair_block(self) -> int:
        """How many columns the members of a pair are apart, at most; 0 without pairs."""
        ops = map(self.dag.__getitem__, range(len(self.dag)))
        return max((op.block for op in ops if isinstance(op, Pick)), default=0)

    def pairs_meet(self) -> bool:
        """Whether pairs lie within the 256 bytes of D's type that CUTLASS's thread map gives to a row of a warp."""
        return 2 * self.pair_block * self.problem.tensor_bytes("D") <= 256

    def own(self, name: str, template: str, *parameters: str, arguments: tuple[tuple[str, str], ...] = ()) -> Node:
        functor = f"evt::threadblock::{template}"
        return Node("own", name, functor=functor, parameters=("ThreadMap", *parameters), arguments=arguments)

    def flexible(self, kind: str, value: Input) -> Node:
        name, element = self.names[value.name], self.element(value.name)
        number, pointer = self.scalar_arguments(value, element)
        mode = self.columns if kind == "row" else self.rows
        stride = self.add_field(f"stride_{mode}_of_{name}", "size", value.name, mode)
        arguments = (("ptr", pointer), ("value", number), ("stride", stride), ("stride_l", self.batch_stride(value)))
        return self.own(name, f"VectorOrScalar{'Row' if kind == 'row' else 'Col'}", element, arguments=arguments)

    def vector(self, kind: str, value: Input) -> Node:
        if kind == "column":
            return super().vector(kind, value)
        # The stock node reads whole accesses: beyond the end of a vector, and none that is not aligned.
        name, element = self.names[value.name], self.element(value.name)
        pointer = self.add_field(name, "pointer", value.name, "pointer")
        typed = f"static_cast<{element} const*>({pointer})"
        arguments = (("ptr", typed), ("stride", "1"), ("stride_l", self.batch_stride(value)))
        return self.own(name, "VectorOrScalarRow", element, arguments=arguments)

    def batch_stride(self, value: Input) -> str:
        if "l" not in value.modes:
            return "0"
        return self.add_field(f"stride_l_of_{self.names[value.name]}", "size", value.name, "l")

    def tile_kind(self, kind: str, name: str, layout: Layout) -> str:
        direct = layout.contiguous == self.columns and self.is_aligned(name, layout, self.access())
        return kind if direct else f"{kind}_strided"

    def scalar_stride_type(self, stride_type: str) -> str:
        return stride_type.replace("int64_t", "int")  # VisitorScalarBroadcast knows only this

    def scalar_stride(self, stride: str) -> tuple[str, str]:
        return "dScalar", stride.replace("arguments.", "(int)arguments.")

    def compute_output(self, visitor: Visitor, graph: Graph) -> str:
        return scalar_type(self.dag, visitor.value)

    def part_count(self, node: str) -> str:
        return f"{node}::parts(arguments.{self.rows}, arguments.{self.columns})"

    def arch_tag(self) -> str:
        eight_bit_floats = self.dag.operands[0].dtype.is_float and self.problem.operand_bytes == 1
        return f"cutlass::arch::Sm{89 if eight_bit_floats else 80}"

    def math_operator(self) -> str:
        integers = not self.dag.operands[0].dtype.is_float
        return f"cutlass::arch::OpMultiplyAdd{'Saturate' if integers else ''}"  # the one that CUTLASS has for i8

    def headers(self, nodes: tuple[Node, ...]) -> list[str]:
        return own_headers("2x", nodes)
