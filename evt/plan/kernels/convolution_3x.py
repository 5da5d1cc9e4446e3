"""Planning for convolutions on sm90: the implicit-GEMM collectives of CUTLASS 3.x (TMA im2col, WGMMA)."""

from __future__ import annotations

from dataclasses import replace

from evt.ir import Input, Operand
from evt.plan.configurations.config import ConfigConvolution
from evt.plan.kernels.family import operand_element
from evt.plan.kernels.gemm_3x import Planner3x
from evt.plan.kernels.implicit_gemm import ImplicitGemm
from evt.plan.plan import ConvolutionPlan, Node, OperandPlan, Plan, Tensor
from evt.plan.signature import Layout

#: Shared memory of a multiprocessor of sm90, and what of it each thread block takes besides its own.
_MULTIPROCESSOR_BYTES, _RESERVED_BYTES = 228 * 1024, 1024


class PlannerConv3x(ImplicitGemm, Planner3x):
    """The 3.x planner over an implicit GEMM, whose epilogue has one batch, known when it is compiled."""

    template = "conv_3x"

    def plan(self) -> Plan:
        convolution = self.convolution()  # whose sizes are fields of the plan
        made = super().plan()
        shared_memory = max(made.shared_memory, self.block_memory())  # of which the main loop takes what is left
        return replace(made, convolution=convolution, shared_memory=shared_memory)

    def with_batch(self, name: str, strided: bool, types: list[str], values: list[str]) -> tuple[str, str]:
        return super().with_batch(name, False, types, values)

    def operand(self, operand: Operand, layout: Layout, outer: str) -> OperandPlan:
        return OperandPlan(
            operand_element(operand.dtype),
            self.tensor_layout,
            layout.alignment,
            self.add_field(operand.name, "pointer", operand.name, "pointer"),
            stride="",
            batch_stride="",
            leading="",
        )

    def collective_tensor(self, name: str, role: str, pointer_type: str) -> Tensor:
        tensor = super().collective_tensor(name, role, pointer_type)
        pitch = self.pitch(name)
        steps = ["1", *(f"arguments.{extent}" for extent in reversed(self.pixels()))]
        strides = [" * ".join((pitch, *steps[1 : count + 1])) for count in range(len(steps))]
        stride = f"cute::make_stride(cute::make_stride({', '.join(strides)}), cute::_1{{}}, cute::_0{{}})"
        pointer = tensor.arguments[0]
        return replace(tensor, layout=self.tensor_layout, arguments=(pointer, (f"d{role}", stride)))

    def pitch(self, name: str) -> str:
        """The pitch of a tile's rows."""
        return self.add_field(f"stride_m_of_{self.names[name]}", "size", name, "m")

    def pixels(self) -> list[str]:
        """The extents of D's pixels, the images left out."""
        part = "output_" if self.shape.operator == "fprop" else ""
        return [f"{part}{name}" for name in self.spatial]

    def tile_kind(self, kind: str, name: str, layout: Layout) -> str:
        # TMA stores of other tiles than D do not compile with the nested shape of a convolution's problem.
        return f"{kind}_direct" if kind == "store" else super().tile_kind(kind, name, layout)

    def convolution(self) -> ConvolutionPlan:
        """The collectives' operator and the sizes with which the problem is made."""
        operator = f"cutlass::conv::Operator::k{self.shape.operator.capitalize()}"
        return ConvolutionPlan(
            operator=operator,
            kernel="evt::convolution::Sm90Kernel",
            headers=("cutlass/conv/kernel/conv_universal.hpp", "cutlass/conv/collective/collective_builder.hpp"),
            problem=f"cutlass::conv::ConvProblemShape<{operator}, {self.shape.rank}>",
            extents=tuple((what, f"{{{', '.join(values)}}}") for what, values in self.lists()),
            options=(),
        )

    def lists(self) -> list[tuple[str, list[str]]]:
        """The lists of which CUTLASS makes the problem, outermost dimension first, and what each is."""
        fprop = self.shape.operator == "fprop"
        activation = ["images", *self.spatial, "channels"]
        filters = ["filters", *(f"filter_{name}" for name in self.spatial), "channels"]
        packed = [
            " * ".join(["std::int64_t{1}", *(self.extent(n) for n in activation[i + 1 :])])
            for i in range(len(activation))
        ]
        output = self.output_strides()
        of_a = [*self.strides("A"), "1"]
        return [
            ("extents of the activation", [self.extent(name) for name in activation]),
            ("strides of the activation", of_a if fprop else packed),
            ("extents of the filters", [self.extent(name) for name in filters]),
            ("strides of the filters", [*self.strides("B"), "1"]),
            ("strides of the output", output if fprop else of_a),
            *(
                (what, [self.extent(f"{part}_{name}") for name in self.spatial])
                for what, part in (
                    ("padding before", "pad"),
                    ("padding after", "upper_pad"),
                    ("stride", "stride"),
                    ("dilation", "dilation"),
                )
            ),
        ]

    def output_strides(self) -> list[str]:
        """Those of a packed output of fprop."""
        extents = ["images", *(f"output_{name}" for name in self.spatial), "filters"]
        return [
            " * ".join(["std::int64_t{1}", *(self.extent(n) for n in extents[i + 1 :])]) for i in range(len(extents))
        ]

    def mainloop_memory(self) -> int:
        return super().mainloop_memory() if self.configuration.consumers == 2 else 0  # which lies under the epilogue's

    def block_memory(self) -> int:
        """The part of a multiprocessor's memory, as in convolution_3x.hpp."""
        return (_MULTIPROCESSOR_BYTES // self.configuration.min_blocks) - _RESERVED_BYTES

    @property
    def configuration(self) -> ConfigConvolution:
        assert isinstance(self.config, ConfigConvolution)
        return self.config

    def may_be_source(self, value: Input) -> bool:
        return self.signature[value.name].contiguous == "n"

    def headers(self, nodes: tuple[Node, ...]) -> list[str]:
        return ["convolution_3x.hpp", *super().headers(nodes)]
