"""Planning: ``plan(dag, signature, target) -> Plan``. The one stage that knows the target."""

from __future__ import annotations

from evt.ir import TypedDag
from evt.plan.choice import choose_route, configs, find_config
from evt.plan.config import Config
from evt.plan.family_2x import Planner2x
from evt.plan.family_3x import Planner3x
from evt.plan.plan import Plan
from evt.plan.rules import Problem
from evt.plan.signature import Signature
from evt.plan.target import Target


def plan(
    dag: TypedDag,
    signature: Signature,
    target: Target,
    *,
    route: str | None = None,
    config: Config | str | None = None,
    fused: bool = True,
) -> Plan:
    """Decide everything about one kernel. Raises TargetError (E0501-E0503) when no route or configuration fits.

    ``fused`` False lowers each operation to its own visitor node instead of one functor per region.
    """
    problem = Problem(dag, signature, target)
    chosen = choose_route(problem, route)
    if isinstance(config, str):
        config = find_config(problem, chosen, config)
    elif config is None:
        config = configs(problem, chosen)[0]
    planner = Planner3x if chosen.family == "3x" else Planner2x
    return planner(problem, config, fused).plan()
