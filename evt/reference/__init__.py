"""The oracle: what a program means, in PyTorch, on any device.

``evaluate`` computes a typed graph over an accumulator; ``reference`` forms the accumulator first. Products are summed
in f64 and rounded once. What kernels compute in f32 then is computed in f32, or in f64 as a yardstick for them;
integers and f64 as they are. Casts are real rounding points in both.

In the order of the data: :mod:`oracle` (a program's answer), :mod:`convolution` (its product and its tensors),
:mod:`extents` (tensors, one dimension for each mode), :mod:`translate` (the walk over the graph), :mod:`exact` (what it
computes), :mod:`functions` and :mod:`philox` (the same bits everywhere), :mod:`rounding`; :mod:`neutral` keeps out what
a process has set in PyTorch. This package imports torch; nothing imports it until a program is evaluated.
"""

from evt.reference.convolution import as_image, as_view, is_image
from evt.reference.oracle import evaluate, operand_values, reference

__all__ = ["as_image", "as_view", "evaluate", "is_image", "operand_values", "reference"]
