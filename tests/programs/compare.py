"""Outputs against the evaluator's: the shape, the type, and every element that is in no doubt."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from .call import Data, canonical, output_type, shape_of
from .dtypes import TYPES, compute
from .evaluator import Value
from .number import WIDE, Array, deviation
from .rounding import rounded
from .tree import Output, Program

if TYPE_CHECKING:
    from .checks import Report

#: An element whose interval is wider than this part of it is counted as loose.
_LOOSE = 0.01


def compare(
    program: Program,
    data: Data,
    stage: str,
    expected: Mapping[str, Value],
    found: Mapping[str, Any],
    kinds: Mapping[str, frozenset[str]],
    report: Report,
) -> None:
    """All outputs. Those of the stage ``float64`` are doubles where they are floats."""
    for output in program.outputs:
        value, over = expected[output.name], kinds.get(output.name)
        kind = {"b1": "i32"}.get(compute(value.type), compute(value.type))  # of what is reduced, in a type of its own
        dtype = output_type(program, output, kind if over else None)
        kept = stage == "float64" and TYPES[dtype].kind == "float"
        shape = shape_of(program, data, output, dtype, over or frozenset())
        wanted = torch.float64 if kept else getattr(torch, TYPES[dtype].torch)
        have = found[output.name]
        if tuple(have.shape) != shape or have.dtype != wanted:
            report.fail(
                f"{stage}: another shape or dtype",
                f"{output.name} is {have.dtype} {list(have.shape)}, expected {wanted} {list(shape)}",
            )
            continue
        values = canonical(program, data, output, dtype, over or frozenset(), have)
        _compare(output, stage, "f64" if kept else dtype, value, values, report)


def _compare(output: Output, stage: str, dtype: str, expected: Value, found: Array, report: Report) -> None:
    number = expected.number
    for axis, size in enumerate(found.shape):  # a derivative may not vary over what its argument does
        if size == 1 < number.x.shape[axis + 1] and (number.x == number.x.take([0], axis + 1)).all():
            doubt = number.doubt.any(axis, keepdims=True)
            number = replace(number, x=number.x.take([0], axis + 1), doubt=doubt)
    with np.errstate(all="ignore"):
        reach = WIDE * deviation(number.x)
        middle = number.x[0]
        low, high = rounded(dtype, middle - reach), rounded(dtype, middle + reach)
        if dtype not in ("f64", "f32"):  # which may be rounded to f32 on the way
            twice = rounded(dtype, rounded("f32", middle))
            low, high = np.fmin(low, twice), np.fmax(high, twice)
        good = np.where(np.isnan(rounded(dtype, middle)), np.isnan(found), (found >= low) & (found <= high))
        loose = (high - low) > _LOOSE * np.abs(middle)
    doubt = number.doubt | np.isinf(reach)
    good, doubt, loose, low, high, middle = (
        np.broadcast_to(x, found.shape) for x in (good, doubt, loose, low, high, middle)
    )
    report.counts[f"compared {stage}"] += found.size
    report.counts[f"in doubt {stage}"] += int(doubt.sum())
    report.counts[f"loose {stage}"] += int((loose & ~doubt).sum())
    wrong = ~(good | doubt)
    if wrong.any():
        at = tuple(int(index) for index in np.argwhere(wrong)[0])
        what = f"{output.name}{list(at)} is {found[at]}, expected {middle[at]}, from {low[at]} to {high[at]}"
        report.fail(f"{stage}: another value", f"{what}; {int(wrong.sum())} of {wrong.size} elements")


def same(one: Any, two: Any) -> bool:
    """Equal, NaN being one value; the two zeros are equal."""
    if one.shape != two.shape or one.dtype != two.dtype:
        return False
    if one.dtype.itemsize == 1 and one.dtype.is_floating_point:
        one, two = one.float(), two.float()
    return bool(((one == two) | (one.isnan() & two.isnan())).all())
