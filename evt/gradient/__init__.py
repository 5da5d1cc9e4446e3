"""Gradients of programs.

In the order of the data: :mod:`reverse` makes one graph of the program and its gradients; :mod:`cut` chooses the values
that the forward pass saves; :mod:`derive` makes the two programs; :mod:`program` derives them for a kind of call;
:mod:`evaluate` runs the backward program in PyTorch; :mod:`products` computes the gradients of A and B.
"""

from evt.gradient.derive import Gradient, derive
from evt.gradient.reverse import ACCUMULATOR, differentiable_outputs

__all__ = ["ACCUMULATOR", "Gradient", "derive", "differentiable_outputs"]
