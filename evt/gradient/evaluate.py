"""Evaluation of programs in PyTorch, operation by operation: ``evaluate(dag, ...)``, and ``operand(...)`` for mainloop
fusion.

They compute in f32 or f64 with PyTorch's own functions, on the device, traced, and differentiated.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from evt.functions import TABLE
from evt.ir.convolution import Convolution
from evt.ir.dag import TypedDag
from evt.ir.dtype import F32, DType
from evt.ir.node import MODES, Const, Input, Operand, Output
from evt.optimise.rounding import is_exact
from evt.reference import functions
from evt.reference.convolution import as_image, as_view, from_view, to_view
from evt.reference.exact import Exact
from evt.reference.extents import Extents, Leads
from evt.reference.oracle import fed_operand
from evt.reference.rounding import working
from evt.reference.translate import Argument, translate


def is_symbol(value: object) -> bool:
    """Return whether a number is symbolic, in a graph of PyTorch."""
    return isinstance(value, torch.SymFloat | torch.SymInt)


class Plain(Exact):
    """The oracle's arithmetic with PyTorch's own functions and sums, which do not compute in f64.

    Functions of integers are the oracle's, because PyTorch raises on integer division by 0.
    """

    def load(self, source: Input) -> torch.Tensor:
        given: Any = self.inputs.get(source.name)
        if not is_symbol(given):
            return super().load(source)
        assert source.dtype is not None
        return torch.full((), given, dtype=working(source.dtype, self.dtype), device=self.device)

    def constant(self, op: Const) -> torch.Tensor:
        return self.full(op, self.dtype if is_exact(F32, op.value) else torch.float64)

    def apply(self, function: str, operands: Sequence[torch.Tensor], domain: DType) -> torch.Tensor:
        row, to = TABLE[function], working(domain, self.dtype)
        broadcast: Any = torch.broadcast_shapes  # untyped
        shape = broadcast(*(x.shape for x in operands))
        # PyTorch's gradient of a clamp fails if its limits are broadcast.
        result: torch.Tensor = row.torch(
            torch if domain.is_float else functions,
            *(x.to(torch.bool if slot in row.conditions else to).expand(shape) for slot, x in enumerate(operands)),
        )
        return result

    def combine(self, kind: str, value: torch.Tensor, dims: list[int]) -> torch.Tensor:
        if not value.numel():
            return super().combine(kind, value, dims)
        if kind == "sum":
            return value.sum(dims, keepdim=True, dtype=value.dtype)
        return (value.amax if kind == "max" else value.amin)(dims, keepdim=True)

    def store(self, output: Output, x: Argument[torch.Tensor]) -> torch.Tensor:
        assert output.dtype is not None
        if not output.dtype.is_float or output.dtype.bits < 16:
            return super().store(output, x)
        dtype: torch.dtype = getattr(torch, output.dtype.torch)
        modes, value = output.memory_modes, self.cast_operand(x, output.dtype)
        value = value if value.dim() == len(MODES) else value.reshape(1, 1, 1)
        return self.extents.in_order(modes, value).reshape(self.extents.shape(modes)).to(dtype)

    def feed(self, operand: Operand, x: Argument[torch.Tensor]) -> torch.Tensor:
        value = self.cast_operand(x, operand.dtype).expand(self.start.shape)
        return value.to(getattr(torch, operand.dtype.torch))


def evaluate(
    dag: TypedDag,
    leads: Leads,
    sizes: Mapping[str, int],
    inputs: Mapping[str, Any],
    device: torch.device,
    geometry: Convolution | None = None,
    acc: torch.Tensor | None = None,
) -> dict[str, torch.Tensor]:
    """Return a program's outputs by name, in PyTorch's shapes.

    ``acc`` is [..., m, n] if the program reads it. ``leads`` and ``sizes`` belong to the call, or to the call whose
    gradient it is.
    """
    views = inputs
    if geometry is not None:
        views = {name: as_view(dag.input.get(name), value, geometry) for name, value in inputs.items()}
    extents = Extents(leads, sizes=sizes)
    start = torch.empty((), device=device) if acc is None else acc.reshape([extents[mode] for mode in MODES])
    dialect = Plain(dag, start, extents, views, torch.float32)
    results = translate(dag, dialect)
    if geometry is not None:
        return {name: as_image(dag.output[name], result) for name, result in results.items()}
    return results


def operand(
    dag: TypedDag,
    name: str,
    tensor: torch.Tensor,
    sizes: Mapping[str, int],
    inputs: Mapping[str, Any],
    geometry: Convolution | None = None,
) -> torch.Tensor:
    """Return A or B after its mainloop fusion, in the shape and type of ``tensor``, so that autograd records it."""
    modes = next(each.modes for each in dag.operands if each.name == name)
    if geometry is not None:
        return from_view(fed_operand(dag, name, to_view(tensor), inputs, torch.float32, sizes, Plain))
    turned = modes not in (("m", "k"), ("n", "k"))
    fed = fed_operand(dag, name, tensor.mT if turned else tensor, inputs, torch.float32, sizes, Plain)
    return fed.mT if turned else fed
