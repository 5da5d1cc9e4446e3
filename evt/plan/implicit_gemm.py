"""What the planners of convolutions share: the implicit GEMM's sizes and strides as fields of the call."""

from __future__ import annotations

from dataclasses import dataclass

from evt.ir.convolution import SPATIAL
from evt.plan.family import Planner, operand_element
from evt.plan.plan import Job, Jobs, OperandPlan, Parts
from evt.plan.signature import ConvolutionClass


@dataclass(frozen=True, slots=True)
class PaddedCopy:
    """A copy of an operand in the workspace, packed, with ``channels`` for each pixel, zeros behind its own.

    ``rows`` and ``pixels`` of a row are C++ expressions, as is how many pixels of zeros come ``before`` a row's own.
    """

    channels: int
    rows: str
    pixels: str
    before: str = "0"

    @property
    def strides(self) -> tuple[str, str]:
        """From one row to the next, and from one image or filter to the next."""
        row = f"{self.channels} * ({self.pixels})"
        return row, f"{row} * {self.rows}"


class ImplicitGemm(Planner):
    """A planner over the implicit GEMM of a convolution; the visitors do not know the difference from a GEMM."""

    def copies(self) -> dict[str, PaddedCopy]:
        """The copies that the kernel reads instead of A and B, by their names; they are made before it."""
        return {}

    def padding(self) -> tuple[tuple[Parts, ...], tuple[Jobs, ...]]:
        """Where the copies are in the workspace, and the kernel that makes them; adds the fields that it reads."""
        parts: list[Parts] = []
        jobs: list[Job] = []
        for name, copy in self.copies().items():
            element = f"Element{name}"
            extents = ("images", "height", "width", "channels")
            if name == "B":
                extents = ("filters", "filter_height", "filter_width", "channels")
            outer, rows, pixels, channels = (self.add_field(each, "size", "", each) for each in extents)
            steps = (
                self.add_field(f"stride_{each}_of_{name}", "size", name, each) for each in ("outer", *self.spatial)
            )
            stride_outer, stride_row, stride_pixel = steps
            pointer = self.add_field(name, "pointer", name, "pointer")
            members = (
                ("from", f"static_cast<{element} const*>({pointer})"),
                ("to", self.copied_pointer(name)),
                ("outer", outer),
                ("rows", rows),
                ("pixels", pixels),
                ("channels", channels),
                ("stride_outer", stride_outer),
                ("stride_row", stride_row),
                ("stride_pixel", stride_pixel),
                ("before", copy.before),
                ("padded_pixels", copy.pixels),
            )
            jobs.append(Job(f"padded_{name}", f"evt::PadJob<{element}, {copy.channels}>", members))
            shape = (*extents[:3], str(copy.channels))
            parts.append(Parts(f"padded_{name}", element, outer, copy.strides[1], shape))
        summary = "Copies the operands, with zeros behind their channels."
        return tuple(parts), (Jobs("evt_pad", "PadJobs", summary, tuple(jobs)),) if jobs else ()

    def copied_pointer(self, name: str) -> str:
        """Where the copy of an operand is."""
        return f"parts<Element{name}>(arguments, workspace_of(arguments).padded_{name})"

    def copied_operand(self, name: str, alignment: int, stride: str) -> OperandPlan:
        """An operand that is read from its copy."""
        self.add_field("workspace", "pointer", "", "workspace")
        dtype = next(operand.dtype for operand in self.dag.operands if operand.name == name)
        pointer = f"static_cast<void*>({self.copied_pointer(name)})"
        return OperandPlan(operand_element(dtype), self.tensor_layout, alignment, pointer, stride, "", "")

    def is_transposed(self) -> bool:
        """Never: channels are last, and an output whose pixels alone are contiguous has one channel."""
        return False

    @property
    def shape(self) -> ConvolutionClass:
        """What the kernel is specialised for."""
        found = self.signature.convolution
        assert found is not None
        return found

    @property
    def spatial(self) -> tuple[str, ...]:
        """The spatial dimensions, innermost last."""
        return SPATIAL[-self.shape.rank :]

    @property
    def tensor_layout(self) -> str:
        """CUTLASS's tag of channels-last memory."""
        return f"cutlass::layout::Tensor{'NDHWC' if self.shape.rank == 3 else 'NHWC'}"

    def extent(self, name: str) -> str:
        """One of the sizes of ConvolutionProblem, as a C++ expression."""
        return f"static_cast<int>({self.add_field(name, 'size', '', name)})"

    def strides(self, operand: str) -> list[str]:
        """The strides of A or B, those of the channels left out, outermost first."""
        names = ("outer", *self.spatial)
        return [self.add_field(f"stride_{name}_of_{operand}", "size", operand, name) for name in names]
