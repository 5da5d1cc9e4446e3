"""A call's tensors under torch.autocast: ``autocast(x, weight, inputs, following)``.

A program computes in the types of its operands, regardless of autocast. A module casts the operands, as torch.nn does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch


def autocast(
    x: torch.Tensor, weight: torch.Tensor, inputs: Mapping[str, Any], following: Sequence[str]
) -> tuple[torch.Tensor, torch.Tensor, Mapping[str, Any]]:
    """Return the tensors of a call in autocast's type if it is enabled: the operands, and inputs that follow their
    type.

    As in PyTorch, float64, integers and tensors of other devices are not cast.
    """
    device = "cuda" if x.is_cuda else "cpu"
    if not torch.is_autocast_enabled(device):
        return x, weight, inputs
    dtype = torch.get_autocast_dtype(device)
    cast = {name: _cast(value, device, dtype) if name in following else value for name, value in inputs.items()}
    return _cast(x, device, dtype), _cast(weight, device, dtype), cast


def _cast(value: Any, device: str, dtype: torch.dtype) -> Any:
    if not isinstance(value, torch.Tensor) or value.device.type != device:
        return value
    return value.to(dtype) if value.is_floating_point() and value.dtype != torch.float64 else value
