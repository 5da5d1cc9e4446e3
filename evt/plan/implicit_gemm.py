"""What the planners of convolutions share: the implicit GEMM's sizes and strides as fields of the call."""

from __future__ import annotations

from evt.ir.convolution import SPATIAL
from evt.plan.family import Planner
from evt.plan.signature import ConvolutionClass


class ImplicitGemm(Planner):
    """A planner over the implicit GEMM of a convolution; the visitors do not know the difference from a GEMM."""

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
