"""The outputs that a call allocates: ``fresh_output(bound, output)``, as a kernel writes it, and ``returned(...)``.

A prototype of an output has no memory, and torch.empty_like of it is twice as fast as torch.empty of its shape.

Sizes may be symbols, so the fake operators of :mod:`evt.runtime.operator` and launches share these functions.
"""

from __future__ import annotations

import torch

from evt.ir import Output
from evt.reference import as_image, is_image
from evt.runtime.bound import Bound
from evt.runtime.memory_format import contiguous_image, follows_channels_last


def fresh_output(bound: Bound, output: Output) -> torch.Tensor:
    """Return memory for an output, packed, and channels last where it is an image."""
    assert output.dtype is not None
    made = torch.empty(bound.output_shape(output), dtype=getattr(torch, output.dtype.torch), device=bound.device)
    if bound.convolution is None:
        return made
    image = as_image(output, made)
    return torch.empty_like(image, memory_format=torch.contiguous_format) if bound.planar else image


def prototype_of(bound: Bound, output: Output) -> torch.Tensor:
    """Return the prototype of an output."""
    return without_memory(fresh_output(bound, output))


def without_memory(made: torch.Tensor) -> torch.Tensor:
    """Return a tensor after freeing its memory."""
    made.untyped_storage().resize_(0)
    return made


def returned(bound: Bound, output: Output) -> torch.Tensor:
    """Return a call's result for an output, without its values."""
    made = fresh_output(bound, output)
    if bound.convolution is None or not is_image(output):
        return made
    last = follows_channels_last(bound.convolution.geometry, bound.values["A"], bound.values["B"])
    return made if last else contiguous_image(made)
