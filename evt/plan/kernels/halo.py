"""The halo kernel, a convolution of ours for sm90: its epilogue takes a thread's elements one after the other.

TMA moves C and D, of 16 bits both, through one buffer in shared memory. Other matrices are moved element by element.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from evt.ir import Input
from evt.ir.convolution import SPATIAL
from evt.ir.dtype import BF16, F16, DType
from evt.plan.epilogue.nodes import Access, ColumnBroadcast, Destination, Node, RowBroadcast, Single, Stride, Varies
from evt.plan.epilogue.visitors import build_visitors, is_collective
from evt.plan.fields import Field
from evt.plan.halo_tiles import SHARED_BYTES
from evt.plan.kernels.draft import Collective, Draft, Frame, Request
from evt.plan.kernels.epilogue_3x import tensor
from evt.plan.kernels.implicit_gemm import image
from evt.plan.kernels.memory import is_tma
from evt.plan.kernels.nodes import Nodes
from evt.plan.plan import HaloConvolution, Plan
from evt.plan.signature import Layout

#: What TMA moves through shared memory: as many bytes a pixel as its buffer has.
_STAGED = (F16, BF16)


@dataclass(frozen=True, slots=True)
class HaloKernel:
    """The planner of the halo kernel. ``windows``: of few channels, a row of taps is one tap."""

    windows: bool = False
    template: str = "conv_halo"

    def __call__(self, request: Request) -> Plan:
        draft = Draft(request, batched=False)
        mainloop, epilogue = _mainloop(draft, self.windows), _epilogue(draft)
        for setting in ("tile_rows", "tile_columns"):
            draft.fields.size(setting)
        return draft.finish(Frame("halo", self.template, 90, SHARED_BYTES), mainloop, epilogue)


def _mainloop(draft: Draft, over_windows: bool) -> HaloConvolution:
    fields, shape, shared = draft.fields, draft.problem.convolution, draft.request.config.schedule == "halo_shared"
    spatial = SPATIAL[-shape.rank :]
    for name in ("images", *spatial, "channels", "filters"):
        fields.size(name)
    for part in ("filter", "output", "pad", "stride", "dilation"):
        for name in spatial:
            fields.size(f"{part}_{name}")
    a, b = (image(draft, operand) for operand in draft.problem.dag.operands)
    if over_windows:  # threads load them element by element
        a, b = replace(a, alignment=1), replace(b, alignment=1)
        return HaloConvolution(shape.operator, shape.rank, a, b, (shape.windows.channels, shape.windows.step))
    return HaloConvolution(shape.operator, shape.rank, a, b, shared=shared)


def _epilogue(draft: Draft) -> Collective:
    source = _source(draft)
    graph = build_visitors(draft.dag, source=source, implicit_store=None, fused=draft.request.fused, nested=False)
    c = tensor(draft, source) if source else None
    d = tensor(draft, draft.primary) if _is_staged(draft, draft.primary) else None
    return Collective(_NodesHalo(draft).make(graph), graph, c, d, d.dtype if d else F16, SHARED_BYTES)


def _source(draft: Draft) -> str | None:
    """Return the input that TMA loads: the first that it can, into the buffer of D."""
    if not _is_staged(draft, draft.primary):
        return None
    return next((value.name for value in draft.dag.inputs if _is_staged(draft, value.name)), None)


def _is_staged(draft: Draft, name: str) -> bool:
    """Return whether TMA can move a matrix through the buffer."""
    value = draft.value(name)
    if value.dtype not in _STAGED or not is_collective(value):
        return False
    layout = draft.signature[name]
    return layout.contiguous == "n" and is_tma(draft, name, layout)


class _NodesHalo(Nodes):
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

    def access(self, kind: str, name: str, layout: Layout) -> Access:
        return Access.TILE if name == self.draft.primary and _is_staged(self.draft, name) else Access.DIRECT


HALO = HaloKernel()
WINDOWS = HaloKernel(windows=True)
