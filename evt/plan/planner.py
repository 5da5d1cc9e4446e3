"""Planning: ``plan(dag, signature, target) -> Plan``. The one stage that knows the target."""

from __future__ import annotations

from evt.diagnostics import Diagnostic
from evt.errors import TargetError
from evt.ir import TypedDag
from evt.plan.choice import choose_route, configs, find_config
from evt.plan.config import Config
from evt.plan.family_2x import Planner2x
from evt.plan.family_3x import Planner3x
from evt.plan.family_conv_2x import PlannerConv2x
from evt.plan.family_conv_3x import PlannerConv3x
from evt.plan.family_conv_stock_2x import PlannerConvStock2x
from evt.plan.family_mainloop import PlannerConvMainloop2x, PlannerMainloop2x
from evt.plan.family_sm100 import PlannerSm100
from evt.plan.family_sm120 import PlannerSm120
from evt.plan.family_stock_2x import PlannerStock2x
from evt.plan.family_stock_3x import PlannerStock3x, PlannerStockSm100, PlannerStockSm120
from evt.plan.options import PLAIN, Options
from evt.plan.plan import Plan
from evt.plan.problem import Problem
from evt.plan.signature import Signature
from evt.plan.target import Family, Target

#: What plans the kernels of a route, by the target's family.
PLANNERS: dict[tuple[str, Family], type[Planner2x | Planner3x]] = {
    ("stock-3x", "3x"): PlannerStock3x,
    ("stock-3x", "sm100"): PlannerStockSm100,
    ("stock-3x", "sm120"): PlannerStockSm120,
    ("evt-3x", "3x"): Planner3x,
    ("evt-3x", "sm100"): PlannerSm100,
    ("evt-3x", "sm120"): PlannerSm120,
    ("stock-2x", "2x"): PlannerStock2x,
    ("evt-2x", "2x"): Planner2x,
    ("conv-evt-3x", "3x"): PlannerConv3x,
    ("conv-stock-2x", "2x"): PlannerConvStock2x,
    ("conv-evt-2x", "2x"): PlannerConv2x,
    ("mainloop-2x", "2x"): PlannerMainloop2x,
    ("conv-mainloop-2x", "2x"): PlannerConvMainloop2x,
}


def plan(
    dag: TypedDag,
    signature: Signature,
    target: Target,
    *,
    route: str | None = None,
    config: Config | str | None = None,
    fused: bool = True,
    options: Options = PLAIN,
) -> Plan:
    """Decide everything about one kernel. Raises TargetError (E0501-E0503) when no route or configuration fits.

    ``fused`` False lowers each operation to its own visitor node instead of one functor per region.
    """
    problem = Problem(dag, signature, target, options)
    chosen = choose_route(problem, route)
    if isinstance(config, str):
        config = find_config(problem, chosen, config)
    elif config is None:
        config = configs(problem, chosen)[0]
    family = target.family(chosen.family)
    assert family is not None
    made = PLANNERS[chosen.name, family](problem, config, fused).plan()
    if made.shared_memory > target.shared_memory:
        message = f"{config.name} needs {made.shared_memory // 1024} KiB of shared memory for this program"
        note = f"a thread block of {target.name} has {target.shared_memory // 1024} KiB"
        raise TargetError(Diagnostic("E0502", message, help="take another configuration", notes=(note,)))
    return made
