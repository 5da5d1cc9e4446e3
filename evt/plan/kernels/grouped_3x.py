"""Planning grouped kernels: CUTLASS 3.x on sm90, many problems of one layout in one launch.

Every group has its own extents, addresses and strides: the rows of a table, which the launcher copies to the device.
"""

from __future__ import annotations

from dataclasses import fields, replace

from evt.ir import Input, Output
from evt.plan.epilogue.visitors import Graph, is_collective
from evt.plan.fields import GroupFields
from evt.plan.kernels.draft import Draft, Frame, Request
from evt.plan.kernels.epilogue_3x import collective, has_batches
from evt.plan.kernels.matrices import matrix_product
from evt.plan.kernels.memory import Budget, Space, least_stages
from evt.plan.kernels.nodes import NodesGrouped
from evt.plan.kernels.schedulers import raster
from evt.plan.plan import GroupedPlan, Plan, Visitors


def gemm_grouped(request: Request) -> GroupedPlan:
    """A grouped kernel: what belongs to a tensor is a row of its table."""
    draft = Draft(request, transposed=request.problem.swaps_operands, batched=False)
    members = draft.fields = GroupFields(draft.names)
    values: tuple[Input | Output, ...] = (*draft.dag.inputs, *draft.dag.outputs)
    alone = {value.name for value in values if value.is_tile and not is_collective(value)}
    draft.signature = replace(  # every group has its own tensors, and one batch
        draft.signature,
        tensors=tuple(
            (name, replace(layout, batch="shared" if name in alone else "strided"))
            for name, layout in draft.signature.tensors
        ),
    )
    limit = request.problem.target.shared_memory
    mainloop = matrix_product(draft)
    epilogue = collective(draft, Space(limit, least_stages(draft)), _visitors, has_batches(draft))
    raster(draft)
    made = draft.finish(Frame("3x_grouped", "gemm_3x_grouped", 90, limit), mainloop, epilogue)
    known = {field.name: getattr(made, field.name) for field in fields(Plan)}
    return GroupedPlan(**known, group_fields=members.rows)


def _visitors(draft: Draft, graph: Graph, budget: Budget) -> Visitors:
    return Visitors(NodesGrouped(draft, budget).make(graph), graph.tree)
