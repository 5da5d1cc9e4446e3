"""The epilogue of evt's own kernels, which visits the elements of a thread one after the other: see fragment.hpp.

The kernel itself moves D, and C if both have 16 bits; a product moves all matrices whose rows are aligned, or loads
those beside a D whose rows are not. Threads move other matrices element by element.
"""

from __future__ import annotations

from evt.ir import Input, Output
from evt.ir.convolution import SPATIAL
from evt.ir.dtype import F16
from evt.plan.epilogue.loads import Auxiliary
from evt.plan.epilogue.program import epilogue_program
from evt.plan.epilogue.values import Access
from evt.plan.geometry.halo import SHARED_BYTES, VECTOR
from evt.plan.kernels.draft import Collective, Draft
from evt.plan.kernels.epilogue_3x import tensor
from evt.plan.plan import Tensor
from evt.plan.staged import (
    MOST_STAGED,
    MOST_STAGED_BY_ROWS,
    is_staged,
    is_unaligned,
    staged_by_product,
    unaligned_by_product,
)

#: The elements of 16 bits of a word that a thread stores.
_MOST_STORED = 2


def add_sizes(draft: Draft) -> None:
    """Add the sizes of a convolution to the members of the call."""
    spatial = SPATIAL[-draft.problem.convolution.rank :]
    for name in ("images", *spatial, "channels", "filters"):
        draft.fields.size(name)
    for part in ("filter", "output", "pad", "stride", "dilation"):
        for name in spatial:
            draft.fields.size(f"{part}_{name}")


def stored_by_threads(draft: Draft) -> int:
    """Return the elements that a thread of a halo kernel stores at a time where TMA cannot store D, else 0.

    Groups may begin at any column, and thread blocks that share a tile store D in vectors.
    """
    primary, groups = draft.dag.primary, draft.problem.convolution.group_filters
    if draft.config.schedule == "halo_shared" or groups or not is_unaligned(draft.problem, primary):
        return 0
    return min(draft.signature[primary.name].alignment, _MOST_STORED)


def fragment_epilogue(
    draft: Draft,
    *,
    paired: bool = False,
    is_stored: bool = False,
    is_planar: bool = False,
    has_source: bool = True,
    moves_all: bool = False,
) -> Collective:
    """Return the epilogue of a kernel that takes all shared memory.

    ``paired``: it stores a D of half the columns; ``is_stored``: it stores a D that TMA cannot store, ``is_planar``: in
    planes.
    ``has_source``: it may load C. ``moves_all``: it may move other matrices than C and D, too.
    """
    moved = _moved(draft, is_stored, moves_all and not paired)
    loads = [value for value in moved if isinstance(value, Input)]
    source = loads[0].name if loads and has_source and not paired else None
    c = tensor(draft, source) if source else None
    if paired:
        d: Tensor | None = _pitched(draft, draft.primary, "m")
    elif is_planar:
        d = _pitched(draft, draft.primary, "n")
    else:
        d = tensor(draft, draft.primary) if is_stored or draft.dag.primary in moved else None
    staged = {draft.primary} if d is not None else set[str]()
    if moves_all:
        staged |= {value.name for value in moved}

    def access(step: Auxiliary) -> Access:
        return Access.TILE if step.tensor in staged else Access.DIRECT

    program = epilogue_program(
        draft,
        source=source,
        implicit_store=draft.primary if paired else None,
        fused=draft.selection.fused,
        nested=False,
        uses_functors=False,
        any_stride=True,
        kept_along="mn" if draft.config.schedule == "own_rows" else draft.rows,
    ).with_access(access)
    return Collective(program, program, c, d, d.dtype if d else F16, SHARED_BYTES)


def _pitched(draft: Draft, name: str, mode: str) -> Tensor:
    """Return an output that the kernel stores: row-major with half the columns, or planes, which n counts."""
    layout, pointer, pitch = draft.signature[name], draft.fields.pointer(name), draft.fields.stride(name, mode)
    strides = draft.with_batch(name, pitch, 1, layout.batch == "strided")
    return Tensor(draft.dtype(name), mode == "m", layout.alignment, pointer, strides)


def _moved(draft: Draft, is_stored: bool, moves_all: bool) -> list[Input | Output]:
    """Return the matrices that TMA can move, D first: all that have room in the buffers, or those like C and D."""
    if moves_all:
        by_rows = draft.config.schedule == "own_rows"
        staged = staged_by_product(draft.problem, MOST_STAGED_BY_ROWS if by_rows else MOST_STAGED)
        return staged if staged or by_rows else unaligned_by_product(draft.problem)
    stores = _is_staged(draft, draft.dag.primary)
    found: list[Input | Output] = [draft.dag.primary] * stores
    return found + [value for value in draft.dag.inputs if (is_stored or stores) and _is_staged(draft, value)]


def _is_staged(draft: Draft, value: Input | Output) -> bool:
    return is_staged(draft.problem, value) and not _is_cut(draft) and draft.config.schedule not in ("gemv", "gemv_rows")


def _is_cut(draft: Draft) -> bool:
    """Return whether a tile lies in a group whose columns are no multiples of TMA's 16 bytes."""
    if draft.selection.config.schedule not in ("halo_group", "halo_words"):
        return False
    shape = draft.problem.convolution
    columns = shape.group_channels if shape.operator == "dgrad" else shape.group_filters
    return columns % VECTOR > 0
