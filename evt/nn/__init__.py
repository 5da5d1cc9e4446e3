"""Modules of PyTorch's with an epilogue: ``evt.nn.Linear(64, 128, epilogue="gelu(acc + bias)")``.

They are torch.nn's own: their parameters, names, initialisation and state dicts are those of the class of the same
name, of which each is a subclass. In the order of the data: :mod:`epilogue` (the text, checked against the module),
:mod:`autocast` (a call's tensors under torch.autocast), :mod:`fused` (what the modules have in common), then the
modules.
"""

from evt.nn.convolution import Conv1d, Conv2d, Conv3d
from evt.nn.linear import Linear
from evt.nn.mlp import MLP, GatedMLP

__all__ = ["MLP", "Conv1d", "Conv2d", "Conv3d", "GatedMLP", "Linear"]
