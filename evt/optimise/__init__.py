"""The optimiser: typed graph to typed graph.

Equal subexpressions are already one node (:class:`evt.ir.Builder` merges them). Rules are exact, to the bit in every
type, except for multiply-adds, recognised activations and means. ``relaxed`` adds the algebra of reals.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from evt.ir import TypedDag, verify
from evt.optimise.casts import casts
from evt.optimise.contract import contract
from evt.optimise.expand_means import expand_means
from evt.optimise.fold import fold
from evt.optimise.integers import integers
from evt.optimise.logic import logic
from evt.optimise.place_casts import place_casts
from evt.optimise.recognise import recognise
from evt.optimise.relax import relax
from evt.optimise.round_as_eager import round_as_eager
from evt.optimise.simplify import simplify

Pass = Callable[[TypedDag], TypedDag]

#: Passes whose results are bitwise equal, in this order:
EXACT: tuple[Pass, ...] = (
    fold,  # constants first: the rules below look for literal 0, 1, 2
    casts,  # then casts that round nothing: they hide operations from each other
    integers,  # the ring of i32, in which more rules hold than for floats
    logic,  # conditions, and selections that they decide
    simplify,  # exact algebra of floats, one canonical form
)
PIPELINE: tuple[Pass, ...] = (
    expand_means,  # first: the sums and quotients are rewritten as any others
    *EXACT,
    recognise,  # expanded activations, found in that form
    simplify,  # rewrites exposed by recognition, e.g. relu(relu(x))
    contract,  # late: multiply-add hides the products that the rules above look for
    place_casts,  # the casts that stores imply; no rule above sees through them
)
#: For numerics="eager": passes that neither add nor remove a rounding.
ROUNDING_KEPT: tuple[Pass, ...] = (expand_means, *EXACT, place_casts)
#: With ``relaxed``.
RELAXED: tuple[Pass, ...] = (
    expand_means,
    *EXACT,
    recognise,  # before the arrangement that it looks for changes
    relax,  # the algebra of reals
    simplify,  # newly exposed constants to fold, one canonical form
    relax,  # newly exposed factors, e.g. scales that are now one factor
    simplify,
    contract,
    place_casts,
)


def optimise(
    dag: TypedDag, passes: Iterable[Pass] | None = None, *, relaxed: bool = False, check: bool = False
) -> TypedDag:
    """Run the passes in order. ``check`` verifies the graph after each; every pass also removes dead nodes.

    Without ``relaxed`` the results equal the input's, except for the roundings that multiply-adds, recognised
    activations and means save.
    """
    for each in passes or (RELAXED if relaxed else PIPELINE):
        dag = each(dag)
        if check:
            verify(dag)
    return dag


__all__ = [
    "EXACT",
    "PIPELINE",
    "RELAXED",
    "ROUNDING_KEPT",
    "Pass",
    "casts",
    "contract",
    "expand_means",
    "fold",
    "integers",
    "logic",
    "optimise",
    "place_casts",
    "recognise",
    "relax",
    "round_as_eager",
    "simplify",
]
