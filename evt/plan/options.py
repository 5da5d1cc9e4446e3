"""Options of a plan: approximations that it may use, and roundings that it must keep."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Options:
    """Numerical options besides the program's meaning.

    ``atomic``: reductions may be combined by atomics, in any order. ``fast_math``: functions may be approximated.
    ``eager``: operations have the bits of PyTorch's CUDA kernels; ``a * b + c`` rounds twice, like two operations.
    ``batch_invariant``: a row of the result does not depend on the number of rows. ``fast_sums``: tensor cores may add
    products of 8-bit floats.
    """

    atomic: bool = False
    fast_math: bool = False
    eager: bool = False
    batch_invariant: bool = False
    fast_sums: bool = False


PLAIN = Options()
