"""Whether a kernel's rows depend on the number of rows: ``accumulation(problem, plan) -> Accumulation | Refusal``.

A row of the result depends on its row of A, on B, and on the order in which the kernel sums over k. The sizes of a call
choose among kernels, so all of them must have one order. The instruction sums a few elements at a
time. Every CTA adds the k-blocks in ascending order. A single CTA sums a whole tile.

The layouts of a call choose among kernels, too. That of a single row is the layout of several, and matrices whose
alignment depends on the number of rows are refused.

A sum over columns has a part for each tile or strip of columns. The lanes of a row have one order at every place of a
tile. ``InOneOrder`` of finish.hpp adds the parts of a row in an order of their number.
"""

from __future__ import annotations

from dataclasses import dataclass

from evt.ir import Extent, Random, Reduce, ReduceBlocks, TypedDag
from evt.ir.node import MOMENTS
from evt.plan.gemm import FEW_ROWS, ProductClass
from evt.plan.gemv import Gemv
from evt.plan.halo import STRIP
from evt.plan.plan import MatrixProduct, OwnProduct, Plan
from evt.plan.problem import Problem
from evt.plan.verdict import Refusal

#: Reductions whose result does not depend on the order.
_ORDERLESS = ("max", "min", "argmax", "argmin")
#: The instruction of a family's tensor cores.
_INSTRUCTIONS = {"2x": "mma.sync", "3x": "wgmma", "own": "wgmma", "sm100": "tcgen05.mma", "sm120": "mma.sync"}


@dataclass(frozen=True, slots=True)
class Accumulation:
    """The order in which a kernel sums: kernels of equal orders compute equal bits.

    ``promoted`` is the number of k after which partial sums are added in f32, else 0. A sum over columns, if there
    is one, has a part for each of ``parts``.
    """

    instruction: str
    promoted: int = 0
    parts: str = ""

    def __str__(self) -> str:
        parts = [f"{self.instruction} adds k-blocks in ascending order, and one CTA sums a whole tile"]
        parts += [f"partial sums of {self.promoted} elements are added in f32"] if self.promoted else []
        if self.parts:
            parts.append(f"a sum over columns has a part for each {self.parts}, added in an order of their number")
        return "; ".join(parts)


def accumulation(problem: Problem, plan: Plan) -> Accumulation | Refusal:
    """Return the order of a kernel's sums, or why its rows depend on the number of rows."""
    refusal = _of_program(problem.dag) or _of_layouts(problem)
    if refusal is not None:
        return refusal
    loop = plan.mainloop
    if problem.shape != "gemm" or not isinstance(loop, MatrixProduct) or plan.family not in _INSTRUCTIONS:
        return Refusal("the order of sums is proved for matrix products only: other kernels tile by their sizes")
    if isinstance(loop, Gemv) or (isinstance(loop, OwnProduct) and plan.config.cluster[2] > 1):
        return Refusal(f"{plan.config.name} shares the k of a tile among thread blocks")
    if plan.family in ("3x", "sm120") and (node := _moments(problem.dag)) is not None:
        return Refusal(
            "the lanes of a row merge its moments in an order each, and its place says which lane stores", node
        )
    operand = problem.dag.operands[0].dtype
    fast = isinstance(loop, OwnProduct) and problem.options.fast_sums
    scaled = any(each.role == "factor" for each in plan.factors)
    promoted = plan.config.tile[2] if ProductClass(operand, scaled=scaled, fast_sums=fast).promoted else 0
    parts = ""
    if _sums_columns(problem.dag):
        # A warp of the own kernel sums a strip, and the strips of all tiles are the same.
        parts = f"strip of {STRIP} columns" if isinstance(loop, OwnProduct) else f"tile of {plan.config.name}"
    by_warps = isinstance(loop, OwnProduct) and loop.converts and plan.config.tile[0] <= FEW_ROWS
    return Accumulation("mma.sync" if by_warps else _INSTRUCTIONS[plan.family], promoted, parts)


def _of_program(dag: TypedDag) -> Refusal | None:
    """Return why the rows of a program depend on the number of rows in every kernel."""
    for node, (op, _) in enumerate(dag.table):
        if isinstance(op, Reduce) and op.kind not in _ORDERLESS and op.over & {"l", "m"}:
            return Refusal("a sum over rows has an order that depends on their number", node)
        if isinstance(op, Extent) and op.mode in ("l", "m"):
            return Refusal(f"it reads size({op.mode})", node)
        if isinstance(op, Random):
            return Refusal("its random numbers depend on the place among all rows", node)
    return None


def _of_layouts(problem: Problem) -> Refusal | None:
    """Return why the number of rows decides the alignment of a matrix, and with it the instruction that multiplies."""
    dag, signature = problem.dag, problem.signature
    for name, layout in (("A", signature.a), *signature.tensors):
        value = dag.input.get(name) or dag.output.get(name)
        if layout.contiguous == "m" and (value is None or not {*value.modes} <= {"l", "m"}):
            return Refusal(f"the rows of `{name}` are neighbours in memory, so its alignment depends on their number")
    return None


def _moments(dag: TypedDag) -> int | None:
    """Return a mean or variance over all columns whose parts are moments."""
    return next((node for node, (op, _) in enumerate(dag.table) if isinstance(op, Reduce) and op.kind in MOMENTS), None)


def _sums_columns(dag: TypedDag) -> bool:
    return any(isinstance(op, Reduce | ReduceBlocks) and op.kind not in _ORDERLESS for op, _ in dag.table)


__all__ = ["Accumulation", "accumulation"]
