"""The reference's results for tensors on the CPU: ``run_reference(request, bound, buffers)``."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from evt.reference import is_image, reference
from evt.reference.convolution import to_view
from evt.request import Request
from evt.runtime.bound import Bound
from evt.runtime.memory_format import channels_last, contiguous_image, follows_channels_last
from evt.runtime.ragged import evaluate_groups
from evt.runtime.tensor_checks import write


def evaluate(request: Request, bound: Bound, float64: bool = False) -> dict[str, torch.Tensor]:
    """Return the reference's outputs by name, in the memory formats of a call."""
    a, b = bound.values["A"], bound.values["B"]
    held = {output.name for output in request.dag.outputs if output.is_indexed}
    inputs = {name: value for name, value in bound.values.items() if name in request.dag.input or name in held}
    results = reference(bound.dag, a, b, inputs, float64=float64, convolution=request.convolution)
    if request.convolution is None:
        return results
    formatted = channels_last if follows_channels_last(request.convolution, a, b) else contiguous_image
    return {name: formatted(r) if is_image(bound.dag.output[name]) else r for name, r in results.items()}


def run_reference(request: Request, bound: Bound, buffers: Mapping[str, torch.Tensor]) -> list[torch.Tensor]:
    """Return the reference's outputs, in order, written into the caller's buffers where there are any."""
    if request.ragged:
        return evaluate_groups(bound, {name: bound.values[name] for name in buffers})
    results = evaluate(request, bound)
    for name, buffer in buffers.items():
        found, memory = results[name], bound.values[name]
        if request.convolution is not None and is_image(bound.dag.output[name]) and buffer.dim() == 2:
            found = to_view(found)  # rows are output pixels
        write(memory, found)
        results[name] = buffer
    return [results[name] for name in request.outputs]
