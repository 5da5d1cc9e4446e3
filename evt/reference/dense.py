"""The check for dense tensors: ``not_dense(name, tensor)`` returns the reason that a tensor is not dense."""

from __future__ import annotations

import torch
from torch.nn.parameter import UninitializedTensorMixin  # type: ignore[attr-defined]  # not in its stubs

from evt.diagnostics import Diagnostic


def not_dense(name: str, tensor: torch.Tensor) -> Diagnostic | None:
    """Return the reason that a shape and strides do not describe a tensor's elements, or None."""
    if isinstance(tensor, UninitializedTensorMixin):
        help_text = "call the lazy module once, which creates the parameter"
        return Diagnostic("E0612", f"`{name}` is not initialised yet", help=help_text)
    if tensor.layout == torch.strided and not tensor.is_nested:
        return None
    kind = "nested" if tensor.is_nested else str(tensor.layout)
    return Diagnostic("E0606", f"`{name}` is a {kind} tensor; only dense tensors are supported")
