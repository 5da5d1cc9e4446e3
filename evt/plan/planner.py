"""Planning: ``plan(dag, signature, target) -> Plan``. The one stage that knows the target."""

from __future__ import annotations

from evt.diagnostics import Diagnostic
from evt.errors import TargetError
from evt.ir import TypedDag
from evt.plan.configurations.choice import configs, default_configs, find_config
from evt.plan.configurations.config import Config
from evt.plan.kernels import convolution, gemm
from evt.plan.kernels.draft import Request
from evt.plan.kernels.kernel import Planner
from evt.plan.kernels.memory import exceeded_memory
from evt.plan.options import PLAIN, Options
from evt.plan.plan import Plan
from evt.plan.problem import Problem, Route
from evt.plan.routes.table import find_route, find_routes
from evt.plan.signature import Signature
from evt.plan.target import Family, Target

#: What plans the kernels of a route, by the target's family.
PLANNERS: dict[tuple[str, Family], Planner] = {
    ("stock-3x", "3x"): gemm.STOCK_SM90,
    ("stock-3x", "sm100"): gemm.STOCK_SM100,
    ("stock-3x", "sm120"): gemm.STOCK_SM120,
    ("evt-3x", "3x"): gemm.VISITORS_SM90,
    ("evt-3x", "sm100"): gemm.VISITORS_SM100,
    ("evt-3x", "sm120"): gemm.VISITORS_SM120,
    ("stock-2x", "2x"): gemm.STOCK_2X,
    ("evt-2x", "2x"): gemm.VISITORS_2X,
    ("conv-padded-3x", "3x"): convolution.PADDED_3X,
    ("conv-evt-3x", "3x"): convolution.VISITORS_3X,
    ("conv-stock-2x", "2x"): convolution.STOCK_2X,
    ("conv-evt-2x", "2x"): convolution.VISITORS_2X,
    ("mainloop-2x", "2x"): gemm.WORKED_2X,
    ("conv-mainloop-2x", "2x"): convolution.WORKED_2X,
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
    """Decide everything about one kernel, of the first route that has one; ``route`` names a route, or a kind of them.

    A route has a kernel when its rules all hold and one of its configurations fits in shared memory. ``fused`` False
    lowers each operation to its own visitor node instead of one functor per region.

    Raises TargetError: E0501 for an unknown route or configuration, E0502 when the one that is asked for cannot
    compile the program, E0503 when none can.
    """
    problem = Problem(dag, signature, target, options)
    routes = find_routes(problem, route)
    refusals: list[tuple[Route, tuple[str, ...]]] = []
    for each in routes:
        made = each.failures(problem) or _plan_route(problem, each, config, fused)
        if isinstance(made, Plan):
            return made
        refusals.append((each, made))
    if len(routes) == 1:
        message = f"the route {routes[0].name} cannot compile this program"
        raise TargetError(Diagnostic("E0502", message, notes=refusals[0][1]))
    what = "no route" if route is None else f"no {route} route"
    notes = tuple(f"{each.name}: {reason}" for each, reasons in refusals for reason in reasons)
    raise TargetError(Diagnostic("E0503", f"{what} compiles this program for {target.name}", notes=notes))


def plan_defaults(problem: Problem, route: str | None = None, config: str | None = None) -> tuple[Plan, ...]:
    """The plans of the configurations that a kernel is built in, the general one first: see :func:`plan`."""
    general = plan(problem.dag, problem.signature, problem.target, route=route, config=config, options=problem.options)
    if config is not None:
        return (general,)
    chosen = find_route(general.route)
    others = (each for each in default_configs(problem, chosen) if each != general.config)
    made = (_plan_config(problem, chosen, each) for each in others)
    return general, *(each for each in made if isinstance(each, Plan))


def _plan_route(problem: Problem, route: Route, config: Config | str | None, fused: bool) -> Plan | tuple[str, ...]:
    """The plan of the first configuration that fits, or why none does. Raises TargetError (E0501, E0502)."""
    if config is not None:
        known = find_config(problem, route, config) if isinstance(config, str) else config
        made = _plan_config(problem, route, known, fused)
        if isinstance(made, Plan):
            return made
        raise TargetError(Diagnostic("E0502", made, help="take another configuration"))
    reasons = []
    for each in configs(problem, route):
        made = _plan_config(problem, route, each, fused)
        if isinstance(made, Plan):
            return made
        reasons.append(made)
    return tuple(reasons)


def _plan_config(problem: Problem, route: Route, config: Config, fused: bool = True) -> Plan | str:
    """The plan of a configuration, or why it does not fit."""
    family = problem.target.family(route.family)
    assert family is not None
    made = PLANNERS[route.name, family](Request(problem, route.name, config, fused))
    return exceeded_memory(made) or made
