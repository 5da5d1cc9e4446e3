"""Planning for convolutions on sm90 whose channels are few, or no whole vectors: over copies with padded channels.

Of few channels a row of the filter is one tap. An output pixel's window of S pixels and C channels lies in one piece of
the copy, as S * C channels of one pixel, and overlapping windows are pixels whose stride is smaller than their
channels. So the sums are of R taps of S * C channels, not of R * S taps of C, each padded to the depth of a tile.
"""

from __future__ import annotations

from dataclasses import replace

from evt.ir import Operand
from evt.plan.kernels.convolution_3x import PlannerConv3x
from evt.plan.kernels.padding import PaddedCopy
from evt.plan.plan import ConvolutionPlan, Node, OperandPlan, Plan
from evt.plan.signature import Layout, bytes_of


class PlannerConvPadded3x(PlannerConv3x):
    """The 3.x planner of convolutions over copies of the input and the filters."""

    def plan(self) -> Plan:
        parts, pads = self.padding()  # whose sizes are fields of the plan
        made = super().plan()
        return replace(made, parts=(*parts, *made.parts), before=(*pads, *made.before))

    @property
    def window_channels(self) -> int:
        """The channels of a copy whose windows are pixels, or 0."""
        return self.shape.row_channels

    @property
    def tma_vector(self) -> int:
        """What TMA is aligned to, in elements."""
        return 16 // self.problem.operand_bytes

    def copies(self) -> dict[str, PaddedCopy]:
        channels = self.window_channels
        if not channels:
            return self.plain_copies(self.tma_vector)
        plain = self.plain_copies(min(channels, self.tma_vector), str(channels))
        before, after = (self.add_field(name, "size", "", name) for name in ("pad_width", "upper_pad_width"))
        pixels = max(1, self.tma_vector // channels)  # of a row are whole vectors

        def with_rows(copy: PaddedCopy, width: str, before: str) -> PaddedCopy:
            return replace(copy, extents=(*copy.extents[:-1], f"evt::rounded_up<{pixels}>({width})"), before=before)

        a, b = plain["A"], plain["B"]
        return {
            "A": with_rows(a, f"{before} + {a.extents[-1]} + {after}", before),
            "B": with_rows(b, b.extents[-1], "0"),
        }

    def operand(self, operand: Operand, layout: Layout, outer: str) -> OperandPlan:
        return self.copied_operand(operand.name, 16 // bytes_of(operand.dtype), stride="")

    def convolution(self) -> ConvolutionPlan:
        made = super().convolution()
        return replace(made, kernel="evt::convolution::WindowKernel") if self.window_channels else made

    def lists(self) -> list[tuple[str, list[str]]]:
        copies = self.copies()
        given = dict(super().lists())
        activation, filters = "extents of the activation", "extents of the filters"
        for name, what in (("A", activation), ("B", filters)):
            given[what] = [*given[what][:-1], f"static_cast<int>({copies[name].channels})"]
            given[what.replace("extents", "strides")] = [*copies[name].strides, "1"]
        if not self.window_channels:
            return list(given.items())
        window = f"{self.window_channels} * {self.extent('filter_width')}"
        step = f"{self.window_channels} * {self.add_field('stride_width', 'size', '', 'stride_width')}"
        *image, _ = copies["A"].strides
        *filter_, _ = copies["B"].strides
        given[activation] = [self.extent("images"), self.extent("height"), self.extent("output_width"), window]
        given[activation.replace("extents", "strides")] = [*image, step, "1"]
        given[filters] = [self.extent("filters"), self.extent("filter_height"), "1", window]
        given[filters.replace("extents", "strides")] = [*filter_, filter_[-1], "1"]
        given |= {what: [given[what][0], "0"] for what in ("padding before", "padding after")}
        given |= {what: [given[what][0], "1"] for what in ("stride", "dilation")}
        return list(given.items())

    def headers(self, nodes: tuple[Node, ...]) -> list[str]:
        return [*super().headers(nodes), "pad.hpp"]
