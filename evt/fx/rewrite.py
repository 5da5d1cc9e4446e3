"""Regions replaced by calls of their programs: ``rewrite(graph, fused)``, in place."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch.fx import Graph, Node

from evt.fx.build import Fused
from evt.fx.frame import same
from evt.fx.product import shape_of
from evt.runtime.operator import write_program


def rewrite(graph: Graph, fused: Sequence[Fused]) -> None:
    """Replace each region by one call; the nodes' values and names of what is read outside stay."""
    now: dict[Node, Node] = {}
    for each in fused:
        _replace(graph, each, now)
    _sort(graph)
    graph.eliminate_dead_code()
    graph.lint()


def _replace(graph: Graph, fused: Fused, now: dict[Node, Node]) -> None:
    """Replace one region; ``now`` has what stands for the outputs of those that were replaced before."""
    product = fused.region.product
    last = fused.region.nodes[-1]
    with graph.inserting_after(last):
        mark = graph.call_function(torch.ops.aten.alias.default, (last,))  # where the new nodes go
    with graph.inserting_before(mark):
        arguments = [_shaped(graph, now.get(each.node, each.node), each.shape) for each in fused.arguments]
        call = graph.call_function(
            torch.ops.evt.run.default,
            (
                now.get(product.a, product.a),
                now.get(product.b, product.b),
                arguments,
                write_program(fused.program.spec),
            ),
        )
        values = []
        for index, node in enumerate(fused.outputs):
            made = graph.call_function(operator.getitem, (call, index))
            made.meta = {**node.meta, "val": node.meta["val"].reshape(product.frame.sizes)}
            values.append(made)
            shaped = _shaped(graph, made, shape_of(node))
            shaped.meta = dict(node.meta)
            now[node] = shaped
            node.replace_all_uses_with(shaped, delete_user_cb=lambda user: user not in fused.region)
        call.meta = {"val": [value.meta["val"] for value in values]}
    graph.erase_node(mark)
    for node in reversed(fused.region.nodes):
        if not node.users:
            graph.erase_node(node)


def _shaped(graph: Graph, node: Node, shape: Sequence[Any]) -> Node:
    """Return a node of this shape, with the same elements."""
    have = shape_of(node)
    if len(have) == len(shape) and all(map(same, have, shape)):
        return node
    made = graph.call_function(torch.ops.aten.reshape.default, (node, list(shape)))
    made.meta["val"] = node.meta["val"].reshape(tuple(shape))
    return made


def _sort(graph: Graph) -> None:
    """Put the nodes into an order in which operands come first, otherwise as they were."""
    placed: set[Node] = set()
    anchor = graph._root
    for node in list(graph.nodes):
        stack = [node]
        while stack:
            each = stack[-1]
            if each in placed:
                stack.pop()
                continue
            missing = [operand for operand in each.all_input_nodes if operand not in placed]
            if missing:
                stack += reversed(missing)
                continue
            stack.pop()
            placed.add(each)
            anchor.append(each)
            anchor = each
