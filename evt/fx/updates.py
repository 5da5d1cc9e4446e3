"""Buffers that a graph updates, such as running statistics: ``join_updates(graph, devices)``, in place.

Functionalisation leaves a copy for each buffer at the end of the graph. Inductor fuses it with the kernel that computes
the new value. If a kernel of evt computes it, or if it is a counter, the copy takes a further kernel. So all these
copies, and all counters, become one operator on lists, for which Inductor writes one kernel:

    mean.copy_(v1); var.copy_(v2); ...   ->   _foreach_copy_([mean, var, ...], [v1, v2, ...])
    batches.copy_(batches + 1); ...      ->   _foreach_add_([batches, ...], 1)
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch.fx import Graph, Node

from evt.fx.aten import dtype_of, operator_name, shape_of
from evt.fx.example import bytes_of

aten = torch.ops.aten
#: The most bytes of a buffer whose copy is joined with others.
_SMALL = 1 << 18


def join_updates(graph: Graph, devices: Sequence[str]) -> None:
    """Join the updates of small buffers that no kernel of Inductor's computes, on some kinds of devices."""
    copies, steps = list[Node](), dict[Any, list[Node]]()
    for node in graph.find_nodes(op="call_function", target=aten.copy_.default):
        buffer, value = node.args
        if node.users or not _is_small(buffer, value, devices):
            continue
        if value.target is operator.getitem and "evt" in value.args[0].meta:
            copies.append(node)
        elif (step := _step(buffer, value)) is not None:
            steps.setdefault((dtype_of(buffer), step), []).append(node)
    if len(copies) > 1:
        pairs = [each.args for each in copies]
        _join(graph, copies, aten._foreach_copy_.default, [list(each) for each in zip(*pairs, strict=True)])
    for (_, step), nodes in steps.items():
        if len(nodes) > 1:
            _join(graph, nodes, aten._foreach_add_.Scalar, [[each.args[0] for each in nodes], step])


def _is_small(buffer: Any, value: Any, devices: Sequence[str]) -> bool:
    """Return whether a value of few bytes is copied to an input of the graph without conversion."""
    if not isinstance(buffer, Node) or buffer.op != "placeholder" or not isinstance(value, Node):
        return False
    same = shape_of(value) == shape_of(buffer) and dtype_of(value) == dtype_of(buffer)
    return same and value.meta["val"].device.type in devices and bytes_of(buffer) <= _SMALL


def _step(buffer: Node, value: Node) -> int | float | None:
    """Return the number that a value adds to a buffer, or None; nothing else reads such a value."""
    if operator_name(value) != "add.Tensor" or len(value.users) != 1 or value.kwargs:
        return None
    first, step = value.args
    return step if first is buffer and isinstance(step, int | float) else None


def _join(graph: Graph, nodes: Sequence[Node], target: Any, arguments: list[Any]) -> None:
    """Put one operator in the place of the last of some copies."""
    with graph.inserting_before(nodes[-1]):
        graph.call_function(target, tuple(arguments))
    for node in nodes:
        value: Any = node.args[1]
        graph.erase_node(node)
        if not value.users:
            graph.erase_node(value)


__all__ = ["join_updates"]
