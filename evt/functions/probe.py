"""A comparison of a registered function's C++, reference and derivatives: ``probe(row) -> Fault | None``.

The values are compared at points of a grid. At a kink or step of the reference between the neighbours of a point, every
value between the values at the neighbours is accepted.
"""

from __future__ import annotations

import math
import struct
import sys
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import product
from typing import Any, NamedTuple

from evt.functions import host
from evt.functions.formula import evaluate
from evt.functions.row import Function

#: The values of a parameter without a default: for a single parameter, and for several.
_ALONE = (-9.3, -4.1, -2.7, -1.6, -1.0, -0.73, -0.31, -0.05, 0.0, 0.04, 0.23, 0.58, 1.0, 1.4, 2.2, 3.1, 5.2, 9.7)
_BESIDE = (-2.7, -1.0, -0.31, 0.0, 0.58, 1.4, 3.1)
#: The largest number of points, and the relative tolerances: of C++, which may approximate, and of derivatives.
_MOST, _OF_CXX, _OF_DERIVATIVES = 343, 5e-3, 1e-3
#: The distances of a point's neighbours, relative to the point: for values in f32 and for differences in f64.
_NEAR, _STEP = 1e-4, 1e-5
#: The magnitude beyond which f32 overflows before f64 does.
_LARGE = 1e30

Point = tuple[float, ...]


class Fault(NamedTuple):
    """A contradiction: the code, the message, and the derivative's formula if a derivative is wrong."""

    code: str
    message: str
    formula: str = ""


def probe(row: Function) -> Fault | None:
    """Return the contradiction between a function's C++, reference and derivatives, or None.

    The reference is evaluated on tensors if PyTorch is imported, and on floats otherwise. The C++ is not compared
    without a compiler, or if it calls functions that the host lacks.
    """
    points = [tuple(map(_single, point)) for point in _points(row)]
    return _reference(row, points) or _derivatives(row, points) or _cxx(row, points)


