"""Distances between results, and their bounds: one norm, one treatment of NaN, one table of tolerances.

``relative_error`` and ``error`` measure a distance. ``tolerance`` bounds it for a formula that keeps errors as small as
possible, ``limit`` for any formula. ``as_steps`` serves types of few values, whose steps are counted.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from types import MappingProxyType

import torch

from evt.ir.dtype import B1, BF16, BOOL, E4M3, E5M2, F16, F32, F64, I32, TF32, DType
from evt.reference.rounding import unpack_bits

#: The relative error of tensor cores in sums of products of 8-bit floats, which they keep in fewer bits than f32.
NARROW_SUMS = 2.0**-11
#: The effect of rounding to a type on the norm of values of all sizes, times about two: each value moves by at most
#: :func:`unit`, by less than half of that on average. The entries of f32 and f64 bound sums of a few thousand products
#: in any order.
_ROUNDED = MappingProxyType({F64: 1e-6, F32: 2e-5, TF32: 4e-4, F16: 4e-4, BF16: 3e-3, E4M3: 4e-2, E5M2: 8e-2})
#: The error that tensor cores add: f32 is cut to tf32, which loses up to two units of both factors.
_MULTIPLIED = MappingProxyType({F32: 1.2e-3, TF32: 1.2e-3, E4M3: 2 * NARROW_SUMS, E5M2: 2 * NARROW_SUMS})
#: One in a hundred integers may be off by one, and one in a thousand bits may differ: values this close to a tie or to
#: a threshold.
_INTEGERS, _BITS = 1e-2, 1e-3

#: The largest error from rounding in a formula that may amplify it, such as the difference of two large numbers: a few
#: units in the last place of the type; for f32 and i32, of tf32, in which f32 may be multiplied.
_LIMITS = MappingProxyType({F64: 1e-9, F32: 2e-3, TF32: 2e-3, I32: 2e-3, F16: 2e-3, BF16: 1e-2, BOOL: 1e-2, B1: 1e-2})
#: The bound for a type of few values: one element in a hundred that becomes its neighbour.
_COARSEST = 1e-1
#: The error that operands add: 8-bit floats, whose products are summed in fewer bits. Integers are summed exactly.
_OF_OPERANDS = MappingProxyType({E4M3: 1e-2, E5M2: 1e-2})

_NAN = 1000  # the position of NaN, in steps


def unit(dtype: DType) -> float:
    """Return the largest relative change when a number is rounded to a float type."""
    return 2.0 ** -(dtype.format.fraction + 1)


def relative_error(out: torch.Tensor, exact: torch.Tensor, rounded: torch.Tensor | None = None) -> float:
    """Return ||out - exact|| / ||exact||, or infinity if an element is not finite and should be.

    NaN equals NaN and an infinity equals itself; neither counts in the norms. If no finite number in the output's type
    represents ``exact``, the element must equal ``rounded``.
    """
    difference, values = compared(out, exact, exact if rounded is None else rounded)
    return ratio(difference, values) if bool(difference.isfinite().all()) else math.inf


def compared(out: torch.Tensor, exact: torch.Tensor, rounded: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the difference and the exact values in f64, both with 0 for elements that do not count."""
    out, exact, rounded = (each.detach().double() for each in (out, exact, rounded))
    alike = ~rounded.isfinite() & ((out == rounded) | (out.isnan() & rounded.isnan()))
    return torch.where(alike, 0.0, out - exact), torch.where(exact.isfinite() & ~alike, exact, 0.0)


def ratio(difference: torch.Tensor, exact: torch.Tensor) -> float:
    """Return the ratio of two norms; 0 if both are 0."""
    norm, distance = float(exact.norm()), float(difference.norm())
    return distance / norm if norm else math.inf if distance else 0.0


def error(out: torch.Tensor, exact: torch.Tensor, dtype: DType, columns: int | None = None) -> float:
    """Return the relative error of an output of a type; for truth values, the share that differ.

    ``columns`` is n, which packed bits do not determine; without it the whole last byte counts.
    """
    if out.shape != exact.shape:
        return math.inf
    if dtype.compute != B1:
        return relative_error(out, exact)
    if dtype == B1:
        width = 8 * out.shape[-1] if columns is None else columns
        out, exact = unpack_bits(out, width), unpack_bits(exact, width)
    differ = out != exact.to(out.dtype)
    return float(differ.double().mean()) if differ.numel() else 0.0


def tolerance(output: DType, *, operand: DType | None = None, inside: DType | None = None) -> float:
    """Return the :func:`error` of an output of floats or bits that rounding explains.

    ``operand`` is the type that is multiplied. ``inside`` is a type to which intermediate values are rounded, such as
    the type of a cast, or of an operand with a mainloop fusion.
    """
    if output.compute == B1:
        return _BITS
    within = _ROUNDED[inside] if inside is not None else 0.0
    return math.hypot(_ROUNDED[output], within) + (_MULTIPLIED.get(operand, 0.0) if operand is not None else 0.0)


def distance(
    out: torch.Tensor, exact: torch.Tensor, dtype: DType, *, operand: DType | None = None, inside: DType | None = None
) -> float:
    """Return the error of an output relative to the :func:`tolerance`.

    A few integers may be off by one; an output of floats must be finite.
    """
    if out.shape != exact.shape:
        return math.inf
    truth = dtype.compute == B1
    if truth or dtype.is_float:
        finite = truth or bool(out.double().isfinite().all())
        return error(out, exact, dtype) / tolerance(dtype, operand=operand, inside=inside) if finite else math.inf
    apart = (out.double() - exact.double()).abs()
    return math.inf if float(apart.max()) > 1 else float((apart > 0).double().mean()) / _INTEGERS


def limit(rounded: Iterable[DType], operands: Iterable[DType] = ()) -> float:
    """Return the largest :func:`error` that rounding explains for any formula, by the types that it rounds to."""
    found = [_LIMITS.get(dtype, _COARSEST) for dtype in rounded]
    return max(*found, *(_OF_OPERANDS.get(dtype, _LIMITS.get(dtype, 0.0)) for dtype in operands), 0.0)


def is_quantised(dtype: DType) -> bool:
    """Return whether a type's values are so far apart that results are compared step by step."""
    return not dtype.is_float or dtype.bits == 8


def as_numbers(tensor: torch.Tensor, dtype: DType, columns: int) -> torch.Tensor:
    """Return the values of an output as f64; ``columns`` is n, which packed bits do not determine."""
    if dtype == B1:
        tensor = unpack_bits(tensor, columns)
    # The bytes of truth values are 0 or 1 after they were written.
    return (tensor.view(torch.uint8) if tensor.dtype == torch.bool else tensor).double()


def as_steps(tensor: torch.Tensor, dtype: DType, columns: int) -> torch.Tensor:
    """Return the values of an output as whole numbers, one apart for neighbours in its type.

    ``dtype`` is b1, an integer or an 8-bit float; all its NaNs are one value, far from the others.
    """
    if not dtype.is_float:
        return as_numbers(tensor, dtype, columns).to(torch.int64)
    code = tensor.contiguous().view(torch.uint8).to(torch.int64)
    steps = torch.where(code >= 0x80, -(code & 0x7F), code & 0x7F)
    return torch.where(tensor.float().isnan(), _NAN, steps)
