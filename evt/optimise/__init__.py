"""Optimiser: typed graph to typed graph, exact rules only.

Equal subexpressions are already one node (:class:`evt.ir.Builder` merges them). The order of the passes:
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from evt.ir import TypedDag, verify
from evt.optimise.contract import contract
from evt.optimise.fold import fold
from evt.optimise.recognise import recognise
from evt.optimise.simplify import simplify

Pass = Callable[[TypedDag], TypedDag]

PIPELINE: tuple[Pass, ...] = (
    fold,  # constants first: the rules below look for literal 0, 1, 2
    simplify,  # exact algebra, one canonical form
    recognise,  # activations written out by hand, found in that form
    simplify,  # what recognition exposed, e.g. relu(relu(x))
    contract,  # last: multiply-add hides the products that the rules above look for
)


def optimise(dag: TypedDag, passes: Iterable[Pass] = PIPELINE, *, check: bool = False) -> TypedDag:
    """Run the passes in order. ``check`` verifies the graph after each; every pass also removes dead nodes.

    Results are the same as the input's up to the rounding that multiply-add contraction saves.
    """
    for each in passes:
        dag = each(dag)
        if check:
            verify(dag)
    return dag


__all__ = ["PIPELINE", "Pass", "contract", "fold", "optimise", "recognise", "simplify"]
