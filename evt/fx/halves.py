"""Products whose halves of columns are multiplied, as two products: ``divide(graph, devices)``.

Gated units often have one weight: ``gate, up = (x @ W).chunk(2, -1)``. The halves are products of slices of the weight,
which stays where it is. So one kernel may compute both, and the function of both: see :mod:`evt.fx.dual`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import torch
from torch.fx import Graph, Node

from evt.fx.aten import base_name, is_tensor, operator_name, shape_of
from evt.fx.index_map import all_same, same
from evt.fx.op_semantics import Applied, semantics
from evt.fx.sizes import shaped
from evt.fx.views import RESHAPES, is_view

aten = torch.ops.aten
#: The key in ``node.meta`` of a second half, with the first half and the weight of both.
_OTHER = "evt_other_half"


def divide(graph: Graph, devices: Collection[str]) -> list[Node]:
    """Divide products that nothing reads but their halves, and a multiplication of these; return the second halves."""
    found = []
    for node in graph.find_nodes(op="call_function", target=aten.mm.default):
        views = _halves(node) if node.meta["val"].device.type in devices else None
        if views is None or not _are_multiplied(*views):
            continue
        x, weight = node.args
        columns = shape_of(node)[1] // 2
        with graph.inserting_before(node):
            parts = [_call(node, aten.slice.Tensor, weight, 1, start, start + columns) for start in (0, columns)]
            first, second = (_call(node, aten.mm.default, x, part) for part in parts)
        second.meta[_OTHER] = first, weight
        for half, shown in zip((first, second), views, strict=True):
            for view in shown:
                with graph.inserting_before(view):
                    view.replace_all_uses_with(shaped(graph, half, shape_of(view)))
        found.append(second)
    graph.eliminate_dead_code()
    return found


def is_half(node: Node) -> bool:
    """Return whether a node is the second half of a product."""
    return _OTHER in node.meta


def join(second: Node) -> Node:
    """Put a divided product back, and return it."""
    graph, (first, weight), columns = second.graph, second.meta[_OTHER], shape_of(second)[1]
    with graph.inserting_before(first):
        whole = _call(first, aten.mm.default, first.all_input_nodes[0], weight)
    for half, start in ((first, 0), (second, columns)):
        with graph.inserting_before(half):
            half.replace_all_uses_with(_call(half, aten.slice.Tensor, whole, 1, start, start + columns))
        part = half.all_input_nodes[1]
        graph.erase_node(half)
        graph.erase_node(part)
    return whole


def _call(like: Node, target: Any, *arguments: Any) -> Node:
    """Return an operator with the source line of a node."""
    made = like.graph.call_function(target, arguments)
    made.meta = {name: value for name, value in like.meta.items() if name == "stack_trace"}
    made.meta["val"] = target(*(each.meta["val"] if isinstance(each, Node) else each for each in arguments))
    return made


def _halves(product: Node) -> tuple[list[Node], list[Node]] | None:
    """Return the views of the first and of the second half of a product's columns, None if anything else reads it."""
    columns = shape_of(product)[1]
    if not isinstance(columns, int) or columns % 2:
        return None
    found: tuple[list[Node], list[Node]] = [], []
    stack = list(product.users)
    while stack:
        view = stack.pop()
        if not is_view(view):
            return None
        is_list = not is_tensor(view)
        if is_list or (base_name(view) in RESHAPES and same(shape_of(view)[-1], columns)):
            stack += view.users
            continue
        value, operand = view.meta["val"], view.args[0]
        whole = shape_of(operand if is_tensor(operand) else operand.args[0])  # type: ignore[union-attr, arg-type]
        start = value.storage_offset()
        if start not in (0, columns // 2) or not all_same(value.shape, (*whole[:-1], columns // 2)):
            return None
        if not same(whole[-1], columns) or not same(value.stride(-1), 1):
            return None
        found[bool(start)].append(view)
    return found if all(found) else None


def _are_multiplied(one: Iterable[Node], other: Iterable[Node]) -> bool:
    """Return whether an operator multiplies elementwise functions of both halves."""
    return any(operator_name(node) == "mul.Tensor" for node in _functions(one) & _functions(other))


def _functions(nodes: Iterable[Node]) -> set[Node]:
    """Return the elementwise operators and views that read nodes, directly or through others."""
    found, stack = set[Node](), list(nodes)
    while stack:
        for user in stack.pop().users:
            if user not in found and (is_view(user) or isinstance(semantics(user), Applied | Node)):
                found.add(user)
                stack.append(user)
    return found


__all__ = ["divide", "is_half", "join"]
