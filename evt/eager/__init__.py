"""Formulas as a PyTorch user writes them: :func:`straight_line`. Benchmarks and ``op.verify`` run them."""

from evt.eager.idiom import UnwrittenError
from evt.eager.straight import is_elementwise, straight_line

__all__ = ["UnwrittenError", "is_elementwise", "straight_line"]
