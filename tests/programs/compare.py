"""Outputs against the evaluator's: the shape, the type, and every element that is in no doubt."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from .call import Data
from .dtypes import TYPES, compute
from .eager import Value
from .interface import output_type
from .number import WIDE, Array, deviation
from .outputs import canonical, kept, shape_of, stored
from .rounding import rounded
from .tree import Output, Program
from .values import tensor

if TYPE_CHECKING:
    from .checks import CheckResult

#: An element whose interval is wider than this part of it is counted as loose.
_LOOSE = 0.01


def compare(
    program: Program,
    data: Data,
    stage: str,
    expected: Mapping[str, Value],
    found: Mapping[str, Any],
    kinds: Mapping[str, frozenset[str]],
    report: CheckResult,
    slack: float = 0.0,
) -> None:
    """Compare all outputs, with ``slack`` as a further tolerance.

    In the stage ``float64`` float outputs are doubles.
    """
    for output in program.outputs:
        value, over = expected[output.name], kinds.get(output.name)
        kind = {"b1": "i32"}.get(compute(value.type), compute(value.type))  # of the reduced value, in its type
        dtype = output_type(program, output, kind if over else None)
        doubles = stage == "float64" and TYPES[dtype].kind == "float"
        shape = shape_of(program, data, output, dtype, over or frozenset())
        wanted = torch.float64 if doubles else getattr(torch, TYPES[dtype].torch)
        have = found[output.name]
        if tuple(have.shape) != shape or have.dtype != wanted:
            report.fail(
                f"{stage}: another shape or dtype",
                f"{output.name} is {have.dtype} {list(have.shape)}, expected {wanted} {list(shape)}",
            )
            continue
        values, named = canonical(program, data, output, dtype, over or frozenset(), have), None
        if output.indexed:
            before = canonical(program, data, output, dtype, frozenset(), tensor(dtype, data.held[output.name]))
            if not kept(data, output, before, values):
                report.fail(f"{stage}: stored where no index says", output.name)
            values, named = stored(data, output, values)
        _compare(output, stage, "f64" if doubles else dtype, value, values, named, report, slack)


def _compare(
    output: Output,
    stage: str,
    dtype: str,
    expected: Value,
    found: Array,
    named: Array | None,
    report: CheckResult,
    slack: float,
) -> None:
    """Compare the values of an output; of a scattered one, the ``named`` values."""
    number = expected.number
    for axis, size in enumerate(found.shape):  # a derivative may vary over fewer modes than its argument
        if size == 1 < number.x.shape[axis + 1] and (number.x == number.x.take([0], axis + 1)).all():
            doubt = number.doubt.any(axis, keepdims=True)
            number = replace(number, x=number.x.take([0], axis + 1), doubt=doubt)
    with np.errstate(all="ignore"):
        reach = WIDE * deviation(number.x) + slack
        middle = number.x[0]
        low, high = rounded(dtype, middle - reach), rounded(dtype, middle + reach)
        if dtype not in ("f64", "f32"):  # which may be rounded to f32 on the way
            twice = rounded(dtype, rounded("f32", middle))
            low, high = np.fmin(low, twice), np.fmax(high, twice)
        if TYPES[dtype].kind == "bit":  # every number but 0 is true
            low = np.where((middle - reach <= 0) & (middle + reach >= 0), 0.0, low)
        good = np.where(np.isnan(rounded(dtype, middle)), np.isnan(found), (found >= low) & (found <= high))
        loose = (high - low) > _LOOSE * np.abs(middle)
    named = np.ones_like(found, dtype=bool) if named is None else named
    good, doubt, loose, low, high, middle = (
        np.broadcast_to(x, found.shape) for x in (good, number.doubt | np.isinf(reach), loose, low, high, middle)
    )
    report.counts[f"compared {stage}"] += int(named.sum())
    report.counts[f"in doubt {stage}"] += int((doubt & named).sum())
    report.counts[f"loose {stage}"] += int((loose & named & ~doubt).sum())
    wrong = named & ~(good | doubt)
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
