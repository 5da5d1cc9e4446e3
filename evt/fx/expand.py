"""Decompose composed operators: ``expand(graph)``, in place.

Inductor has already decomposed these operators when it runs evt's pass. An exported graph contains them whole.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch.fx import Graph, Node

from evt.fx.aten import Arguments, base_name

aten = torch.ops.aten
#: The mark of a decomposition's result: the node of the operator's result.
ORIGINAL = "evt_original"
#: Operators of normalisations that may use the statistics of training.
_NORMALISATIONS = ("_native_batch_norm_legit_no_training", "_batch_norm_no_update")


def expand(graph: Graph, eager: bool = False) -> None:
    """Decompose every batch norm with given statistics, and drop assertions about types.

    ``eager``: with the operations of PyTorch's CUDA kernels, else with one multiply-add.
    """
    for node in list(graph.nodes):
        if base_name(node) == "_assert_tensor_metadata":
            graph.erase_node(node)
        if base_name(node) not in _NORMALISATIONS:
            continue
        if any(user.target is not operator.getitem or (user.args[1] != 0 and user.users) for user in node.users):
            continue
        made = _batch_norm(_Writer(graph, node), Arguments(node), eager)
        for user in list(node.users):
            if user.args[1] == 0:
                made.meta[ORIGINAL] = user
                user.replace_all_uses_with(made)
    graph.eliminate_dead_code()


class _Writer:
    """A writer that inserts nodes before a node, and computes their fake values."""

    def __init__(self, graph: Graph, node: Node) -> None:
        self.graph, self.node = graph, node

    def __call__(self, target: Any, *arguments: Any) -> Node:
        with self.graph.inserting_before(self.node):
            made = self.graph.call_function(target, arguments)
        values = [each.meta["val"] if isinstance(each, Node) else each for each in arguments]
        fake = next(each.fake_mode for each in values if hasattr(each, "fake_mode"))
        with fake:
            made.meta["val"] = target(*values)
        made.meta.update({name: self.node.meta[name] for name in ("stack_trace",) if name in self.node.meta})
        return made


def _batch_norm(write: _Writer, arguments: Arguments, eager: bool) -> Node:
    """Return ``x * scale + shift`` for each channel (dimension 1), in float32 if x has fewer bits.

    ``eager``: return ``fma(weight * (x - mean), 1 / sqrt(variance + eps), bias)``.
    """
    x, eps = arguments["input"], arguments["eps"]
    weight, bias, mean, variance = (arguments[name] for name in ("weight", "bias", "running_mean", "running_var"))
    dtype = x.meta["val"].dtype
    wide = torch.promote_types(dtype, torch.float32)

    def widened(vector: Node) -> Node:
        if vector.meta["val"].dtype == wide:
            return vector
        return write(torch.ops.prims.convert_element_type.default, vector, wide)

    def channels(vector: Node) -> Node:
        return write(aten.view.default, vector, [-1] + [1] * (x.meta["val"].dim() - 2))

    scale = write(aten.rsqrt.default, write(aten.add.Tensor, widened(variance), eps))
    if eager:
        result = write(aten.sub.Tensor, widened(x), channels(widened(mean)))
        if weight is not None:
            result = write(aten.mul.Tensor, channels(widened(weight)), result)
        if bias is None:
            result = write(aten.mul.Tensor, result, channels(scale))
        else:
            result = write(aten.addcmul.default, channels(widened(bias)), result, channels(scale))
        return result if dtype == wide else write(torch.ops.prims.convert_element_type.default, result, dtype)
    if weight is not None:
        scale = write(aten.mul.Tensor, scale, widened(weight))
    shift = write(aten.mul.Tensor, widened(mean), scale)
    shift = write(aten.neg.default, shift) if bias is None else write(aten.sub.Tensor, widened(bias), shift)
    result = write(aten.add.Tensor, write(aten.mul.Tensor, x, channels(scale)), channels(shift))
    return result if dtype == wide else write(torch.ops.prims.convert_element_type.default, result, dtype)
