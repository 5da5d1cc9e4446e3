"""Whether a tensor is dense: ``not_dense(name, tensor)`` says why one is not."""

from __future__ import annotations

import torch
from torch.nn.parameter import UninitializedTensorMixin  # type: ignore[attr-defined]  # not in its stubs

from evt.diagnostics import Diagnostic


def not_dense(name: str, tensor: torch.Tensor) -> Diagnostic | None:
    """Return why a shape and strides do not describe where a tensor's elements are, or None."""
    if isinstance(tensor, UninitializedTensorMixin):
        help_text = "give the lazy module its first input, which makes the parameter"
        return Diagnostic("E0612", f"`{name}` is not initialised yet", help=help_text)
    if tensor.layout == torch.strided and not tensor.is_nested:
        return None
    kind = "nested" if tensor.is_nested else str(tensor.layout)
    return Diagnostic("E0606", f"`{name}` is a {kind} tensor; only dense tensors are supported")
