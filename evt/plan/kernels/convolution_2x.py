"""Planning for convolutions on CUTLASS 2.x: the implicit-GEMM main loop with the visitor epilogue, a kernel of ours."""

from __future__ import annotations

from dataclasses import replace

from evt.ir import Operand
from evt.plan.kernels.family import operand_element
from evt.plan.kernels.gemm_2x import Planner2x
from evt.plan.kernels.implicit_gemm import ImplicitGemm
from evt.plan.kernels.padding import PaddedCopy
from evt.plan.plan import ConvolutionPlan, Node, OperandPlan, Plan
from evt.plan.signature import Layout

_CONV = "cutlass::conv::"


class PlannerConv2x(ImplicitGemm, Planner2x):
    """The 2.x planner over an implicit GEMM."""

    template = "conv_2x"

    def plan(self) -> Plan:
        convolution, (parts, pads) = self.convolution(), self.padding()  # whose sizes are fields of the plan
        made = super().plan()
        return replace(made, convolution=convolution, parts=(*parts, *made.parts), before=(*pads, *made.before))

    @property
    def padded(self) -> int:
        """The vectors of the copies that are multiplied, or 0."""
        return self.problem.padded_vector

    def copies(self) -> dict[str, PaddedCopy]:
        few = str(self.padded) if self.problem.has_few_channels else ""
        return self.plain_copies(self.padded, few) if self.padded else {}

    def operand(self, operand: Operand, layout: Layout, outer: str) -> OperandPlan:
        copy = self.copies().get(operand.name)
        if copy is not None:
            steps = ", ".join(f"static_cast<int>({step})" for step in reversed(copy.strides))
            return self.copied_operand(operand.name, copy.vector, steps)
        strides = self.strides(operand.name)
        return OperandPlan(
            operand_element(operand.dtype),
            self.tensor_layout,
            layout.alignment,
            self.add_field(operand.name, "pointer", operand.name, "pointer"),
            ", ".join(f"static_cast<int>({stride})" for stride in reversed(strides)),
            batch_stride="",
            leading="",
        )

    def convolution(self) -> ConvolutionPlan:
        """The stock kernel whose main loop and epilogue are taken, and the sizes with which it is called."""
        shape, rank = self.shape, self.shape.rank
        operator = shape.operator.capitalize()
        group = "Group" if shape.group_filters else ""
        copies = self.copies()
        names = {"N": "images", "C": "channels", "K": "filters", "groups": "groups"}
        letters = ("dhw"[-rank:], "DHW"[-rank:], "TRS"[-rank:], "ZPQ"[-rank:])
        for name, letter, of_input, of_filter, of_output in zip(self.spatial, *letters, strict=True):
            names |= {of_input: name, of_filter: f"filter_{name}", of_output: f"output_{name}"}
            names |= {f"{part}_{letter}": f"{part}_{name}" for part in ("pad", "stride", "dilation")}
        return ConvolutionPlan(
            operator=f"{_CONV}Operator::k{operator}",
            kernel=f"{_CONV}kernel::DefaultConv{rank}d{group}{operator}",
            headers=(f"cutlass/conv/kernel/default_conv{rank}d_{'group_' if group else ''}{shape.operator}.h",),
            problem=f"{_CONV}Conv{rank}dProblemSize",
            extents=tuple(
                (member, f"static_cast<int>({copies['A'].channels})" if copies and member == "C" else self.extent(name))
                for member, name in names.items()
            ),
            options=self.kernel_options(),
        )

    def kernel_options(self) -> tuple[str, ...]:
        """The last template arguments of the stock kernel: groups, iterators, strides and alignments."""
        shape = self.shape
        groups = self.group_mode()
        options = [f"{_CONV}GroupMode::{groups}"] if groups else []
        options.append(f"{_CONV}IteratorAlgorithm::{self.iterators()}")
        options.append(f"{_CONV}StrideSupport::{self.stride_support()}")
        if shape.rank == 2:
            options += [str(self.padded or layout.alignment) for layout in (self.signature.a, self.signature.b)]
        return tuple(options)

    def stride_support(self) -> str:
        """CUTLASS's name of the strides that iterators take: of dgrad the convolution's, else those of D's pixels.

        A fprop of kUnity takes any stride; its output's pixels have one pitch.
        """
        return "kStrided" if self.shape.operator == "wgrad" else "kUnity"

    def group_mode(self) -> str:
        """How a tile of columns meets the groups: it lies in one, or has several whole ones."""
        if not self.shape.group_filters:
            return ""
        whole = self.shape.group_filters % self.config.tile[1] == 0
        return "kSingleGroup" if whole else "kMultipleGroup"

    def iterators(self) -> str:
        """CUTLASS's name of the algorithm by which taps are found."""
        if self.problem.has_few_channels:
            return "kFixedChannels"
        if self.shape.large_filter or self.group_mode() == "kMultipleGroup":
            return "kAnalytic"
        return "kOptimized"

    def headers(self, nodes: tuple[Node, ...]) -> list[str]:
        return ["convolution_2x.hpp", *super().headers(nodes), *["pad.hpp"] * bool(self.copies())]
