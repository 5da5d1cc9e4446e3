"""The epilogue of evt's own kernels, which visits the elements of a thread one after the other: see fragment.hpp.

The kernel itself moves C and D, both of 16 bits. Threads move other matrices element by element.
"""

from __future__ import annotations

from evt.ir.convolution import SPATIAL
from evt.ir.dtype import BF16, F16
from evt.plan.epilogue.facts import is_collective
from evt.plan.epilogue.loads import Auxiliary
from evt.plan.epilogue.program import epilogue_program
from evt.plan.epilogue.values import Access
from evt.plan.geometry.halo import SHARED_BYTES, VECTOR
from evt.plan.kernels.draft import Collective, Draft
from evt.plan.kernels.epilogue_3x import tensor
from evt.plan.kernels.memory import is_tma

#: Types of C and D that a kernel moves: their elements have the size of the buffer that TMA uses.
_STAGED = (F16, BF16)


def add_sizes(draft: Draft) -> None:
    """Add the sizes of a convolution to the members of the call."""
    spatial = SPATIAL[-draft.problem.convolution.rank :]
    for name in ("images", *spatial, "channels", "filters"):
        draft.fields.size(name)
    for part in ("filter", "output", "pad", "stride", "dilation"):
        for name in spatial:
            draft.fields.size(f"{part}_{name}")


def fragment_epilogue(draft: Draft) -> Collective:
    """Return the epilogue of a kernel that takes all shared memory."""
    source = _source(draft)
    c = tensor(draft, source) if source else None
    d = tensor(draft, draft.primary) if _is_staged(draft, draft.primary) else None

    def access(step: Auxiliary) -> Access:
        return Access.TILE if d is not None and step.tensor == draft.primary else Access.DIRECT

    program = epilogue_program(
        draft, source=source, fused=draft.selection.fused, nested=False, uses_functors=False, any_stride=True
    ).with_access(access)
    return Collective(program, program, c, d, d.dtype if d else F16, SHARED_BYTES)


def _source(draft: Draft) -> str | None:
    """Return the input that the kernel loads as C: the first one possible, if the kernel stores D."""
    if not _is_staged(draft, draft.primary):
        return None
    return next((value.name for value in draft.dag.inputs if _is_staged(draft, value.name)), None)


def _is_staged(draft: Draft, name: str) -> bool:
    """Return whether the kernel can move a matrix, by TMA or in words of two columns."""
    value = draft.value(name)
    if value.dtype not in _STAGED or not is_collective(value):
        return False
    layout = draft.signature[name]
    return layout.contiguous == "n" and is_tma(draft, name, layout) and not _is_cut(draft)


def _is_cut(draft: Draft) -> bool:
    """Return whether a tile lies in a group whose columns are no multiples of TMA's 16 bytes."""
    if draft.selection.config.schedule not in ("halo_group", "halo_words"):
        return False
    shape = draft.problem.convolution
    columns = shape.group_channels if shape.operator == "dgrad" else shape.group_filters
    return columns % VECTOR > 0
