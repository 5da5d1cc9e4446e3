"""The library's time for convolutions of unaligned pixels: ``library_microseconds(sizes)``.

Pixels of the input or of the result are no multiples of 16 bytes. The library takes tiles of 64 filters at least. It
copies unaligned pixels, but not always a few megabytes of them. Fitted as a lower bound to 68 layers of 9 to 256
channels and 1 to 128 filters with several taps or a stride, in f16 on an H100, and 4 on an H200, 2026-11.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from evt.plan.geometry.convolution import ceil_div

#: The filters of the library's narrowest tile.
_FILTERS = 64
#: By elements that divide the channels: the microseconds of a launch, the bytes of the input and the result that may
#: stay uncopied, and the microseconds of each further byte.
_COPIED = {8: (16.0, 0, 0.0), 4: (12.5, 7e6, 2.0e-6), 2: (16.0, 0, 2.0e-6), 1: (21.0, 0, 2.0e-6)}
#: Multiply-adds in a microsecond.
_MULTIPLIED = 2.3e8


def library_microseconds(sizes: Mapping[str, int]) -> float:
    """Return the least estimated time of the library's kernels for operands of 16 bits on an H100."""
    images, channels, filters = (sizes[name] for name in ("images", "channels", "filters"))
    spatial = [name.removeprefix("filter_") for name in sizes if name.startswith("filter_")]
    inputs, outputs, taps = (prod(sizes[f"{part}{name}"] for name in spatial) for part in ("", "output_", "filter_"))
    start, kept, each = next(cost for elements, cost in _COPIED.items() if channels % elements == 0)
    multiplied = images * outputs * ceil_div(filters, _FILTERS) * _FILTERS * channels * taps
    moved = 2 * images * (inputs * channels + outputs * filters)
    return start + max(0.0, moved - kept) * each + multiplied / _MULTIPLIED
