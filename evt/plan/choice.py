"""Choosing: the signature of packed tensors, the route, and the configurations of a kernel."""

from __future__ import annotations

from evt.diagnostics import Diagnostic
from evt.errors import TargetError
from evt.ir import Fold, Input, Output, Pick, TypedDag
from evt.ir.node import base
from evt.plan.config import DEFAULTS, Config, config_2x, configs_3x, configs_sm100, configs_sm120
from evt.plan.cost import is_light
from evt.plan.rules import ROUTES, Problem, Route
from evt.plan.signature import Signature, natural_layout, natural_operand_layout


def natural_signature(dag: TypedDag) -> Signature:
    """The signature of packed, aligned tensors in the order of their subscripts, as ``evt emit`` assumes."""
    a, b = (natural_operand_layout(operand.dtype, operand.modes) for operand in dag.operands)
    tensors = []
    values: tuple[Input | Output, ...] = (*dag.inputs, *dag.outputs)
    for value in values:
        if set(map(base, value.modes)) & {"m", "n"}:
            assert value.dtype is not None
            shared = isinstance(value, Input) and "l" not in value.modes and not value.batchable
            tensors.append((value.name, natural_layout(value.dtype, value.modes, "shared" if shared else "strided")))
    return Signature(a, b, tuple(tensors))


def choose_route(problem: Problem, forced: str | None = None) -> Route:
    """The first route whose rules all hold. Raises TargetError (E0502, E0503) with the rules that failed."""
    if forced is not None:
        route = next((route for route in ROUTES if route.name == forced), None)
        if route is None:
            names = ", ".join(route.name for route in ROUTES)
            raise TargetError(Diagnostic("E0501", f"there is no route `{forced}`", help=f"routes: {names}"))
        if failures := route.failures(problem):
            raise TargetError(
                Diagnostic("E0502", f"the route {route.name} cannot compile this program", notes=failures)
            )
        return route
    for route in ROUTES:
        if not route.failures(problem):
            return route
    notes = tuple(f"{route.name}: {reason}" for route in ROUTES for reason in route.failures(problem))
    raise TargetError(Diagnostic("E0503", f"no route compiles this program for {problem.target.name}", notes=notes))


def configs(problem: Problem, route: Route) -> tuple[Config, ...]:
    """The configurations that a kernel of this problem may have, the general one first."""
    dtype = problem.dag.operands[0].dtype
    match problem.target.family(route.family):
        case "3x":
            known = configs_3x(dtype)
        case "sm100":
            known = configs_sm100(dtype, _columns(problem.dag))
        case "sm120":
            known = configs_sm120(dtype)
        case _:
            alignment = min(problem.signature.a.alignment, problem.signature.b.alignment)
            return (config_2x(dtype, alignment),)
    return tuple(config for config in known if config.epilogue_tile[1] % _columns(problem.dag) == 0)


def _columns(dag: TypedDag) -> int:
    """How many columns a 3.x epilogue has to visit together: those of a pair of blocks, or of a block."""
    ops = map(dag.__getitem__, range(len(dag)))
    together = (2 * op.block if isinstance(op, Pick) else op.width for op in ops if isinstance(op, Pick | Fold))
    return max(together, default=1)


def default_configs(problem: Problem, route: Route) -> tuple[Config, ...]:
    """Those of :func:`configs` that are built for every kernel, to choose from by the problem's size."""
    count = DEFAULTS.get(problem.target.family(route.family) or "", 1)
    return configs(problem, route)[: count if is_light(problem.dag) else 1]


def find_config(problem: Problem, route: Route, name: str) -> Config:
    """The configuration of a name. Raises TargetError (E0501) for an unknown one."""
    known = {config.name: config for config in configs(problem, route)}
    if name not in known:
        raise TargetError(
            Diagnostic(
                "E0501",
                f"the route {route.name} has no configuration `{name}`",
                help=f"configurations: {', '.join(known)}",
            )
        )
    return known[name]
