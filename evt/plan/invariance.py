"""Whether a kernel's rows depend on the number of rows: ``accumulation(problem, plan) -> Accumulation | Refusal``.

A row of the result depends on its row of A, on B, and on the order in which the kernel sums over k. The sizes of a call
choose among kernels, so all of them must have one order. The instruction sums a few elements at a
time. Every CTA adds the k-blocks in ascending order. A single CTA sums a whole tile.
"""

from __future__ import annotations

from dataclasses import dataclass

from evt.ir import Extent, Random, Reduce, ReduceBlocks, TypedDag
from evt.plan.gemm import ProductClass
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

    ``promoted`` is the number of k after which partial sums are added in f32, else 0. ``tile`` is the
    configuration of a kernel that sums over blocks of columns.
    """

    instruction: str
    promoted: int = 0
    tile: str = ""

    def __str__(self) -> str:
        parts = [f"{self.instruction} adds k-blocks in ascending order, and one CTA sums a whole tile"]
        parts += [f"partial sums of {self.promoted} elements are added in f32"] if self.promoted else []
        parts += [f"sums over blocks of columns have the order of {self.tile}"] if self.tile else []
        return "; ".join(parts)


def accumulation(problem: Problem, plan: Plan) -> Accumulation | Refusal:
    """Return the order of a kernel's sums, or why its rows depend on the number of rows."""
    if (refusal := _of_program(problem.dag)) is not None:
        return refusal
    loop = plan.mainloop
    if problem.shape != "gemm" or not isinstance(loop, MatrixProduct) or plan.family not in _INSTRUCTIONS:
        return Refusal("the order of sums is proved for matrix products only: other kernels tile by their sizes")
    if isinstance(loop, OwnProduct) and plan.config.cluster[2] > 1:
        return Refusal(f"{plan.config.name} shares the k of a tile among thread blocks")
    operand = problem.dag.operands[0].dtype
    fast = isinstance(loop, OwnProduct) and problem.options.fast_sums
    scaled = any(each.role == "factor" for each in plan.factors)
    promoted = plan.config.tile[2] if ProductClass(operand, scaled=scaled, fast_sums=fast).promoted else 0
    return Accumulation(_INSTRUCTIONS[plan.family], promoted, plan.config.name if _sums_blocks(problem.dag) else "")


def _of_program(dag: TypedDag) -> Refusal | None:
    """Return why the rows of a program depend on the number of rows in every kernel."""
    for node, (op, _) in enumerate(dag.table):
        if isinstance(op, Reduce) and op.kind not in _ORDERLESS:
            if op.over & {"l", "m"}:
                return Refusal("a sum over rows has an order that depends on their number", node)
            # finish.hpp combines the parts of few rows by blocks, of many by warps, and of one as a scalar.
            return Refusal(
                "the parts of a sum over columns are added in an order that depends on the number of rows", node
            )
        if isinstance(op, Extent) and op.mode in ("l", "m"):
            return Refusal(f"it reads size({op.mode})", node)
        if isinstance(op, Random):
            return Refusal("its random numbers depend on the place among all rows", node)
    return None


def _sums_blocks(dag: TypedDag) -> bool:
    return any(isinstance(op, ReduceBlocks) and op.kind not in _ORDERLESS for op, _ in dag.table)


__all__ = ["Accumulation", "accumulation"]
