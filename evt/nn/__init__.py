"""PyTorch modules with an epilogue: ``evt.nn.Linear(64, 128, epilogue="gelu(acc + bias)")``.

Each module is a subclass of the torch.nn class of its name, with its parameters, names, initialisation and state dict.
In the order of the data: :mod:`epilogue` (the text, checked against the module), :mod:`autocast` (a call's tensors
under torch.autocast), :mod:`fused` (the common base of the modules), then the modules.
"""

from evt.nn.convolution import Conv1d, Conv2d, Conv3d
from evt.nn.linear import Linear
from evt.nn.mlp import MLP, GatedMLP

__all__ = ["MLP", "Conv1d", "Conv2d", "Conv3d", "GatedMLP", "Linear"]
