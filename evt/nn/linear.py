"""``evt.nn.Linear``: torch.nn.Linear with an epilogue."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from evt.nn.fused import EpilogueModule
from evt.settings import Keywords

if TYPE_CHECKING:
    from typing_extensions import Unpack


class Linear(EpilogueModule, torch.nn.Linear):
    """torch.nn.Linear, whose kernel also computes an epilogue of the product ``acc = x @ weight.T``.

        layer = evt.nn.Linear(256, 512, epilogue="gelu(acc + bias)")
        layer = evt.nn.Linear(512, 256, epilogue="acc + bias + residual")
        y = layer(x, residual=r)

    ``epilogue`` is a program of evt's language, whose last statement may be an expression: the output ``D``. By default
    the module computes ``acc + bias``, or ``acc`` with ``bias=False``, as torch's module does. ``bias`` is the
    parameter; the epilogue must read it if and only if the module has one. All other inputs are keywords of forward.

    The other arguments, parameters, initialisation and state dicts are as in torch.nn.Linear. Further keywords are the
    keywords of :class:`evt.settings.Settings`: ``relaxed``, ``fast_math`` and so on.

    The constructor raises the errors of :func:`evt.linear` for the program. It also raises ProgramError for a bias that
    only the module or only the epilogue has (E0404, E0202), or whose modes or type differ from the parameter's (E0302,
    E0603). Further ProgramErrors are a header of another operation (E0501), and an input with the name of an argument
    of forward (E0108). It raises ArgumentError (E0604) if ``out_features`` does not divide into the epilogue's pairs or
    blocks of columns; TargetError (E0303) for a ``dtype`` that operands cannot have.
    """

    base = torch.nn.Linear
    operation = "linear"

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        device: Any = None,
        dtype: torch.dtype | None = None,
        *,
        epilogue: str | None = None,
        **settings: Unpack[Keywords],
    ) -> None:
        torch.nn.Linear.__init__(self, in_features, out_features, bias, device, dtype)
        self._set_epilogue(epilogue, settings)

    def forward(self, input: torch.Tensor, **inputs: Any) -> Any:
        """Return the program's output; several as a namedtuple. ``D`` is [..., out_features] in the input's type.

        ``input`` is [..., in_features]; an input ``[m, n]`` of the epilogue is [..., out_features], and an input
        ``[m]`` is [...]. All have the weight's type unless the epilogue declares another. On the GPU, f32 is multiplied
        as tf32. The result has gradients if any input requires grad. ``out=``, and the names of outputs, pass buffers
        as in calls of :func:`evt.linear`.

        Under torch.autocast, forward casts the operands to autocast's type, which is then the type of D. It also casts
        the bias and other inputs whose type the epilogue leaves open. Inputs with a declared type are not cast, and
        neither are scalars, float64 and integers. Raise ArgumentError (E06xx) for inputs that do not fit.
        """
        return self._call(input, inputs)
