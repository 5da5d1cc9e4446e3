"""What the planners of convolutions share: the implicit GEMM's sizes and strides as fields of the call."""

from __future__ import annotations

from evt.ir.convolution import SPATIAL
from evt.plan.kernels.family import Planner, operand_element
from evt.plan.kernels.padding import PaddedCopy
from evt.plan.plan import Job, Jobs, OperandPlan, Parts
from evt.plan.signature import ConvolutionClass


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
            names = [*self.extents_of(name), "channels"]
            outer, *sizes, channels = (self.add_field(each, "size", "", each) for each in names)
            pointer = self.add_field(name, "pointer", name, "pointer")
            strides = self.strides(name)
            if len(sizes) == 2:  # an image is one slice
                sizes, strides = ["1", *sizes], [strides[0], "0", *strides[1:]]
            members = (
                ("from", f"static_cast<{element} const*>({pointer})"),
                ("to", self.copied_pointer(name)),
                *zip(("outer", "slices", "rows", "pixels", "channels"), (outer, *sizes, channels), strict=True),
                *zip((f"stride_{each}" for each in ("outer", "slice", "row", "pixel")), strides, strict=True),
                ("before", copy.before),
                ("padded_pixels", copy.extents[-1]),
                ("padded_channels", copy.channels),
            )
            jobs.append(Job(f"padded_{name}", f"evt::PadJob<{element}, {copy.vector}>", members))
            parts.append(Parts(f"padded_{name}", element, copy.extents[0], copy.strides[0], tuple(names)))
        summary = "Copies the operands, with zeros behind their channels."
        return tuple(parts), (Jobs("evt_pad", "PadJobs", summary, tuple(jobs)),) if jobs else ()

    def extents_of(self, operand: str) -> list[str]:
        """The sizes of A or B of fprop by their names, outermost first, the channels left out."""
        if operand == "A":
            return ["images", *self.spatial]
        return ["filters", *(f"filter_{name}" for name in self.spatial)]

    def plain_copies(self, vector: int, channels: str = "") -> dict[str, PaddedCopy]:
        """Copies of both operands with whole vectors of channels, or so many."""
        found = {}
        for name in ("A", "B"):
            extents = tuple(self.add_field(each, "size", "", each) for each in self.extents_of(name))
            own = self.add_field("channels", "size", "", "channels")
            found[name] = PaddedCopy(extents, channels or f"evt::rounded_up<{vector}>({own})", vector)
        return found

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
