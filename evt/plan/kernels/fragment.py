"""The epilogue of a kernel of ours, which takes a thread's elements one after the other: see fragment.hpp.

The kernel itself moves C and D, of 16 bits both. Other matrices are moved element by element.
"""

from __future__ import annotations

from evt.ir import Input
from evt.ir.convolution import SPATIAL
from evt.ir.dtype import BF16, F16, DType
from evt.plan.epilogue.nodes import Access, ColumnBroadcast, Destination, Node, RowBroadcast, Single, Stride, Varies
from evt.plan.epilogue.visitors import build_visitors, is_collective
from evt.plan.fields import Field
from evt.plan.halo_tiles import SHARED_BYTES
from evt.plan.kernels.draft import Collective, Draft
from evt.plan.kernels.epilogue_3x import tensor
from evt.plan.kernels.memory import is_tma
from evt.plan.kernels.nodes import Nodes
from evt.plan.signature import LayoutClass

#: What a kernel moves as C or D: as many bytes an element as the buffer has through which TMA does.
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
    graph = build_visitors(draft.dag, source=source, implicit_store=None, fused=draft.selection.fused, nested=False)
    c = tensor(draft, source) if source else None
    d = tensor(draft, draft.primary) if _is_staged(draft, draft.primary) else None
    return Collective(_NodesFragment(draft).make(graph), graph, c, d, d.dtype if d else F16, SHARED_BYTES)


def _source(draft: Draft) -> str | None:
    """Return the input that the kernel loads itself: the first that it can, where it stores D."""
    if not _is_staged(draft, draft.primary):
        return None
    return next((value.name for value in draft.dag.inputs if _is_staged(draft, value.name)), None)


def _is_staged(draft: Draft, name: str) -> bool:
    """Return whether the kernel can move a matrix: TMA would, or a thread two columns at a time."""
    value = draft.value(name)
    if value.dtype not in _STAGED or not is_collective(value):
        return False
    layout = draft.signature[name]
    return layout.contiguous == "n" and is_tma(draft, name, layout)


class _NodesFragment(Nodes):
    """Nodes that a thread computes for one element after the other."""

    def vector(self, kind: str, value: Input) -> Node:
        return self._broadcast(kind, value, self.draft.fields.pointer(value.name), 1)

    def flexible(self, kind: str, value: Input) -> Node:
        return self._broadcast(kind, value, self.draft.single(value), Varies(self._stride(kind, value)))

    def strided(self, kind: str, value: Input) -> Node:
        return self._broadcast(kind, value, self.draft.fields.pointer(value.name), self._stride(kind, value))

    def _broadcast(self, kind: str, value: Input, values: Field | Single, stride: Stride) -> Node:
        dtype, name = self.draft.dtype(value.name), self.draft.names[value.name]
        if kind == "row":
            return RowBroadcast(dtype, values, (0, stride, 0), name=name)
        return ColumnBroadcast(dtype, values, (stride, 0, 0), name=name)

    def _stride(self, kind: str, value: Input) -> Field:
        return self.draft.fields.stride(value.name, "n" if kind == "row" else "m")

    def is_stock(self, output: DType | Destination) -> bool:
        return False

    def access(self, kind: str, name: str, layout: LayoutClass) -> Access:
        return Access.TILE if name == self.draft.primary and _is_staged(self.draft, name) else Access.DIRECT
