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

    ``epilogue`` is a program of evt's language, of which the last statement may be an expression: the output ``D``.
    Without one the module computes what torch's does, ``acc + bias``, or ``acc`` with ``bias=False``. ``bias`` is the
    parameter, and is read exactly if the module has one. All other inputs are keywords of forward.

    Arguments, parameters, initialisation and state dicts are those of torch.nn.Linear. The other keywords are those of
    :class:`evt.settings.Settings`: ``relaxed``, ``fast_math`` and so on.

    Raise what :func:`evt.linear` raises for the program, at once and not in forward; ProgramError also for a bias that
    only the module or only the epilogue has (E0404, E0202), or of other modes or another type than the parameter's
    (E0302, E0603), for a header of another operation (E0501), and for an input that is named as forward's own
    arguments are (E0108); ArgumentError (E0604) where ``out_features`` does not
    divide into the pairs or blocks of columns that the epilogue takes; TargetError (E0303) for a ``dtype`` that is none
    of an operand's.
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
        """Return the program's output, [..., out_features] of the input's type if it is ``D``; several as a namedtuple.

        ``input`` is [..., in_features], an input ``[m, n]`` of the epilogue [..., out_features], one ``[m]`` [...].
        All are of the weight's type unless the epilogue declares another. On the GPU, f32 is multiplied as tf32.
        The result has gradients where any of them requires grad. ``out=``, and the names of outputs, give buffers as in
        calls of :func:`evt.linear`.

        Under torch.autocast, the operands, and inputs whose type the epilogue leaves open (the bias among them), are
        cast to autocast's type, which is then the type of D. Inputs with a declared type stay as they are, and so
        do scalars, float64 and integers. Raise ArgumentError (E06xx) for inputs that do not fit.
        """
        return self._call(input, inputs)
