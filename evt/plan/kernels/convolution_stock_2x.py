"""Planning for convolutions with the stock epilogues of CUTLASS 2.x: its own kernels, main loop and epilogue."""

from __future__ import annotations

from evt.plan.kernels.convolution_2x import PlannerConv2x
from evt.plan.kernels.stock_2x import PlannerStock2x, header_of
from evt.plan.plan import Node, OutputPlan
from evt.plan.stock.operators import Fused

_CONV = "cutlass::conv::"


class PlannerConvStock2x(PlannerConv2x, PlannerStock2x):
    """The 2.x planner over an implicit GEMM, with an output operator."""

    template = "conv_2x_stock"

    def headers(self, nodes: tuple[Node, ...]) -> list[str]:
        return ["convolution_2x_stock.hpp", *["pad.hpp"] * bool(self.copies())]

    def access(self) -> int:
        """Elements per access; of a weight's gradient no more than divide the channels of one tap."""
        width = super().access()
        return min(width, self.signature.b.alignment) if self.shape.operator == "wgrad" else width

    @property
    def is_strided_dgrad(self) -> bool:
        """Whether taps meet pixels at some steps only."""
        return self.shape.operator == "dgrad" and not self.shape.unit_stride

    def stride_support(self) -> str:
        return "kStrided" if self.is_strided_dgrad else super().stride_support()

    def iterators(self) -> str:
        return "kAnalytic" if self.is_strided_dgrad and self.shape.rank == 3 else super().iterators()

    def make_output(self, operator: Fused) -> OutputPlan:
        stock = self.convolution()
        kernel, (header,) = stock.kernel, stock.headers
        if not operator.reads_source_only:
            kernel, header = f"{kernel}WithBroadcast", header.replace(".h", "_with_broadcast.h")
        permuted = self.is_strided_dgrad and self.shape.rank == 2
        return OutputPlan(
            kernel=kernel,
            headers=(header, "cutlass/device_kernel.h", header_of(operator)),
            swizzle=f"{_CONV}threadblock::StridedDgradIdentityThreadblockSwizzle<8>"
            if permuted
            else self.config.threadblock_swizzle,
            arguments=tuple(self.tensors(operator)),
        )

    def tensors(self, operator: Fused) -> list[tuple[str, str]]:
        """The kernel's arguments for the tensors of its epilogue, all of which have to be set."""
        arguments = [("ref_D", self.reference("D"))]
        arguments += [("ref_C", self.reference(source)) for source in operator.sources]
        if operator.reads_source_only:
            return arguments
        vector = self.typed_pointer(operator.vector) if operator.vector else "nullptr"
        stored = self.typed_pointer(operator.stored) if operator.stored else "nullptr"
        pitch = self.pitch(operator.stored) if operator.stored else "0"
        return [*arguments, ("ptr_Vector", vector), ("ldr", "0"), ("ptr_Tensor", stored), ("ldt", pitch)]

    def reference(self, name: str) -> str:
        """A tensor by the pitch of its rows, whichever of its strides CUTLASS takes that from."""
        value = self.dag.input.get(name) or self.dag.output[name]
        pitch = self.pitch(name) if value.is_tile else "0"
        strides = ", ".join([pitch] * (self.shape.rank + 1))
        return f"{{{self.typed_pointer(name)}, LayoutC(cutlass::make_Coord({strides}))}}"

    def pitch(self, name: str) -> str:
        return f"static_cast<int>({self.add_field(f'stride_m_of_{self.names[name]}', 'size', name, 'm')})"
