"""The outputs of a call: their shapes, and their values as arrays for the evaluator."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from .call import MODES, Array, Data, dims, read_at  # type: ignore[attr-defined]
from .interface import is_image, memory_modes
from .tree import Output, Program


def shape_of(program: Program, data: Data, output: Output, dtype: str, reduced: frozenset[str]) -> tuple[int, ...]:
    """Return the shape of an output as a call returns it."""
    if output.indexed:
        return data.held[output.name].shape
    shape = tuple(size for mode in memory_modes(output, reduced) for size in dims(data, mode))
    if dtype == "b1":
        return (*shape[:-1], -(-shape[-1] // 8))
    if is_image(program, output):
        return (shape[0], shape[-1], *shape[1:-1])
    return shape


def canonical(program: Program, data: Data, output: Output, dtype: str, reduced: frozenset[str], found: Any) -> Array:
    """Return an output's values [l, m, n], in doubles, with one element where it has no such mode."""
    import torch

    own = {index[-1]: data.rows(index[-1]) for index in output.indexed}
    if dtype == "b1":
        columns = dims(data, output.modes[-1])[-1]
        values = np.unpackbits(found.numpy(), axis=-1, count=columns, bitorder="little").astype(float)
    else:
        values = found.to(torch.float64).numpy()
        if is_image(program, output):
            values = np.moveaxis(values, 1, -1)
    modes = memory_modes(output, reduced)
    flat = values.reshape([own.get(mode) or math.prod(dims(data, mode)) for mode in modes])
    bases = [mode.partition("/")[0] for mode in modes]
    order = sorted(range(len(bases)), key=lambda axis: MODES.index(bases[axis]))
    extents = {base: flat.shape[axis] for axis, base in enumerate(bases)}
    return flat.transpose(order).reshape([extents.get(mode, 1) for mode in ("l", "m", "n")])


def stored(data: Data, output: Output, found: Array) -> tuple[Array, Array]:
    """Return the values of an output [l, m, n] at its indices, and the places that are in range."""
    places = np.ones_like(found)
    for index in output.indexed:
        found, places = (read_at(each, data.along(index), MODES.index(index[-1])) for each in (found, places))
    return found, places != 0


def kept(data: Data, output: Output, before: Array, found: Array) -> bool:
    """Return whether an output [l, m, n] keeps the buffer's values at places without an index."""
    named = np.ones(found.shape, dtype=bool)
    for index in output.indexed:
        axis, places = MODES.index(index[-1]), data.along(index)
        here = np.stack([np.isin(np.arange(found.shape[axis]), each) for each in places]).reshape(len(places), -1)
        named &= np.expand_dims(here, 3 - axis)
    return np.array_equal(found[~named], before[~named], equal_nan=True)
