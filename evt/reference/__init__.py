"""The oracle: the meaning of a program, in PyTorch, on any device.

``evaluate`` computes a typed graph over an accumulator; ``reference`` computes the accumulator first. Products are
summed in f64 and rounded once. Operations that kernels compute in f32 are computed in f32, or in f64 as a reference for
kernels; integers and f64 keep their types. Casts round in both.

In the order of the data: :mod:`oracle` (a program's results), :mod:`convolution` (its product and its tensors),
:mod:`extents` (tensors, one dimension for each mode), :mod:`translate` (the walk over the graph), :mod:`exact` (the
arithmetic), :mod:`functions` and :mod:`philox` (bitwise reproducible), :mod:`rounding`. :mod:`neutral` shields the
oracle from PyTorch's settings. This package imports torch; nothing imports it until a program is evaluated.
"""

from evt.reference.convolution import as_image, as_view, is_image
from evt.reference.oracle import evaluate, operand_values, reference

__all__ = ["as_image", "as_view", "evaluate", "is_image", "operand_values", "reference"]
