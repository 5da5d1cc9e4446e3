"""Numbers of every type at which conversions differ: all bits of the narrow types, the edges of the others."""

from __future__ import annotations

import struct

import torch

from evt.ir.dtype import BY_NAME, DType

#: The types of tensors, and the narrower types that their edges come from.
SOURCES = tuple(BY_NAME[name] for name in ("f64", "f32", "f16", "bf16", "e4m3", "e5m2", "i32", "i8", "u8"))
TARGETS = (*SOURCES[:2], BY_NAME["tf32"], *SOURCES[2:], BY_NAME["b1"])
_NARROW = tuple(BY_NAME[name] for name in ("tf32", "f16", "bf16", "e4m3", "e5m2"))
_NAN_32 = (0x7FC00000, 0x7FFFFFFF, 0x7F800001, 0x7F80FFFF, 0xFFC00000, 0xFFFFFFFF, 0xFF800001, 0x7FA00000)
_NAN_64 = (
    0x7FF8 << 48,
    0x7FFFFFFFFFFFFFFF,
    (0x7FF0 << 48) + 1,
    0xFFFF << 48,
    0xFFFFFFFFFFFFFFFF,
    (0x7FF0 << 48) + (1 << 29),
)


def patterns(dtype: DType) -> torch.Tensor:
    """Return a vector of numbers of a storage type."""
    memory: torch.dtype = getattr(torch, dtype.torch)
    if dtype.bits <= 16:
        codes = torch.arange(1 << dtype.bits, dtype=torch.int32)
        return codes.to(torch.uint8 if dtype.bits == 8 else torch.int16).view(memory)
    generator = torch.Generator().manual_seed(dtype.bits)
    if dtype.name == "i32":
        powers = torch.tensor([s * 2**k + d for k in range(31) for d in range(-2, 3) for s in (-1, 1)])
        ends = torch.tensor(
            [-(2**31), -(2**31) + 1, 2**31 - 1, 2**31 - 2, 2**31 - 64, 2**31 - 65, 2**24 + 1, 2**24 + 3]
        )
        return torch.cat([powers, ends, torch.randint(-(2**31), 2**31, (3000,), generator=generator)]).to(memory)
    edges = torch.tensor(sorted({edge for narrow in _NARROW for edge in _edges(narrow)}), dtype=torch.float64)
    whole = torch.arange(-600, 600, dtype=torch.float64) / 2  # integers and the halves between them
    ends = torch.tensor([2.0**31 - 1, 2.0**31, -(2.0**31), 2.0**31 - 0.5, -(2.0**31) - 1, 0.49999997, 0.50000006, 1e10])
    values = torch.cat([edges, whole, ends.to(torch.float64), torch.tensor([2.0**-149, 2.0**-150, 2.0**128, 1e300])])
    values = torch.cat([values, -values, torch.tensor([0.0, -0.0, float("inf"), -float("inf")])])
    if dtype.name == "f32":
        bits = torch.randint(-(2**31), 2**31, (6000,), generator=generator).to(torch.int32)
        singles = torch.cat(
            [values.to(torch.float32), _next(values.to(torch.float32), 1), _next(values.to(torch.float32), -1)]
        )
        return torch.cat([singles, bits.view(torch.float32), _bits("<I", "<f", _NAN_32, torch.float32)])
    bits = torch.randint(-(2**63), 2**63 - 1, (6000,), generator=generator)
    near = (torch.rand(6000, generator=generator, dtype=torch.float64) - 0.5) * 2.0 ** torch.randint(
        -150, 130, (6000,), generator=generator
    ).to(torch.float64)
    shifted = torch.cat([values, _next(values, 1), _next(values, -1), values * (1 + 2.0**-25), values * (1 - 2.0**-25)])
    return torch.cat([shifted, bits.view(torch.float64), near, _bits("<Q", "<d", _NAN_64, torch.float64)])


def same_bits(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Return the elements in which two tensors of one dtype have equal bits; all NaN count as one."""
    assert x.dtype == y.dtype
    if not x.dtype.is_floating_point:
        return x == y
    view = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[x.dtype.itemsize]
    wide = torch.float32 if x.dtype.itemsize < 4 else x.dtype
    return (x.contiguous().view(view) == y.contiguous().view(view)) | (x.to(wide).isnan() & y.to(wide).isnan())


def _edges(dtype: DType) -> list[float]:
    """Powers of two, the largest, the least and the neighbours of each, and the middles between these."""
    form = dtype.format
    top = int(torch.tensor(form.largest, dtype=torch.float64).log2().floor())
    found: list[float] = []
    for exponent in {
        *range(form.least_exponent - form.fraction - 2, form.least_exponent + 3),
        *range(-3, 4),
        top - 1,
        top,
    }:
        step = 2.0 ** (max(exponent, form.least_exponent) - form.fraction)
        found += [2.0**exponent + halves * step / 2 for halves in range(-5, 6)]
    step = 2.0 ** (top - form.fraction)
    found += [form.largest + halves * step / 2 for halves in range(-4, 5)]
    if dtype.bits == 8:
        found += [k * 2.0**e for k in range(1, 33) for e in range(form.least_exponent - form.fraction - 1, top - 2)]
    return [value for value in found if value > 0]


def _next(x: torch.Tensor, direction: int) -> torch.Tensor:
    return torch.nextafter(x, torch.full_like(x, direction * float("inf")))


def _bits(pattern: str, number: str, codes: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    integers = torch.int32 if dtype == torch.float32 else torch.int64
    signed = [struct.unpack(pattern.lower(), struct.pack(pattern, code))[0] for code in codes]
    assert struct.calcsize(pattern) == struct.calcsize(number)
    return torch.tensor(signed, dtype=integers).view(dtype)
