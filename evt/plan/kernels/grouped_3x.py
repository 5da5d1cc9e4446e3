"""Planning grouped kernels: CUTLASS 3.x on sm90, many problems of one layout in one launch.

Every group has its own extents, addresses and strides: the rows of a table, which the launcher copies to the device.
"""

from __future__ import annotations

from dataclasses import replace

from evt.diagnostics import Diagnostic, hint
from evt.errors import TargetError
from evt.ir import Index, Input, Output, Random, Reduce, TypedDag
from evt.ir.dtype import DType
from evt.plan.configurations.choice import visits_together
from evt.plan.configurations.config import Config
from evt.plan.epilogue.visitors import Graph, is_collective
from evt.plan.fields import GroupFields
from evt.plan.kernels.draft import Draft, Request
from evt.plan.kernels.gemm import VISITORS_SM90
from evt.plan.kernels.memory import Budget, exceeded_memory
from evt.plan.kernels.nodes import NodesGrouped
from evt.plan.kernels.schedulers import raster
from evt.plan.options import PLAIN, Options
from evt.plan.plan import GroupedPlan, Visitors
from evt.plan.problem import Problem, Route, Rule
from evt.plan.routes.table import ROUTES
from evt.plan.signature import Signature
from evt.plan.target import Target


def configs_grouped(operand: DType) -> tuple[Config, ...]:
    """Return the configurations of a grouped kernel, the default first.

    8-bit floats are summed in two sets of accumulators, for which the larger tiles have no registers.
    """
    k = 1024 // operand.bits
    pingpong = Config((128, 128, k), "pingpong", (1, 2, 1), (64, 64), stages_c=2, stages_d=1, reuse_c=True)
    small = replace(pingpong, tile=(64, 128, k), cluster=(1, 1, 1))
    cooperative = Config((128, 128, k), "cooperative", (1, 1, 1), (128, 32), stages_c=4, stages_d=2, reuse_c=True)
    if operand.is_float and operand.bits == 8:
        return cooperative, small, replace(cooperative, cluster=(1, 2, 1)), replace(small, cluster=(1, 2, 1))
    return (
        pingpong,
        replace(pingpong, cluster=(1, 1, 1)),
        replace(pingpong, cluster=(2, 1, 1)),
        small,
        replace(cooperative, tile=(128, 256, k), cluster=(2, 1, 1)),
        replace(cooperative, tile=(256, 128, k), cluster=(1, 2, 1)),
        cooperative,
    )


def _target(problem: Problem) -> str | None:
    name = problem.target.name
    return None if name == "sm90" else f"CUTLASS has grouped kernels with visitors for sm90, not for {name}"


def _operands(problem: Problem) -> str | None:
    for operand, layout in zip(problem.dag.operands, (problem.signature.a, problem.signature.b), strict=True):
        if problem.operand_bytes == 4 and layout.contiguous != "k":
            given = f"`{operand.name}` is contiguous along {layout.contiguous}"
            return f"f32 operands must be contiguous along k, and {given}"
    return None


def _nodes(problem: Problem) -> str | None:
    dag = problem.dag
    for node in range(len(dag)):
        match dag[node]:
            case Reduce():
                return "a reduction would be over each group, and its parts have no place in a grouped kernel"
            case Random():
                return "random numbers are counted over one problem"
            case Index("l"):
                return "a group has no batches: `iota(l)`"
    values: tuple[Input | Output, ...] = (*dag.inputs, *dag.outputs)
    batched = next((value.name for value in values if "l" in value.modes), None)
    return f"a group has no batches: `{batched}` has the mode l" if batched else None


#: The 3.x route's rules hold for every group, and some more.
ROUTE = Route(
    "evt-3x-grouped",
    "evt",
    "3x_grouped",
    "visitor tree in a grouped TMA warp-specialised persistent kernel (CUTLASS 3.x)",
    (
        Rule("the target has grouped kernels with visitors", _target),
        *next(route for route in ROUTES if route.name == "evt-3x").rules,
        Rule("operands need no transposition", _operands),
        Rule("nodes read and write one tensor of each group", _nodes),
    ),
)


def plan_grouped(
    dag: TypedDag,
    signature: Signature,
    target: Target,
    *,
    config: str | None = None,
    options: Options = PLAIN,
) -> GroupedPlan:
    """Decide everything about one grouped kernel; ``signature`` has the layouts that all groups have in common.

    Raises TargetError: E0503 when a rule of :data:`ROUTE` fails or no configuration fits, E0501 for an unknown one.
    """
    problem = Problem(dag, signature, target, options)
    reasons = ROUTE.failures(problem)
    for each in () if reasons else _find_configs(dag, config):
        made = VISITORS_GROUPED(Request(problem, ROUTE.name, each))
        assert isinstance(made, GroupedPlan)
        exceeded = exceeded_memory(made)
        if not exceeded:
            return made
        reasons = (*reasons, exceeded)
    message = f"no grouped kernel compiles this program for {target.name}"
    raise TargetError(Diagnostic("E0503", message, help='route="loop" launches a kernel for each group', notes=reasons))


def _find_configs(dag: TypedDag, name: str | None) -> list[Config]:
    """The configurations that serve a program, or the one of a name. Raises TargetError (E0501) for no such one."""
    known = [each for each in configs_grouped(dag.operands[0].dtype) if visits_together(each, dag)]
    found = [each for each in known if name in (None, each.name)]
    if not found:
        message = f"the route {ROUTE.name} has no configuration `{name}` for this program"
        help_text = hint(name or "", [each.name for each in known], "configurations")
        raise TargetError(Diagnostic("E0501", message, help=help_text))
    return found


def _draft(request: Request) -> Draft:
    """Begin a kernel whose tensors are rows of the table: every group has its own, and one batch."""
    draft = Draft(request, transposed=request.problem.swaps_operands, batched=False)
    draft.fields = GroupFields(draft.names)
    values: tuple[Input | Output, ...] = (*draft.dag.inputs, *draft.dag.outputs)
    alone = {value.name for value in values if value.is_tile and not is_collective(value)}
    draft.signature = replace(
        draft.signature,
        tensors=tuple(
            (name, replace(layout, batch="shared" if name in alone else "strided"))
            for name, layout in draft.signature.tensors
        ),
    )
    return draft


def _visitors(draft: Draft, graph: Graph, budget: Budget) -> Visitors:
    return Visitors(NodesGrouped(draft, budget).make(graph), graph.tree)


VISITORS_GROUPED = replace(
    VISITORS_SM90,
    family="3x_grouped",
    template="gemm_3x_grouped",
    draft=_draft,
    epilogue=_visitors,
    scheduler=raster,
)
