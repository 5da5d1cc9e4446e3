"""Gradients of programs.

In the order of the data: :mod:`reverse` (the program and its gradients in one graph), :mod:`cut` (what the forward pass
saves), :mod:`derive` (the two programs), :mod:`program` (for a kind of call), :mod:`evaluate` (the backward one in
PyTorch), :mod:`products` (the gradients of A and B).
"""

from evt.gradient.derive import Gradient, derive
from evt.gradient.reverse import ACCUMULATOR, differentiable_outputs

__all__ = ["ACCUMULATOR", "Gradient", "derive", "differentiable_outputs"]
