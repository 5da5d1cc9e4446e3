"""``evt.nn.Conv1d``, ``Conv2d`` and ``Conv3d``: torch.nn's convolutions with an epilogue."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import torch

from evt.nn.fused import EpilogueModule
from evt.settings import Keywords

if TYPE_CHECKING:
    from typing_extensions import Unpack

#: The attributes of torch's convolutions that a program has too.
_GEOMETRY = frozenset({"stride", "padding", "dilation", "groups", "padding_mode"})


class _Convolution(EpilogueModule, torch.nn.modules.conv._ConvNd):
    """The convolution of any rank; ``base`` has torch's constructor."""

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int | Sequence[int],
        stride: int | Sequence[int] = 1,
        padding: int | str | Sequence[int] = 0,
        dilation: int | Sequence[int] = 1,
        groups: int = 1,
        bias: bool = True,
        padding_mode: str = "zeros",
        device: Any = None,
        dtype: torch.dtype | None = None,
        *,
        epilogue: str | None = None,
        **settings: Unpack[Keywords],
    ) -> None:
        geometry = (kernel_size, stride, padding, dilation, groups)
        self.base.__init__(self, in_channels, out_channels, *geometry, bias, padding_mode, device, dtype)
        self._set_epilogue(epilogue, settings)

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        if name in _GEOMETRY and "_epilogue" in vars(self):
            self._set_epilogue(self.epilogue, asdict(self.program.request.settings))

    def _geometry(self) -> dict[str, Any]:
        padding = self.padding if self.padding_mode == "zeros" else 0
        return {"stride": self.stride, "padding": padding, "dilation": self.dilation, "groups": self.groups}

    def forward(self, input: torch.Tensor, **inputs: Any) -> Any:
        """Return the program's output; several as a namedtuple. ``D`` is [N, K, P, Q] in the input's type.

        ``input`` is [N, C, H, W], with the module's number of spatial dimensions; an input ``[m, n]`` of the epilogue
        is [N, K, P, Q]. Types, autocast, ``out=`` and errors are as in :class:`evt.nn.Linear`'s forward.
        """
        if self.padding_mode != "zeros":
            pads = self._reversed_padding_repeated_twice
            input = torch.nn.functional.pad(input, pads, mode=self.padding_mode)
        return self._call(input, inputs)


class Conv1d(_Convolution, torch.nn.Conv1d):
    """torch.nn.Conv1d with an epilogue: :class:`Conv2d` for x [N, C, L] and the weight [K, C, S].

    PyTorch has no memory format for three dimensions: ``layer.weight.data = evt.channels_last(layer.weight.data)``.
    """

    base = torch.nn.Conv1d
    operation = "conv1d"


class Conv2d(_Convolution, torch.nn.Conv2d):
    """torch.nn.Conv2d, whose kernel also computes an epilogue of the convolution ``acc``.

        layer = evt.nn.Conv2d(64, 64, 3, padding=1, epilogue="relu(acc + bias + residual)")
        y = layer(x, residual=r)

    ``epilogue`` and the keywords after it are as in :class:`evt.nn.Linear`, with the output channels as columns. The
    other arguments, parameters, initialisation and state dicts are as in torch.nn.Conv2d. With a ``padding_mode`` other
    than ``"zeros"`` a separate kernel pads the input, as in torch. Setting ``stride``, ``padding``, ``dilation``,
    ``groups`` or ``padding_mode`` of a module makes its program anew.

    Kernels need channels_last memory: convert the module once with ``.to(memory_format=torch.channels_last)``, and pass
    inputs in it; a call copies other tensors. D is channels_last if x or the weight is. x has a batch dimension.

    Raise the errors of :func:`evt.conv2d` for the program, and of :class:`evt.nn.Linear` for the bias.
    """

    base = torch.nn.Conv2d
    operation = "conv2d"


class Conv3d(_Convolution, torch.nn.Conv3d):
    """torch.nn.Conv3d with an epilogue: :class:`Conv2d` for x [N, C, D, H, W] and the weight [K, C, T, R, S].

    Its memory format is torch.channels_last_3d.
    """

    base = torch.nn.Conv3d
    operation = "conv3d"
