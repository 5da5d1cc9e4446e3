"""Planning for convolutions of few channels on sm90: a row of the filter is one tap of a copy of the input.

The copy has its channels padded to some that TMA can step over, and zeros on both sides of its rows. An output pixel's
window of S pixels and C channels lies in one piece there, as S * C channels of one pixel: overlapping windows are
pixels whose stride is smaller than their channels. So the sums are of R taps of S * C channels, not of R * S taps of C,
which would be padded to the depth of a tile each.
"""

from __future__ import annotations

from dataclasses import replace

from evt.ir import Operand
from evt.plan.family_conv_3x import PlannerConv3x
from evt.plan.implicit_gemm import PaddedCopy
from evt.plan.plan import ConvolutionPlan, Node, OperandPlan, Plan
from evt.plan.signature import Layout, bytes_of


class PlannerConvFew3x(PlannerConv3x):
    """The 3.x planner of convolutions over copies of the input and the filters."""

    def plan(self) -> Plan:
        parts, pads = self.padding()  # whose sizes are fields of the plan
        made = super().plan()
        return replace(made, parts=(*parts, *made.parts), before=(*pads, *made.before))

    def copies(self) -> dict[str, PaddedCopy]:
        channels = self.shape.row_channels
        before, after = (self.add_field(name, "size", "", name) for name in ("pad_width", "upper_pad_width"))
        width = f"evt::whole_vectors<ElementA, {channels}>({before} + arguments.width + {after})"
        size = f"evt::whole_vectors<ElementB, {channels}>(arguments.filter_width)"
        return {
            "A": PaddedCopy(channels, "arguments.height", width, before),
            "B": PaddedCopy(channels, "arguments.filter_height", size),
        }

    def operand(self, operand: Operand, layout: Layout, outer: str) -> OperandPlan:
        return self.copied_operand(operand.name, 16 // bytes_of(operand.dtype), stride="")

    def convolution(self) -> ConvolutionPlan:
        return replace(super().convolution(), kernel="evt::convolution::WindowKernel")

    def lists(self) -> list[tuple[str, list[str]]]:
        channels = self.shape.row_channels
        (row_a, image), (row_b, filters) = (self.copies()[name].strides for name in ("A", "B"))
        window = f"{channels} * {self.extent('filter_width')}"
        step = f"{channels} * {self.add_field('stride_width', 'size', '', 'stride_width')}"

        def rows(of: str, width: str) -> list[str]:
            return [self.extent(f"{of}_height"), width]

        return [
            (
                "extents of the activation: windows of its rows",
                [self.extent("images"), self.extent("height"), self.extent("output_width"), window],
            ),
            ("strides of the activation: windows overlap", [image, row_a, step, "1"]),
            ("extents of the filters", [self.extent("filters"), self.extent("filter_height"), "1", window]),
            ("strides of the filters", [filters, row_b, row_b, "1"]),
            ("strides of the output", self.output_strides()),
            ("padding before", rows("pad", "0")),
            ("padding after", rows("upper_pad", "0")),
            ("stride", rows("stride", "1")),
            ("dilation", rows("dilation", "1")),
        ]

    def headers(self, nodes: tuple[Node, ...]) -> list[str]:
        return [*super().headers(nodes), "pad.hpp"]
