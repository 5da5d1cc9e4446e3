"""The oracle: what a program means, in PyTorch, on any device.

``evaluate`` walks a typed graph over an accumulator; ``reference`` forms the accumulator first. Everything is
computed in one dtype: f32 as the kernels do, or f64 as a yardstick for them. Casts are real rounding points
in both. This module imports torch; nothing imports it until a program is evaluated.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from evt.functions import TABLE
from evt.ir.dag import TypedDag
from evt.ir.dtype import DType
from evt.ir.node import MODES, Acc, Apply, Cast, Const, Input, Load, Output, Store

__all__ = ["evaluate", "reference"]

#: The dimensions that each mode stands for in shapes: a batch may have several, and the rows of ``linear``.
Leads = Mapping[str, tuple[int, ...]]


def reference(
    dag: TypedDag,
    A: torch.Tensor,  # noqa: N803
    B: torch.Tensor,  # noqa: N803
    inputs: Mapping[str, Any],
    *,
    float64: bool = False,
) -> dict[str, torch.Tensor]:
    """The outputs of a program by name, in ``out`` order.

    A and B have their operand's modes in their last two dimensions; the dimensions before them are batches,
    which broadcast as in torch.matmul. A of ``linear`` has any number of row dimensions instead.
    """
    dtype = torch.float64 if float64 else torch.float32
    modes_a, modes_b = (operand.modes for operand in dag.operands)
    a = A.to(dtype) if modes_a == ("m", "k") else A.to(dtype).mT
    b = B.to(dtype) if modes_b == ("k", "n") else B.to(dtype).mT
    leads: Leads
    if dag.operation == "linear" and modes_a == ("m", "k"):
        leads = {"l": (), "m": tuple(a.shape[:-1]), "n": (b.shape[-1],)}
        acc = a.reshape(math.prod(leads["m"]), a.shape[-1]) @ b
    else:
        acc = a @ b
        leads = _leads(acc)
    return _evaluate(dag, acc, leads, inputs, dtype)


def evaluate(
    dag: TypedDag, acc: torch.Tensor, inputs: Mapping[str, Any], *, dtype: torch.dtype = torch.float32
) -> dict[str, torch.Tensor]:
    """The outputs by name for an accumulator ``[..., m, n]``.

    ``inputs`` are what a call gives: tensors in the order of their modes, with the batch's dimensions before
    them where a program leaves that open; scalars as numbers or one-element tensors. With ``dtype`` f32 each
    output is rounded to its type; with f64 the outputs stay f64. Raises ValueError for a shape that does not
    fit.
    """
    return _evaluate(dag, acc, _leads(acc), inputs, dtype)


def _leads(acc: torch.Tensor) -> Leads:
    return {"l": tuple(acc.shape[:-2]), "m": (acc.shape[-2],), "n": (acc.shape[-1],)}


def _evaluate(
    dag: TypedDag, acc: torch.Tensor, leads: Leads, inputs: Mapping[str, Any], dtype: torch.dtype
) -> dict[str, torch.Tensor]:
    """Walk the graph in id order. Values are ``[l, m, n]``, with 1 where they do not vary, or 0-d."""
    sizes = [math.prod(leads[mode]) for mode in MODES]
    acc = acc.to(dtype).reshape(sizes)
    last_use = [max(users, default=node) for node, users in enumerate(dag.users)]
    values: dict[int, torch.Tensor] = {}
    results: dict[str, torch.Tensor] = {}
    for node in range(len(dag)):
        operands = [values[operand] for operand in dag.arguments(node)]
        match dag[node]:
            case Acc():
                values[node] = acc
            case Load(name):
                values[node] = _load(dag.input[name], inputs, leads, acc)
            case Const() as constant:
                values[node] = torch.tensor(constant.value, dtype=dtype, device=acc.device)
            case Apply(function):
                values[node] = TABLE[function].torch(torch, *operands)
            case Cast(to):
                values[node] = operands[0].to(_torch(to)).to(dtype)
            case Store(name):
                results[name] = _store(dag.output[name], operands[0], leads)
        for operand in set(dag.arguments(node)):
            if last_use[operand] == node:
                del values[operand]
    return {output.name: results[output.name] for output in dag.outputs}


def _load(value: Input, inputs: Mapping[str, Any], leads: Leads, acc: torch.Tensor) -> torch.Tensor:
    """An input as ``[l, m, n]``, or 0-d for a scalar."""
    if value.name not in inputs and value.default is None:
        raise ValueError(f"the input {value.name} is missing")
    assert value.dtype is not None
    # A number is rounded to the scalar's type, as a kernel receives it.
    given = torch.as_tensor(inputs.get(value.name, value.default))
    tensor = given.to(acc.device, _torch(value.dtype)).to(acc.dtype)
    if not value.modes:
        return tensor.reshape(())
    batch = [] if "l" in value.modes or not value.batchable else ["l"]
    for modes in ([*batch, *value.modes], value.modes):
        flat = [math.prod(leads[mode]) for mode in modes]
        if tuple(tensor.shape) in (_shape(modes, leads), tuple(flat)):
            order = sorted(range(len(modes)), key=lambda position: MODES.index(modes[position]))
            sizes = [flat[modes.index(mode)] if mode in modes else 1 for mode in MODES]
            return tensor.reshape(flat).permute(order).reshape(sizes)
    shape, expected = tuple(tensor.shape), _shape(value.modes, leads)
    raise ValueError(f"the input {value.name} has shape {shape}; expected {expected}")


def _store(output: Output, value: torch.Tensor, leads: Leads) -> torch.Tensor:
    """A value broadcast to the output's modes, in their order, packed."""
    modes = output.modes if "l" in output.modes else ("l", *output.modes)
    value = value.expand([math.prod(leads[mode]) if mode in modes else 1 for mode in MODES])
    order = [MODES.index(mode) for mode in (*modes, *(mode for mode in MODES if mode not in modes))]
    result = value.permute(order).clone(memory_format=torch.contiguous_format).reshape(_shape(modes, leads))
    assert output.dtype is not None
    return result if value.dtype == torch.float64 else result.to(_torch(output.dtype))


def _shape(modes: Sequence[str], leads: Leads) -> tuple[int, ...]:
    return tuple(size for mode in modes for size in leads[mode])


def _torch(dtype: DType) -> torch.dtype:
    found: torch.dtype = getattr(torch, dtype.torch)
    return found
