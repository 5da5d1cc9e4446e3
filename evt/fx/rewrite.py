"""Regions replaced by calls of their programs: ``rewrite(graph, fused)``, in place."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch._ops import OpOverload
from torch.fx import Graph, Node

from evt.fx.aten import operator_name, shape_of
from evt.fx.build import Fused
from evt.fx.frame import Arrangement, Size, same
from evt.fx.sizes import written
from evt.runtime.operator import write_program

aten = torch.ops.aten


def rewrite(graph: Graph, fused: Sequence[Fused], target: OpOverload = torch.ops.evt.run.default) -> None:
    """Replace each region by a call of one of evt's operators, with the region as ``meta["evt"]``.

    The programs do not name the nodes of the graph: layers that differ in nothing else are one program, checked,
    planned and loaded once. A result may lie in memory otherwise than PyTorch's would, so what views it afterwards
    becomes a reshape.
    """
    now: dict[Node, Node] = {}
    for each in fused:
        _replace(graph, each, now, target)
    _sort(graph)
    graph.eliminate_dead_code()
    for node in graph.nodes if fused else ():
        if operator_name(node) in ("view.default", "_unsafe_view.default"):
            node.target = aten.reshape.default
    graph.lint()


def _replace(graph: Graph, fused: Fused, now: dict[Node, Node], target: OpOverload) -> None:
    """Replace one region; ``now`` has what stands for the outputs of those that were replaced before."""
    product = fused.region.product
    with graph.inserting_after(fused.region.nodes[-1]):
        mark = graph.call_function(aten.alias.default, (fused.region.nodes[-1],))  # where the new nodes go
    with graph.inserting_before(mark):
        operands = [now.get(each, each) for each in (product.a, product.b)]
        if fused.batches is not None:
            operands = [_shaped(graph, each, (*fused.batches, *shape_of(each)[-2:])) for each in operands]
        arguments = [_arranged(graph, now.get(each.node, each.node), each.arrangement) for each in fused.arguments]
        spec = fused.program.spec
        program = write_program(replace(spec, dag=replace(spec.dag, origins=())))
        call = graph.call_function(target, (*operands, arguments, program))
        values = []
        for index, result in enumerate(fused.results):
            node = result.node
            made = graph.call_function(operator.getitem, (call, index))
            made.meta = {**node.meta, "val": node.meta["val"].new_empty(result.stored)}
            values.append(made)
            shaped = _arranged(graph, made, result.arrangement)
            now[node] = shaped
            node.replace_all_uses_with(shaped, delete_user_cb=lambda user: user not in fused.region)
        call.meta = {"val": [value.meta["val"] for value in values], "evt": fused}
    graph.erase_node(mark)
    for node in reversed(fused.region.nodes):
        if not node.users:
            graph.erase_node(node)


def _arranged(graph: Graph, node: Node, how: Arrangement) -> Node:
    """Return a node with the dimensions of an arrangement."""
    if how.order != tuple(range(len(how.order))):
        split = _shaped(graph, node, how.split)
        node = graph.call_function(aten.permute.default, (split, list(how.order)))
        node.meta["val"] = split.meta["val"].permute(how.order)
    return _shaped(graph, node, how.merged)


def _shaped(graph: Graph, node: Node, shape: Sequence[Size]) -> Node:
    """Return a node of this shape, with the same elements."""
    have = shape_of(node)
    if len(have) == len(shape) and all(map(same, have, shape)):
        return node
    made = graph.call_function(aten.reshape.default, (node, [written(graph, size) for size in shape]))
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
