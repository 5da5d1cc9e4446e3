"""The convolutions that cuDNN fuses, through PyTorch: ``cudnn_fused(case) -> function of the tensors``.

PyTorch offers ``relu(acc + bias)`` and ``relu(acc + bias + residual)``. A residual after the relu is an addition in
place.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from evt.bench.case import Case
from evt.eager.idiom import UnwrittenError
from evt.ir import Acc, Apply, Input, Load, Operand, Output, TypedDag


def cudnn_fused(case: Case) -> Callable[..., torch.Tensor]:
    """Return the formula by cuDNN, as a function of ``(A, B, *tensor inputs)``. Raise UnwrittenError for other
    formulas.
    """
    problem = case.problem
    if problem is None or problem.geometry.operator != "fprop" or problem.geometry.rank == 1:
        raise UnwrittenError("PyTorch offers cuDNN's fusion for conv2d and conv3d")
    if any(before != after for before, after in problem.pads):
        raise UnwrittenError("cuDNN pads both sides alike")
    bias, residual, added = _addends(case.dag)
    geometry, pads = problem.geometry, [before for before, _ in problem.pads]
    shape = (geometry.stride, pads, geometry.dilation, geometry.groups)
    names = [value.name for value in case.dag.inputs if value.modes]

    def call(a: torch.Tensor, b: torch.Tensor, *tensors: torch.Tensor) -> torch.Tensor:
        given: dict[str | None, Any] = dict(zip(names, tensors, strict=True))
        if residual is None:
            result: torch.Tensor = torch.cudnn_convolution_relu(a, b, given.get(bias), *shape)
        else:
            result = torch.cudnn_convolution_add_relu(a, b, given[residual], 1.0, given.get(bias), *shape)
        return result if added is None else result.add_(given[added])

    return call


def _addends(dag: TypedDag) -> tuple[str | None, str | None, str | None]:
    """Return the vector and the image that are added to acc before relu, and the image that is added to its result."""
    interface: tuple[Operand | Input | Output, ...] = (*dag.operands, *dag.inputs, *dag.outputs)
    result = dag.arguments(dag.stores[dag.primary.name])[0]
    outer = _sum(dag, result)
    inner = _sum(dag, dag.arguments(outer["relu"])[0]) if "relu" in outer else {}
    fits = outer.keys() <= {"relu", "image"} and inner.keys() <= {"acc", "bias", "image"} and "acc" in inner
    if not fits or len({each.dtype for each in interface}) > 1 or len(dag.outputs) > 1:
        raise UnwrittenError("cuDNN fuses relu(acc + bias) and relu(acc + bias + residual), all of one type")
    names: dict[int | None, str] = {node: op.name for node, (op, _) in enumerate(dag.table) if isinstance(op, Load)}
    return names.get(inner.get("bias")), names.get(inner.get("image")), names.get(outer.get("image"))


def _sum(dag: TypedDag, node: int) -> dict[str, int]:
    """Return the terms of a node's sum by kind; duplicates and terms of other kinds by their number."""
    addends = [node]
    while any(dag[each] == Apply("add") for each in addends):
        addends = [part for each in addends for part in (dag.arguments(each) if dag[each] == Apply("add") else (each,))]
    found: dict[str, int] = {}
    for each in addends:
        kind = _kind(dag, each)
        found[kind if kind not in found else str(each)] = each
    return found


def _kind(dag: TypedDag, node: int) -> str:
    match dag[node]:
        case Acc():
            return "acc"
        case Apply("relu"):
            return "relu"
        case Load(name) if dag.input[name].modes == ("n",):
            return "bias"
        case Load(name) if dag.input[name].modes == ("m", "n"):
            return "image"
    return str(node)
