"""Planning grouped kernels: CUTLASS 3.x on sm90, many problems of one layout in one launch.

Every group has its own extents, addresses and strides: the rows of a table, which the launcher copies to the device.
"""

from __future__ import annotations

from dataclasses import replace

from evt.ir import Input, Output
from evt.plan.epilogue.facts import is_collective
from evt.plan.epilogue.program import EpilogueProgram
from evt.plan.fields import GroupFields
from evt.plan.kernels.draft import Draft, Selection
from evt.plan.kernels.epilogue_3x import Placed
from evt.plan.kernels.gemm import VISITORS_SM90
from evt.plan.kernels.schedulers import raster


def _draft(selection: Selection) -> Draft:
    """Begin a kernel whose tensors are rows of the table: every group has its own, and one batch."""
    draft = Draft(selection, transposed=selection.problem.swaps_operands, batched=False)
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


def _visitors(draft: Draft, placed: Placed) -> EpilogueProgram:
    """Return the steps; CUTLASS has no tensor maps of auxiliary tiles for groups, so tiles are moved directly."""
    draft.take(placed.draft)
    return placed.program


VISITORS_GROUPED = replace(
    VISITORS_SM90,
    family="3x_grouped",
    template="gemm_3x_grouped",
    draft=_draft,
    epilogue=_visitors,
    scheduler=raster,
)