def _points(row: Function) -> list[Point]:
    """Return the points: the grid of the parameters without defaults, with each default and another value for it."""
    values = _ALONE if row.required == 1 else _BESIDE
    defaults = [parameter.default for parameter in row.parameters if parameter.default is not None]
    tails = dict.fromkeys([tuple(defaults), tuple(1.5 * default + 0.25 for default in defaults)])
    points = [(*head, *tail) for tail in tails for head in product(values, repeat=row.required)]
    return points[:: -(-len(points) // _MOST)]


def _single(value: float) -> float:
    """Return the nearest f32 number."""
    return float(struct.unpack("f", struct.pack("f", value))[0])


def _fold(row: Function, point: Sequence[float]) -> float:
    try:
        return row.fold(*point)
    except ArithmeticError:
        return math.nan


def _at(row: Function, point: Point) -> str:
    return ", ".join(f"{each.name}={value:.6g}" for each, value in zip(row.parameters, point, strict=True))


def _moved(point: Point, slot: int, step: float) -> Point:
    return (*point[:slot], point[slot] + step * max(1.0, abs(point[slot])), *point[slot + 1 :])


# The reference


def _reference(row: Function, points: Sequence[Point]) -> Fault | None:
    """Return the reason that the reference is not elementwise: its exception, or its result for tensors."""
    torch: Any = sys.modules.get("torch")
    try:
        row.fold(*points[0])
        return _on_tensors(row, torch, points) if torch is not None else None
    except Exception as error:  # the user's code may raise anything
        what = f"{type(error).__name__}: {error}".splitlines()[0]
        return Fault("E0654", f"the reference of `{row.name}` raises at {_at(row, points[0])}: {what}")


def _on_tensors(row: Function, torch: Any, points: Sequence[Point]) -> Fault | None:
    """Return the fault in the reference's tensors: their type, shape or device changes, or elements depend on each
    other.
    """
    for dtype in (torch.float32, torch.float64):
        columns = [torch.tensor(column, dtype=dtype, device="cpu") for column in zip(*points, strict=True)]
        kept = [column.clone() for column in columns]
        with torch.no_grad():
            found = row.torch(torch, *columns)
            if not isinstance(found, torch.Tensor):
                return _wrong(row, f"returns {type(found).__name__}, not a tensor")
            if any(not torch.equal(a, b) for a, b in zip(columns, kept, strict=True)):
                return _wrong(row, "changes its arguments")
            if found.dtype not in (dtype, torch.bool):
                return _wrong(row, f"returns {found.dtype} of {dtype}")
            if found.shape != columns[0].shape:
                return _wrong(row, f"returns the shape {list(found.shape)} of the shape {list(columns[0].shape)}")
            for first in (0, 1):
                fewer = row.torch(torch, *(column[first::2].flip(0) for column in columns)).flip(0)
                close = fewer.isclose(found[first::2], rtol=1e-4, atol=1e-6, equal_nan=True)
                if not bool(close.all()):
                    place = 2 * int((~close).nonzero()[0]) + first
                    return _wrong(
                        row, f"is not elementwise: its value at {_at(row, points[place])} depends on other elements"
                    )
    return None


def _wrong(row: Function, what: str) -> Fault:
    return Fault("E0654", f"the reference of `{row.name}` {what}")


# The derivatives


def _derivatives(row: Function, points: Sequence[Point]) -> Fault | None:
    for slot, formula in enumerate(row.derivatives):
        for point in points if formula else ():
            found = _value(row, formula, point)
            here, left, right = (_fold(row, _moved(point, slot, step)) for step in (0.0, -_STEP, _STEP))
            step = _STEP * max(1.0, abs(point[slot]))
            before, after = (here - left) / step, (right - here) / step
            if not all(map(math.isfinite, (before, after))):
                continue
            slack = _OF_DERIVATIVES * max(1.0, abs(before), abs(after)) + abs(after - before)
            if not abs(found - (before + after) / 2) <= slack:
                expected = f"{(before + after) / 2:.6g}"
                what = f"the derivative of `{row.name}` along `{row.parameters[slot].name}` at {_at(row, point)}"
                return Fault("E0655", f"{what} is {found:.6g}; the reference changes by {expected}", formula)
    return None


def _value(row: Function, formula: str, point: Point) -> float:
    named = {parameter.name: value for parameter, value in zip(row.parameters, point, strict=True)}
    try:
        return float(evaluate(formula, named, own=row))
    except ArithmeticError:
        return math.nan


# The C++


def _cxx(row: Function, points: Sequence[Point]) -> Fault | None:
    found = _host_values(row, points)
    if isinstance(found, str):
        return Fault("E0653", f"the C++ of `{row.name}` does not compile: {found}")
    for point, value in zip(points, found, strict=True) if found is not None else ():
        near = list(_neighbours(row, point))
        if not all(math.isfinite(each) and abs(each) < _LARGE for each in near):
            continue
        slack = _OF_CXX * max(abs(near[0]), 0.2)
        if not min(near) - slack <= value <= max(near) + slack:
            return Fault(
                "E0653", f"the C++ of `{row.name}` at {_at(row, point)} is {value:.6g}; the reference is {near[0]:.6g}"
            )
    return None


def _neighbours(row: Function, point: Point) -> Iterator[float]:
    """Yield the reference at a point and at the points next to it."""
    yield _fold(row, point)
    for slot in range(len(point)):
        for step in (-_NEAR, _NEAR):
            yield _fold(row, _moved(point, slot, step))


def _host_values(row: Function, points: Sequence[Point]) -> list[float] | str | None:
    """Return the values of the C++, the compiler's error if it is wrong, or None if it cannot be compiled here."""
    names = [text.replace(f"fn_{row.name}(", "fn_probed(") for text in (row.source, row.cxx)]
    run = _compiled(*names, len(row.parameters), host.compiler())
    return run(list(zip(*points, strict=True))) if callable(run) else run


@lru_cache(maxsize=256)
def _compiled(source: str, cxx: str, count: int, compiler: str | None) -> host.Run | str | None:
    """Return compiled C++ or the compiler's error, cached for the process because a notebook's cell runs again."""
    try:
        return None if compiler is None else host.compiled(source, cxx, count)
    except host.NotForHostError as error:
        return error.mistake or None
