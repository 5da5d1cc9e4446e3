"""The times of norms and of reductions: in the epilogue of an own kernel, and by kernels of Inductor's.

Constants are microseconds, and microseconds per element, on an H100.
"""

from __future__ import annotations

from collections.abc import Iterable

from evt.ir import Reduce, TypedDag
from evt.ir.node import MOMENTS
from evt.plan.epilogue.facts import shared_parts

_Line = tuple[float, float]
#: Inductor's kernels for norms, and for their statistics alone. The GEMM kernel's time for sums and for moments of each
#: row of its result; its time per element for a row factor, and for a factor and a correction. Fitted to 7 sizes of 16
#: to 12608 rows, 2026-11.
_NORM_KERNEL, _STATISTICS_KERNEL = (6.5, 1.5e-6), (6.2, 1.05e-6)
_ROW_SUMS, _ROW_MOMENTS, _ROW_FACTOR, _CORRECTION = (2.0, 0.65e-6), (2.5, 1.4e-6), 1e-7, 3e-7
#: Inductor's kernels for the statistics of a group norm, and the moments in a convolution's epilogue. From 13 residual
#: blocks of VAEs and U-Nets, 0.5 to 34 million elements, 2026-11.
_GROUP_KERNELS, _GROUP_MOMENTS = (8.0, 2.4e-6), (6.0, 2e-7)
#: Inductor's kernels for the moments of a batch norm's columns, and the moments in a convolution's epilogue, with the
#: microseconds of each column. From 33 layers of resnet50 with 128 images and of resnet18 with 64, 2026-11.
_COLUMN_KERNELS, _COLUMN_MOMENTS, _COLUMN = (7.5, 7.8e-7), (6.0, 5e-7), 9e-3
#: Sums over pixels, which were not measured without a further matrix; and over the rows of a product, beyond its
#: estimate, which counts the instructions: 1.3 to 3.2 us in small ones of seven sizes on an H200, 2026-11-28.
_PIXEL_SUMS, _COLUMN_SUMS = (0.0, 1e-6), (3.0, 0.0)


def reductions(dag: TypedDag) -> list[Reduce]:
    """Return the reductions of a program whose parts differ: a mean and a variance of one value share theirs."""
    nodes = (node for node in range(len(dag)) if isinstance(dag[node], Reduce))
    found = (dag[node] for node in sorted({shared_parts(dag, node) for node in nodes}))
    return [op for op in found if isinstance(op, Reduce)]


def in_epilogue(op: Reduce, elements: int, columns: int, *, convolved: bool) -> float:
    """Return the microseconds of a reduction of ``columns`` in the epilogue of an own kernel, perhaps a convolution."""
    if _of_groups(op):
        return _line(_GROUP_MOMENTS, elements)
    if op.kind not in MOMENTS:
        return _line(_ROW_SUMS if _of_rows(op) else _PIXEL_SUMS if convolved else _COLUMN_SUMS, elements)
    return _line(_ROW_MOMENTS, elements) if _of_rows(op) else _line(_COLUMN_MOMENTS, elements) + columns * _COLUMN


def by_inductor(ops: Iterable[Reduce], elements: int, read: bool) -> float | None:
    """Return the microseconds of Inductor's separate kernels for reductions, or None without such a kernel.

    ``read``: another kernel of Inductor reads the rows, and reduces them too.
    """
    if any(map(_of_groups, ops := list(ops))):
        return _line(_GROUP_KERNELS, elements)
    if any(op.kind in MOMENTS and op.over == {"m"} for op in ops):
        return _line(_COLUMN_KERNELS, elements)
    return _line(_STATISTICS_KERNEL, elements) if not read and any(map(_of_rows, ops)) else None


def norm_saves(elements: int, results: int, *, has_mean: bool, is_made: bool) -> float:
    """Return the microseconds that a norm of ``elements`` saves in products with ``results``.

    ``has_mean``: it subtracts a mean. ``is_made``: a product gives its statistics.
    """
    statistics = (_ROW_MOMENTS if has_mean else _ROW_SUMS) if is_made else _STATISTICS_KERNEL
    applied = results * (_CORRECTION if has_mean else _ROW_FACTOR)
    return _line(_NORM_KERNEL, elements) - _line(statistics, elements) - applied


def _of_rows(op: Reduce) -> bool:
    """Return whether a reduction has a result for each row."""
    return op.over == {"n"}


def _of_groups(op: Reduce) -> bool:
    """Return whether a reduction is of the moments of groups of columns, of each image, as in a group norm."""
    return op.kind in MOMENTS and op.over == {"m", "n"}


def _line(constants: _Line, elements: int) -> float:
    return constants[0] + constants[1] * elements
