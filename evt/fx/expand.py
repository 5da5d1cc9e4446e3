"""Operators made of others, written out: ``expand(graph)``, in place.

Inductor has decomposed them by the time that it shows its graph; an exported graph has them whole.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch.fx import Graph, Node

from evt.fx.meaning import operator_name


def expand(graph: Graph) -> None:
    """Replace every operator of :data:`_RULES` by the elementwise operators that it is."""
    for node in list(graph.nodes):
        rule = _RULES.get(operator_name(node) or "")
        made = rule(_Writer(graph, node)) if rule is not None else None
        if made is None:
            continue
        firsts = [user for user in node.users if user.target is operator.getitem and user.args[1] == 0]
        if len(firsts) != len(node.users) and made is not node:
            used = [user for user in node.users if user not in firsts]
            if isinstance(node.meta["val"], tuple | list) and used:
                continue
        for each in firsts or [node]:
            each.replace_all_uses_with(made)
    graph.eliminate_dead_code()


class _Writer:
    """Adds nodes before another one, each with its value under the graph's fake mode."""

    def __init__(self, graph: Graph, node: Node) -> None:
        self.graph, self.node = graph, node

    def __call__(self, target: Any, *arguments: Any) -> Node:
        with self.graph.inserting_before(self.node):
            made = self.graph.call_function(target, arguments)
        values = [each.meta["val"] if isinstance(each, Node) else each for each in arguments]
        fake = next(each.fake_mode for each in values if hasattr(each, "fake_mode"))
        with fake:
            made.meta["val"] = target(*values)
        return made


def _batch_norm(write: _Writer) -> Node | None:
    """``(x - mean) * rsqrt(var + eps) * weight + bias``, of each channel: dimension 1."""
    aten = torch.ops.aten
    x, weight, bias, mean, variance, *_, eps = write.node.args
    assert isinstance(x, Node)
    dims = x.meta["val"].dim()
    if mean is None or variance is None:
        return None

    def channels(vector: Any) -> Node:
        return write(aten.view.default, vector, [-1] + [1] * (dims - 2))

    scale = write(aten.rsqrt.default, write(aten.add.Tensor, variance, eps))
    result = write(aten.mul.Tensor, write(aten.sub.Tensor, x, channels(mean)), channels(scale))
    if weight is not None:
        result = write(aten.mul.Tensor, result, channels(weight))
    return write(aten.add.Tensor, result, channels(bias)) if bias is not None else result


_RULES: dict[str, Callable[[_Writer], Node | None]] = {
    "_native_batch_norm_legit_no_training.default": _batch_norm,
}
