"""The functions of an own kernel without branches: ``straight_functions(mainloop, config, operand_bits)``.

Branches make the elements of a thread follow one another. f64 rounds quotients without branches, but keeps the tensor
cores of sm90 from products. Two updates of 15 products in 101 kernels on an H200 (2026-11-30): in tiles of at most 96
sums in a thread it takes 0.93 of the time with branches (0.64 to 1.02), in the others 0.89 to 1.11.
"""

from __future__ import annotations

from evt.plan import gemm
from evt.plan.configurations.config import Config
from evt.plan.plan import Mainloop, OwnProduct

#: The quotients, and the most sums of a thread with quotients in f64.
_QUOTIENTS, _MOST_SUMS = frozenset({"div", "rcp"}), 96
#: The functions without branches in all kernels for sm90.
_STRAIGHT = frozenset({"sqrt"})


def divides_in_f64(mainloop: Mainloop, config: Config, operand_bits: int) -> bool:
    """Return whether a kernel computes quotients of f32 in f64."""
    return isinstance(mainloop, OwnProduct) and gemm.tile_of(config, operand_bits // 8).sums <= _MOST_SUMS


def straight_functions(mainloop: Mainloop, config: Config, operand_bits: int) -> frozenset[str]:
    """Return the functions that an own kernel computes without branches."""
    return _STRAIGHT | (_QUOTIENTS if divides_in_f64(mainloop, config, operand_bits) else frozenset())
